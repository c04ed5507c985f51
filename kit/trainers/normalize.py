"""Running normalisation of observations and rewards: SB3's `VecNormalize` as tensors inside the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from gymnasium import spaces

from kit.envs.obs import Obs, from_leaves, is_image, leaves
from kit.errors import UserError

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize


class RunningMoments:
    """Running mean and variance (float64) of rows that arrive in batches."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = 1e-4  # as in SB3: a weak prior of mean 0 and variance 1

    def update(self, rows: torch.Tensor) -> None:
        """Add `rows` (n, *shape) by Chan's parallel formula."""
        var, mean = torch.var_mean(rows.double(), dim=0, correction=0)
        n, total = rows.shape[0], self.count + rows.shape[0]
        delta = mean - self.mean
        self.mean = self.mean + delta * (n / total)
        # M2 = var_a n_a + var_b n_b + delta² n_a n_b / (n_a + n_b)
        self.var = (self.var * self.count + var * n + delta.square() * (self.count * n / total)) / total
        self.count = total


class Normalizer:
    """Scales observations and rewards by running statistics of observations and discounted returns.

    A policy trained with a normaliser expects scaled observations, `observe(obs)`; the trainer's `predict` and `act`
    scale them. For a model loaded in plain SB3, wrap its env: `trainer.normalizer.to_sb3(venv)` is a `VecNormalize`
    with the same statistics.

    Without `update_obs` the statistics of observations stay those of the pretrained policy.
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
        update_obs: bool = True,
    ) -> None:
        scaled = {name: space for name, space in leaves("obs", observation_space) if _is_scaled(space)}
        if norm_obs and not scaled:
            kind = type(observation_space).__name__
            raise UserError(
                f'overrides normalize=true cannot scale {kind} observations; write normalize={{"norm_obs": false}}.'
            )
        self.norm_obs, self.norm_reward, self.update_obs = norm_obs, norm_reward, update_obs
        self.clip_obs, self.clip_reward = clip_obs, clip_reward
        self.gamma, self.epsilon = gamma, epsilon
        self.obs_moments = {name: RunningMoments(space.shape or (), device) for name, space in scaled.items()}
        """Statistics of each scaled observation entry ("obs", or "obs.key"): the Boxes that are not images."""
        self.return_moments = RunningMoments((), device)
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)

    def begin(self, obs: Obs) -> None:
        """Zero the running returns after a reset of all envs, and add the first `obs` (n, ...) to the statistics."""
        self.returns.zero_()
        self.update(obs)

    def update(self, obs: Obs) -> None:
        """Update the statistics with `obs` (n, ...)."""
        if self.norm_obs and self.update_obs:
            for name, entry in leaves("obs", obs):
                if name in self.obs_moments:
                    self.obs_moments[name].update(entry)

    def scale_obs(self, obs: Obs) -> Obs:
        """Scale `obs` (n, ...) for the policy, to float32; the statistics stay unchanged."""
        if not self.norm_obs:
            return obs
        scaled = {name: self._scale(name, entry) for name, entry in leaves("obs", obs)}
        return cast(Obs, from_leaves("obs", scaled))

    def _scale(self, name: str, entry: torch.Tensor) -> torch.Tensor:
        if (moments := self.obs_moments.get(name)) is None:
            return entry
        scaled = (entry.double() - moments.mean) / torch.sqrt(moments.var + self.epsilon)
        return scaled.clamp_(-self.clip_obs, self.clip_obs).float()

    def unscaled(self, scaled: Obs) -> Obs:
        """Undo `observe`, except for its clipping."""
        if not self.norm_obs:
            return scaled
        raw = {name: self._unscale(name, entry) for name, entry in leaves("obs", scaled)}
        return cast(Obs, from_leaves("obs", raw))

    def _unscale(self, name: str, entry: torch.Tensor) -> torch.Tensor:
        if (moments := self.obs_moments.get(name)) is None:
            return entry
        return (entry * torch.sqrt(moments.var + self.epsilon) + moments.mean).float()

    def reward(self, reward: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
        """Update the statistics with this step's `reward` (n,) and `done` (n,), and return the scaled reward."""
        self.returns = self.returns * self.gamma + reward
        self.return_moments.update(self.returns)
        self.returns.masked_fill_(done, 0.0)
        return self.scale_reward(reward)

    def scale_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """Divide `reward` by the standard deviation of discounted returns; the statistics stay unchanged."""
        if not self.norm_reward:
            return reward
        scaled = reward / torch.sqrt(self.return_moments.var + self.epsilon)
        return scaled.clamp_(-self.clip_reward, self.clip_reward).float()

    def state(self) -> dict[str, Any]:
        values: dict[str, Any] = {"returns": self.returns.clone()}
        for name, moments in self.moments().items():
            values |= {f"{name}.mean": moments.mean.clone(), f"{name}.var": moments.var.clone()}
            values[f"{name}.count"] = moments.count
        return values

    def load_state(self, state: dict[str, Any], statistics_only: bool = False) -> None:
        """Restore a `state()`. With `statistics_only` the running returns, one per env, are not restored."""
        for name, moments in self.moments().items():
            moments.mean = state[f"{name}.mean"].to(moments.mean.device, copy=True)
            moments.var = state[f"{name}.var"].to(moments.var.device, copy=True)
            moments.count = float(state[f"{name}.count"])
        if not statistics_only:
            self.returns.copy_(state["returns"])

    def to(self, device: torch.device) -> None:
        """Move the statistics to `device`."""
        self.returns = self.returns.to(device)
        for moments in self.moments().values():
            moments.mean, moments.var = moments.mean.to(device), moments.var.to(device)

    @property
    def scaled(self) -> set[str]:
        """Names of the observation entries that are scaled."""
        return set(self.obs_moments) if self.norm_obs else set()

    def moments(self) -> dict[str, RunningMoments]:
        """Return name -> statistics of every observation entry and of the returns."""
        return {**self.obs_moments, "return": self.return_moments}

    def to_sb3(self, venv: VecEnv) -> VecNormalize:
        """Wrap `venv` in SB3's `VecNormalize` with these statistics, frozen, for evaluation with plain SB3."""
        from stable_baselines3.common.vec_env import VecNormalize

        keys = None if "obs" in self.obs_moments else [name[4:] for name in self.obs_moments]
        clips = self.clip_obs, self.clip_reward
        wrapped = VecNormalize(venv, False, self.norm_obs, self.norm_reward, *clips, self.gamma, self.epsilon, keys)
        pairs = [(wrapped.ret_rms, self.return_moments)]
        if self.norm_obs:
            obs_rms: Any = wrapped.obs_rms
            pairs += [(obs_rms if name == "obs" else obs_rms[name[4:]], m) for name, m in self.obs_moments.items()]
        for rms, moments in pairs:
            rms.mean, rms.var = moments.mean.cpu().numpy().copy(), moments.var.cpu().numpy().copy()
            rms.count = moments.count
        return wrapped


def scaled(state: dict[str, Any]) -> set[str]:
    """Return the names of the observation entries that the normaliser with this `state()` has scaled."""
    names = {name.removesuffix(".count") for name in state if name.endswith(".count")} - {"return"}
    return {name for name in names if state[f"{name}.count"] >= 1}


def _is_scaled(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and not is_image(space)
