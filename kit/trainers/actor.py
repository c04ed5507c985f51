"""A policy as one module, (obs, hidden_state) -> (action, hidden_state), that `kit.envs.play` plays and `kit.export`
writes."""

from __future__ import annotations

from typing import Any, Self

import torch
from gymnasium import Space, spaces
from stable_baselines3.common.policies import BasePolicy
from torch import nn

from kit.envs.obs import Obs, PolicyView, tree_map
from kit.envs.play import HiddenState
from kit.trainers.normalize import Normalizer


class Actor(nn.Module):
    """`policy` from raw observations to actions that the env takes."""

    def __init__(
        self,
        policy: BasePolicy,
        view: PolicyView,
        normalizer: Normalizer | None,
        action_space: Space,
        deterministic: bool = True,
    ) -> None:
        super().__init__()
        self.policy, self.view, self.normalizer, self.deterministic = policy, view, normalizer, deterministic
        self.shape = action_space.shape or ()
        if isinstance(action_space, spaces.Box):
            self.low: torch.Tensor
            self.high: torch.Tensor
            self.register_buffer("low", torch.as_tensor(action_space.low, device=policy.device), persistent=False)
            self.register_buffer("high", torch.as_tensor(action_space.high, device=policy.device), persistent=False)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As of any module; the statistics of its normaliser go along."""
        super().to(*args, **kwargs)
        if self.normalizer is not None:
            self.normalizer.to(self.policy.device)
        return self

    def initial_state(self, n: int) -> HiddenState:
        """The hidden state with which episodes of `n` envs start."""
        return ()

    @torch.no_grad()
    def forward(self, obs: Obs, hidden_state: HiddenState = ()) -> tuple[torch.Tensor, HiddenState]:
        """Actions (n, ...) for raw `obs` (n, ...), and the hidden state afterwards; by default episodes start."""
        self.policy.set_training_mode(False)
        seen = self.see(tree_map(lambda x: x.to(self.policy.device), obs))
        actions, hidden_state = self.choose(seen, hidden_state)
        return self.to_env(actions), hidden_state

    def choose(self, seen: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        """The policy's output for `seen`, and its hidden state afterwards."""
        return self.policy._predict(seen, self.deterministic), ()  # type: ignore[arg-type]

    def see(self, obs: Obs) -> Obs:
        """`obs` as the policy sees them."""
        obs = self.view(obs)
        return obs if self.normalizer is None else self.normalizer.observe(obs)

    def to_env(self, actions: torch.Tensor) -> torch.Tensor:
        """Policy outputs as the env wants them: shaped, and stretched where the policy squashes."""
        actions = actions.reshape(-1, *self.shape)
        return self.unscale(actions) if self.policy.squash_output else actions

    def unscale(self, actions: torch.Tensor) -> torch.Tensor:
        """From [-1, 1] to the action space."""
        return self.low + 0.5 * (actions + 1.0) * (self.high - self.low)
