"""Asymmetric actor-critic (Pinto et al., 2017): a critic that knows the state while it trains, an actor that only sees.

An env offers it by entries of its observation whose names begin with "critic_", such as ReachVision's with
`env_options={"critic_state": True}`. The critic reads these and nothing else, so that it costs no convolutions; the
actor never does, and what is exported acts without them.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space, spaces
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import ContinuousCritic
from stable_baselines3.sac.policies import MultiInputPolicy as SACMultiInputPolicy
from torch import nn

from kit.encoders.extractor import CRITIC_ONLY

NAME = "AsymmetricPolicy"


class CriticState(BaseFeaturesExtractor):
    """The entries for the critic, as `features` numbers."""

    def __init__(self, observation_space: Space, features: int) -> None:
        super().__init__(observation_space, features)
        assert isinstance(observation_space, spaces.Dict)
        self.names = [name for name in observation_space.spaces if name.startswith(CRITIC_ONLY)]
        wide = sum(get_flattened_obs_dim(observation_space[name]) for name in self.names)
        self.layer = nn.Sequential(nn.Linear(wide, features), nn.Tanh())

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(torch.cat([observations[name].flatten(1) for name in self.names], dim=1))


class AsymmetricActorCritic(MultiInputActorCriticPolicy):
    """For PPO and A2C."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "share_features_extractor": False})

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """SB3 asks for the actor's first, then for the critic's, which has to be as wide."""
        if getattr(self, "features_extractor", None) is None:
            return super().make_features_extractor()
        return CriticState(self.observation_space, self.features_extractor.features_dim)


class AsymmetricSAC(SACMultiInputPolicy):
    """For SAC."""

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        width = self.actor.features_extractor.features_dim
        return super().make_critic(CriticState(self.observation_space, width).to(self.device))
