"""Policy as one module, (obs, hidden_state) -> (action, hidden_state), for `kit.envs.play` and `kit.export`."""

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
    """Maps env observations to actions: select entries (`PolicyView`), normalise, run the policy, scale actions."""

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
        """Move the module and the normaliser's statistics."""
        super().to(*args, **kwargs)
        if self.normalizer is not None:
            self.normalizer.to(self.policy.device)
        return self

    def initial_state(self, n: int) -> HiddenState:
        """Return the hidden state of `n` envs at the start of an episode; () if the policy is not recurrent."""
        return ()

    @torch.no_grad()
    def forward(self, obs: Obs, hidden_state: HiddenState = ()) -> tuple[torch.Tensor, HiddenState]:
        """Return the actions (n, ...) for the env's `obs` (n, ...), and the next hidden state.

        A recurrent policy without `hidden_state` acts as at the start of an episode.
        """
        self.policy.set_training_mode(False)
        policy_obs = self.preprocess(tree_map(lambda x: x.to(self.policy.device), obs))
        actions, hidden_state = self.choose(policy_obs, hidden_state)
        return self.to_env(actions), hidden_state

    def choose(self, policy_obs: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        """Return the policy's actions, before `to_env`, and the next hidden state."""
        return self.policy._predict(policy_obs, self.deterministic), ()  # type: ignore[arg-type]

    def preprocess(self, obs: Obs) -> Obs:
        """Convert the env's `obs` to inputs of the policy: apply the view, then the normaliser."""
        obs = self.view(obs)
        return obs if self.normalizer is None else self.normalizer.scale_obs(obs)

    def to_env(self, actions: torch.Tensor) -> torch.Tensor:
        """Convert the policy's actions to env actions: reshape, and `unscale` if the policy squashes them with tanh."""
        actions = actions.reshape(-1, *self.shape)
        return self.unscale(actions) if self.policy.squash_output else actions

    def clip(self, actions: torch.Tensor) -> torch.Tensor:
        """Clip actions to the bounds of a Box action space; return others as they are."""
        if not hasattr(self, "low"):
            return actions
        low, high = self.low.to(actions.device), self.high.to(actions.device)
        return torch.maximum(torch.minimum(actions.to(low.dtype), high), low)

    def unscale(self, actions: torch.Tensor) -> torch.Tensor:
        """Rescale actions from [-1, 1] to the bounds of the action space."""
        return self.low + 0.5 * (actions + 1.0) * (self.high - self.low)

    def scale(self, actions: torch.Tensor) -> torch.Tensor:
        """Undo `unscale`, with actions outside the bounds clipped to them."""
        low, high = self.low.to(actions.device), self.high.to(actions.device)
        return ((actions.to(low.dtype) - low) / (high - low) * 2.0 - 1.0).clamp(-1.0, 1.0)
