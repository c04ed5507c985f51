"""Asymmetric actor-critic (Pinto et al., 2017): actor and critic read different observation groups.

The critic may read privileged simulator state, because only training needs it. The actor, and so an exported policy,
reads the group "policy" and nothing else. To support another algorithm, add a class such as `AsymmetricTD3`.
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
"""Prefixes of the names of weights that belong to a critic."""


class CriticState(BaseFeaturesExtractor):
    """Features extractor of a critic: one linear layer and tanh over all vectors of a Dict observation."""

    def __init__(self, observation_space: Space, features: int) -> None:
        super().__init__(observation_space, features)
        assert isinstance(observation_space, spaces.Dict)
        self.names = list(observation_space.spaces)
        width = sum(get_flattened_obs_dim(observation_space[name]) for name in self.names)
        self.layer = nn.Sequential(nn.Linear(width, features), nn.Tanh())

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(torch.cat([observations[name].flatten(1) for name in self.names], dim=1))


if TYPE_CHECKING:
    Policy = Any
else:
    Policy = object


class GroupedPolicy(Policy):
    """Mixin for SB3 policies: separate features extractors for `actor_entries` and `critic_entries`."""

    def __init__(self, *args: Any, actor_entries: Sequence[str], critic_entries: Sequence[str], **kwargs: Any) -> None:
        self.actor_entries, self.critic_entries = tuple(actor_entries), tuple(critic_entries)
        super().__init__(*args, **{**kwargs, "share_features_extractor": False})

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        return self._extractor(self.actor_entries)

    def make_critic_extractor(self, actor: BaseFeaturesExtractor) -> BaseFeaturesExtractor:
        """Build the critic's extractor: `CriticState`, as wide as the `actor`'s, if only the actor reads images."""
        sees_images = [any(map(is_image, self._space(e).values())) for e in (self.actor_entries, self.critic_entries)]
        if sees_images == [True, False]:
            return CriticState(self._space(self.critic_entries), actor.features_dim)
        return self._extractor(self.critic_entries)

    def _extractor(self, entries: Sequence[str]) -> BaseFeaturesExtractor:
        return self.features_extractor_class(self._space(entries), **self.features_extractor_kwargs)

    def _space(self, entries: Sequence[str]) -> spaces.Dict:
        return spaces.Dict({name: self.observation_space[name] for name in entries})

    def _get_constructor_parameters(self) -> dict[str, Any]:
        own = {"actor_entries": self.actor_entries, "critic_entries": self.critic_entries}
        return {**super()._get_constructor_parameters(), **own}


class ActorCriticGroups(GroupedPolicy):
    """Mixin for an `ActorCriticPolicy` with observation groups."""

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Build the actor's extractor in SB3's first call and the critic's in its second call."""
        actor = getattr(self, "features_extractor", None)
        return super().make_features_extractor() if actor is None else self.make_critic_extractor(actor)


class AsymmetricActorCritic(ActorCriticGroups, MultiInputActorCriticPolicy):
    """Policy with observation groups for PPO and A2C."""

    def _build_mlp_extractor(self) -> None:
        super()._build_mlp_extractor()
        width = self.vf_features_extractor.features_dim
        if width != self.features_dim:
            critic = MlpExtractor(width, self.net_arch, self.activation_fn, self.device)
            self.mlp_extractor.value_net, self.mlp_extractor.latent_dim_vf = critic.value_net, critic.latent_dim_vf


class OffPolicyGroups(GroupedPolicy):
    """Mixin for policies of SAC, TD3 and CrossQ with observation groups."""

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> Any:
        return super().make_critic(self.make_critic_extractor(self.actor.features_extractor).to(self.device))


class AsymmetricSAC(OffPolicyGroups, SACMultiInputPolicy):
    """Policy with observation groups for SAC."""


class AsymmetricTD3(OffPolicyGroups, TD3MultiInputPolicy):
    """Policy with observation groups for TD3."""
