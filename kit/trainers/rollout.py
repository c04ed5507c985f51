"""Rollout buffer: tensors (n_steps, n_envs, ...) on the training device, with GAE and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from kit.envs.obs import Obs, tree_map
from kit.trainers.clips import Clips, LazyObs, channels_last, frame_steps, materialize, split_newest, with_stacks


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    done: torch.Tensor,
    last_values: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Generalized advantage estimation (T, n) (Schulman et al., 2015).

    `rewards`, `values`, `done` (bool) are (T, n); `last_values` (n,) are the values after the last step. The sums stop
    at every `done`, also at truncations. So call `Rollout.bootstrap` first, which adds the value of the final
    observation to the rewards of truncated steps.
    """
    not_done = (~done).to(values.dtype)
    next_values = torch.cat([values[1:], last_values.unsqueeze(0)])
    delta = rewards + gamma * next_values * not_done - values  # δ_t = r_t + γ V(s_t+1) - V(s_t)
    carry = gamma * gae_lambda * not_done
    advantages = torch.empty_like(delta)
    last = torch.zeros_like(last_values)
    for delta_t, carry_t, out in zip(reversed(delta.unbind()), reversed(carry.unbind()), reversed(advantages.unbind()),
                                     strict=True):  # fmt: skip
        last = torch.addcmul(delta_t, carry_t, last, out=out)  # A_t = δ_t + γλ A_t+1
    return advantages


@dataclass
class Batch:
    """Minibatch of N rollout transitions in any order; every tensor has leading size N."""

    obs: LazyObs
    actions: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor

    def __len__(self) -> int:
        return self.returns.shape[0]

    def take(self, index: torch.Tensor) -> Self:
        """Return a copy of the rows `index` (k,)."""
        return type(self)(*(tree_map(lambda x: x.index_select(0, index), getattr(self, f.name)) for f in fields(self)))

    def join(self, other: Self) -> Self:
        """Return the rows of both batches, these first."""
        names = [f.name for f in fields(self)]
        return type(self)(*(tree_map(_joined, getattr(self, name), getattr(other, name)) for name in names))

    def materialized(self) -> Self:
        """Return the batch with `Clips` (frame stacks not yet put together) in `obs` replaced by tensors."""
        return replace(self, obs=materialize(self.obs))

    def split(self, size: int) -> list[Self]:
        """Split into consecutive batches of `size` rows, views; the last may be shorter."""
        columns = [_split(getattr(self, f.name), size) for f in fields(self)]
        return [type(self)(*values) for values in zip(*columns, strict=True)]


@dataclass
class RecurrentBatch(Batch):
    """Minibatch for a recurrent policy."""

    episode_starts: torch.Tensor
    """(N,) bool: True in the first step of an episode, and in each env's first step of the rollout."""
    hidden_state: Obs
    """Hidden state before the step, (N, ...) each; zero at the first step of an episode."""


def _joined(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.cat([one, other])


def _split(obs: LazyObs, size: int) -> Sequence[LazyObs]:
    if isinstance(obs, dict):
        columns = [_split(value, size) for value in obs.values()]
        return [dict(zip(obs, values, strict=True)) for values in zip(*columns, strict=True)]
    return obs.split(size)


class Rollout:
    """Rollout buffer of `n_steps` steps of `n_envs` envs, filled once per iteration and read by one update.

    `frames` maps image observations to the length of their frame stacks; the buffer stores each frame once.
    """

    def __init__(
        self, n_steps: int, n_envs: int, device: torch.device, frames: Mapping[str, int] | None = None
    ) -> None:
        self.n_steps, self.n_envs, self.device, self.frames = n_steps, n_envs, device, frames or {}

        def zeros(dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(n_steps, n_envs, dtype=dtype, device=device)

        self.rewards, self.values, self.log_probs, self.advantages, self.returns = (zeros() for _ in range(5))
        self.done = zeros(torch.bool)
        self.episode_return, self.episode_length, self.success = zeros(), zeros(torch.int64), zeros(torch.bool)
        self.obs: Obs | None = None  # (T, n, ...), allocated at the first step, without frame stacks
        self._images: dict[str, torch.Tensor] = {}  # (frames - 1 + T, n, H, W, C), with step 0's earlier frames
        self.actions: torch.Tensor | None = None
        self.hidden_state: Obs | None = None  # (T, n, ...), recurrent policies only
        self._truncations: list[tuple[int, torch.Tensor, torch.Tensor | None, Obs]] = []

    def begin(self) -> None:
        """Clear the truncations and successes of the previous rollout. The new rollout overwrites all other data."""
        self._truncations.clear()
        self.success.zero_()

    def store_obs(self, step: int, obs: Obs) -> Obs:
        """Store `obs` (n, ...) of `step` and return it; entries without frame stacks are views of the buffer."""
        frames, rest = split_newest(obs, self.frames)
        if self.obs is None:
            self.obs = tree_map(lambda x: x.new_zeros(self.n_steps, *x.shape), rest)
            for name, frame in frames.items():
                self._images[name] = frame.new_zeros(self.frames[name] - 1 + self.n_steps, *frame.shape)
        stacks: dict[str, Any] = {name: obs[name] if isinstance(obs, dict) else obs for name in frames}
        for name, frame in frames.items():
            earlier = self.frames[name] - 1
            self._images[name][earlier + step] = frame
            if step == 0:
                self._images[name][:earlier] = channels_last(stacks[name][:, :-1]).transpose(0, 1)
        stored = tree_map(lambda column, value: column[step].copy_(value), self.obs, rest)
        return with_stacks(stored, stacks)

    def store_actions(self, step: int, actions: torch.Tensor) -> torch.Tensor:
        """Store `actions` (n, ...) of `step` and return the stored copy: a CUDA graph overwrites `actions` later."""
        if self.actions is None:
            self.actions = actions.new_zeros(self.n_steps, *actions.shape)
        self.actions[step] = actions
        return self.actions[step]

    def store_hidden_state(self, step: int, hidden_state: Obs) -> None:
        """Store the policy's hidden state before `step`, (n, ...) each."""
        if self.hidden_state is None:
            self.hidden_state = tree_map(lambda x: x.new_zeros(self.n_steps, *x.shape), hidden_state)
        tree_map(lambda column, value: column[step].copy_(value), self.hidden_state, hidden_state)

    def store_truncated(
        self, step: int, truncated: torch.Tensor, final_obs: Obs, done_envs: torch.Tensor | None = None
    ) -> None:
        """Store `final_obs` (n, ...) of the envs where `truncated` (n,) bool is True at `step`.

        On a GPU, selecting these envs would wait for the GPU, so the rows of all `done_envs` (E,) are stored
        (`BatchEnv.done_envs`). If it is None: the rows of all envs, or, with frame stacks, of the truncated envs only.
        """
        select = truncated.device.type == "cpu" or (self.frames and done_envs is None)
        envs = truncated.nonzero().flatten() if select else done_envs
        rows = tree_map(lambda x: x.clone() if envs is None else x[envs], final_obs)
        self._truncations.append((step, truncated, envs, rows))

    def bootstrap(self, value: Callable[[Obs], torch.Tensor], gamma: float) -> None:
        """Add γ V(final observation) to the rewards of truncated steps, since a time limit is not part of the task."""
        if not self._truncations:
            return
        values = value(tree_map(lambda *x: torch.cat(x), *(rows for *_, rows in self._truncations)))
        sizes = [self.n_envs if envs is None else len(envs) for _, _, envs, _ in self._truncations]
        for (step, truncated, envs, _), final_values in zip(self._truncations, values.split(sizes), strict=True):
            if envs is None:
                self.rewards[step] += gamma * final_values * truncated
            else:
                self.rewards[step, envs] += gamma * final_values * truncated[envs]

    def finish(self, last_values: torch.Tensor, gamma: float, gae_lambda: float) -> None:
        """Compute `advantages` and the TD(λ) `returns` (T, n) from `last_values` (n,)."""
        self.advantages = gae(self.rewards, self.values, self.done, last_values, gamma, gae_lambda)
        self.returns = self.advantages + self.values

    def batch(self) -> Batch:
        """Return all transitions as views; row t · n_envs + env is step t of env."""
        assert self.obs is not None and self.actions is not None
        obs = with_stacks(tree_map(lambda x: x.flatten(0, 1), self.obs), self._clips())
        flat = [obs, self.actions.flatten(0, 1)]
        columns = (self.values, self.log_probs, self.advantages, self.returns)
        batch = Batch(*flat, *(column.flatten() for column in columns))
        if self.hidden_state is None:
            return batch
        episode_starts = torch.cat([torch.ones_like(self.done[:1]), self.done[:-1]]).flatten()
        hidden_state = tree_map(lambda x: x.flatten(0, 1), self.hidden_state)
        return RecurrentBatch(**vars(batch), episode_starts=episode_starts, hidden_state=hidden_state)

    def _clips(self) -> dict[str, Clips]:
        """Return the frame stacks of all rows, in the order of `batch`."""
        clips: dict[str, Clips] = {}
        for name, frames in self.frames.items():
            earlier = frames - 1
            step = torch.arange(self.n_steps, device=self.device).unsqueeze(1).expand(-1, self.n_envs)
            # the stored frames before step 0 count as part of step 0's episode, which thus starts at step -earlier
            starts = torch.where(self.done[:-1], step[1:], -earlier)
            first = torch.cat([torch.full_like(step[:1], -earlier), starts]).cummax(0).values
            row = (frame_steps(step, first, frames) + earlier) * self.n_envs
            env = torch.arange(self.n_envs, device=self.device).unsqueeze(1)
            clips[name] = Clips(self._images[name].flatten(0, 1), (row + env).flatten(0, 1))
        return clips
