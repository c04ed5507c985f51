"""Asymmetric actor-critic (Pinto et al., 2017): actor and critic read different observation groups.

A critic may know what only the simulator knows, for it is needed in training alone; the actor reads the policy's group
and nothing else, and so does what is exported. Of numbers each has features of its own width. Where the actor sees
images and the critic numbers, these become as many features as the actor's, without convolutions.

A policy of another algorithm is two lines, as `AsymmetricTD3` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Space, spaces
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor
from stable_baselines3.sac.policies import MultiInputPolicy as SACMultiInputPolicy
from stable_baselines3.td3.policies import MultiInputPolicy as TD3MultiInputPolicy
from torch import nn

from kit.encoders import ASYMMETRIC
from kit.envs.obs import is_image

NAME = ASYMMETRIC
CRITICS = (
    *("vf_features_extractor.", "mlp_extractor.value_net.", "value_net.", "lstm_critic."),
    *("critic.", "critic_target."),
)
"""With what the names of a critic's weights begin."""


class CriticState(BaseFeaturesExtractor):
    """Numbers of a Dict as `features` others, (B, features)."""

    def __init__(self, observation_space: Space, features: int) -> None:
        super().__init__(observation_space, features)
        assert isinstance(observation_space, spaces.Dict)
        self.names = list(observation_space.spaces)
        wide = sum(get_flattened_obs_dim(observation_space[name]) for name in self.names)
        self.layer = nn.Sequential(nn.Linear(wide, features), nn.Tanh())

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(torch.cat([observations[name].flatten(1) for name in self.names], dim=1))


if TYPE_CHECKING:
    Policy = Any
else:
    Policy = object


class GroupedPolicy(Policy):
    """Before an SB3 policy: features extractors for `actor_entries` and `critic_entries` of its Dict observation."""

    def __init__(self, *args: Any, actor_entries: Sequence[str], critic_entries: Sequence[str], **kwargs: Any) -> None:
        self.actor_entries, self.critic_entries = tuple(actor_entries), tuple(critic_entries)
        super().__init__(*args, **{**kwargs, "share_features_extractor": False})

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """The actor's."""
        return self._extractor(self.actor_entries)

    def make_critic_extractor(self, actor: BaseFeaturesExtractor) -> BaseFeaturesExtractor:
        """The critic's, beside the actor's."""
        sees_images = [any(map(is_image, self._space(e).values())) for e in (self.actor_entries, self.critic_entries)]
        if sees_images == [True, False]:
            return CriticState(self._space(self.critic_entries), actor.features_dim)
        return self._extractor(self.critic_entries)

    def _extractor(self, entries: Sequence[str]) -> BaseFeaturesExtractor:
        made: BaseFeaturesExtractor = self.features_extractor_class(
            self._space(entries), **self.features_extractor_kwargs
        )
        return made

    def _space(self, entries: Sequence[str]) -> spaces.Dict:
        return spaces.Dict({name: self.observation_space[name] for name in entries})

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"actor_entries": self.actor_entries, "critic_entries": self.critic_entries}
        return {**super()._get_constructor_parameters(), **own}


class ActorCriticGroups(GroupedPolicy):
    """Before an `ActorCriticPolicy`."""

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """SB3 asks for the actor's first, then for the critic's."""
        actor = getattr(self, "features_extractor", None)
        return super().make_features_extractor() if actor is None else self.make_critic_extractor(actor)


class AsymmetricActorCritic(ActorCriticGroups, MultiInputActorCriticPolicy):
    """For PPO and A2C."""

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        width = self.vf_features_extractor.features_dim
        if width != self.features_dim:
            critic = MlpExtractor(width, self.net_arch, self.activation_fn, self.device)
            self.mlp_extractor.value_net, self.mlp_extractor.latent_dim_vf = critic.value_net, critic.latent_dim_vf


class OffPolicyGroups(GroupedPolicy):
    """Before a policy of SAC's or TD3's kind."""

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> Any:
        return super().make_critic(self.make_critic_extractor(self.actor.features_extractor).to(self.device))


class AsymmetricSAC(OffPolicyGroups, SACMultiInputPolicy):
    """For SAC."""


class AsymmetricTD3(OffPolicyGroups, TD3MultiInputPolicy):
    """For TD3."""
