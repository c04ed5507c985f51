"""Running normalisation of observations and rewards: what SB3's `VecNormalize` does, as tensors inside the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from gymnasium import spaces

from kit.errors import UserError

if TYPE_CHECKING:
    from stable_baselines3.common.running_mean_std import RunningMeanStd
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize


class RunningMoments:
    """Mean and variance (float64, over everything seen so far) of rows that arrive in batches."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = 1e-4  # SB3's: a faint memory of mean 0 and variance 1

    def update(self, rows: torch.Tensor) -> None:
        """`rows` (n, *shape). Chan's parallel formula."""
        var, mean = torch.var_mean(rows.double(), dim=0, correction=0)
        n, total = rows.shape[0], self.count + rows.shape[0]
        delta = mean - self.mean
        self.mean = self.mean + delta * (n / total)
        # M2 = var_a n_a + var_b n_b + delta² n_a n_b / (n_a + n_b)
        self.var = (self.var * self.count + var * n + delta.square() * (self.count * n / total)) / total
        self.count = total


class Normalizer:
    """Keeps running statistics of observations and of discounted returns, and scales by them.

    A policy trained with it sees `observe(obs)`. The trainer's own `predict` and `act` do that for you. For a model
    loaded in plain SB3, wrap its env: `trainer.normalizer.to_sb3(venv)` is a `VecNormalize` with the same numbers.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        num_envs: int,
        device: torch.device,
        gamma: float,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        epsilon: float = 1e-8,
    ) -> None:
        if norm_obs and not isinstance(observation_space, spaces.Box):
            kind = type(observation_space).__name__
            raise UserError(f'overrides normalize=true cannot scale {kind} observations; write {{"norm_obs": false}}.')
        self.norm_obs, self.norm_reward = norm_obs, norm_reward
        self.clip_obs, self.clip_reward = clip_obs, clip_reward
        self.gamma, self.epsilon = gamma, epsilon
        self.obs_moments = RunningMoments(observation_space.shape or (), device)
        self.return_moments = RunningMoments((), device)
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)

    def begin(self, obs: torch.Tensor) -> None:
        """New episodes everywhere, first seen as `obs` (n, obs)."""
        self.returns.zero_()
        self.update(obs)

    def update(self, obs: torch.Tensor) -> None:
        """Learn from `obs` (n, obs)."""
        if self.norm_obs:
            self.obs_moments.update(obs)

    def observe(self, obs: torch.Tensor) -> torch.Tensor:
        """`obs` (n, obs) float32 as the policy sees it; nothing is learnt."""
        if not self.norm_obs:
            return obs
        scaled = (obs.double() - self.obs_moments.mean) / torch.sqrt(self.obs_moments.var + self.epsilon)
        return scaled.clamp_(-self.clip_obs, self.clip_obs).float()

    def reward(self, reward: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
        """Learn from `reward` (n,) of this step, whose worlds `done` (n,) end with it, and return it scaled."""
        self.returns = self.returns * self.gamma + reward
        self.return_moments.update(self.returns)
        self.returns.masked_fill_(done, 0.0)
        return self.scale_reward(reward)

    def scale_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """`reward` in units of the spread of discounted returns; nothing is learnt."""
        if not self.norm_reward:
            return reward
        scaled = reward / torch.sqrt(self.return_moments.var + self.epsilon)
        return scaled.clamp_(-self.clip_reward, self.clip_reward).float()

    def state(self) -> dict[str, Any]:
        """Copies of what was learnt so far."""
        return {
            "obs.mean": self.obs_moments.mean.clone(),
            "obs.var": self.obs_moments.var.clone(),
            "obs.count": self.obs_moments.count,
            "return.mean": self.return_moments.mean.clone(),
            "return.var": self.return_moments.var.clone(),
            "return.count": self.return_moments.count,
            "returns": self.returns.clone(),
        }

    def load_state(self, state: dict[str, Any], statistics_only: bool = False) -> None:
        """`statistics_only`: for another number of worlds, as in an evaluation."""
        for name, moments in (("obs", self.obs_moments), ("return", self.return_moments)):
            moments.mean = state[f"{name}.mean"].to(moments.mean.device, copy=True)
            moments.var = state[f"{name}.var"].to(moments.var.device, copy=True)
            moments.count = float(state[f"{name}.count"])
        if not statistics_only:
            self.returns.copy_(state["returns"])

    def to_sb3(self, venv: VecEnv) -> VecNormalize:
        """`venv` wrapped in SB3's `VecNormalize` with these statistics, frozen: for evaluation with plain SB3."""
        from stable_baselines3.common.vec_env import VecNormalize

        wrapped = VecNormalize(
            venv, False, self.norm_obs, self.norm_reward, self.clip_obs, self.clip_reward, self.gamma, self.epsilon
        )
        pairs = [(wrapped.ret_rms, self.return_moments)]
        if self.norm_obs:
            pairs.append((cast("RunningMeanStd", wrapped.obs_rms), self.obs_moments))
        for theirs, ours in pairs:
            theirs.mean, theirs.var = ours.mean.cpu().numpy().copy(), ours.var.cpu().numpy().copy()
            theirs.count = ours.count
        return wrapped
