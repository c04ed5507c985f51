"""One rollout of every world as tensors (steps, worlds, ...) on the training device, and its returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch

from kit.envs.obs import Obs, tree_map
from kit.trainers.clips import Clips, Seen, before, channels_last, newest, seen, with_stacks


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    done: torch.Tensor,
    last_values: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Generalized advantage estimates (T, n) (Schulman et al., 2015).

    `rewards`, `values`, `done` (bool) are (T, n), `last_values` (n,) is the value of what follows the last step.
    A world that is done, for whichever reason, starts anew: no value crosses. Where time ran out, the value of what
    would have followed belongs to the reward already (`Rollout.bootstrap`).
    """
    going_on = (~done).to(values.dtype)
    next_values = torch.cat([values[1:], last_values.unsqueeze(0)])
    delta = rewards + gamma * next_values * going_on - values  # δ_t = r_t + γ V(s_t+1) - V(s_t)
    carry = gamma * gae_lambda * going_on
    advantages = torch.empty_like(delta)
    last = torch.zeros_like(last_values)
    for delta_t, carry_t, out in zip(reversed(delta.unbind()), reversed(carry.unbind()), reversed(advantages.unbind()),
                                     strict=True):  # fmt: skip
        last = torch.addcmul(delta_t, carry_t, last, out=out)  # A_t = δ_t + γλ A_t+1
    return advantages


@dataclass
class Batch:
    """Transitions in any order, leading size N: what an update learns from."""

    obs: Seen
    actions: torch.Tensor
    values: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor

    def __len__(self) -> int:
        return self.returns.shape[0]

    def take(self, index: torch.Tensor) -> Self:
        """The rows `index` (k,), copied."""
        return type(self)(*(tree_map(lambda x: x.index_select(0, index), getattr(self, f.name)) for f in fields(self)))

    def assembled(self) -> Self:
        """With every stack of frames put together: `obs` as the networks see them."""
        return replace(self, obs=seen(self.obs))

    def split(self, size: int) -> list[Self]:
        """Consecutive pieces of `size` rows, the last one possibly shorter; views."""
        columns = [_split(getattr(self, f.name), size) for f in fields(self)]
        return [type(self)(*piece) for piece in zip(*columns, strict=True)]


@dataclass
class RecurrentBatch(Batch):
    """Those of a policy that remembers."""

    episode_starts: torch.Tensor
    """(N,) bool: the first step that the rollout has of a world, or of an episode."""
    hidden_state: Obs
    """What was remembered before the step, (N, ...) each; in an episode's first as of one that remembers nothing."""


def _split(obs: Seen, size: int) -> Sequence[Seen]:
    if isinstance(obs, dict):
        pieces = [_split(value, size) for value in obs.values()]
        return [dict(zip(obs, piece, strict=True)) for piece in zip(*pieces, strict=True)]
    return obs.split(size)


class Rollout:
    """Storage for `n_steps` steps of `n_envs` worlds, written once per iteration and read by one update. Of the stacks
    of pictures that `frames` names it keeps every frame once."""

    def __init__(
        self, n_steps: int, n_envs: int, device: torch.device, frames: Mapping[str, int] | None = None
    ) -> None:
        self.n_steps, self.n_envs, self.device, self.frames = n_steps, n_envs, device, frames or {}

        def zeros(dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(n_steps, n_envs, dtype=dtype, device=device)

        self.rewards, self.values, self.log_probs, self.advantages, self.returns = (zeros() for _ in range(5))
        self.done = zeros(torch.bool)
        self.episode_return, self.episode_length, self.success = zeros(), zeros(torch.int64), zeros(torch.bool)
        self.obs: Obs | None = None  # (T, n, ...), made when the first ones are seen; of stacks there are only
        self._pictures: dict[str, torch.Tensor] = {}  # (those before the first step and T, n, H, W, C)
        self.actions: torch.Tensor | None = None
        self.hidden_state: Obs | None = None  # (T, n, ...), of policies that have one
        self._cuts: list[tuple[int, torch.Tensor, torch.Tensor | None, Obs]] = []

    def begin(self) -> None:
        self._cuts.clear()
        self.success.zero_()

    def observe(self, step: int, obs: Obs) -> Obs:
        """Store `obs` (n, ...) of `step` and return it as stored."""
        frames, rest = newest(obs, self.frames)
        if self.obs is None:
            self.obs = tree_map(lambda x: x.new_zeros(self.n_steps, *x.shape), rest)
            for name, frame in frames.items():
                self._pictures[name] = frame.new_zeros(self.frames[name] - 1 + self.n_steps, *frame.shape)
        stacks: dict[str, Any] = {name: obs[name] if isinstance(obs, dict) else obs for name in frames}
        for name, frame in frames.items():
            earlier = self.frames[name] - 1
            self._pictures[name][earlier + step] = frame
            if step == 0:
                self._pictures[name][:earlier] = channels_last(stacks[name][:, :-1]).transpose(0, 1)
        kept = tree_map(lambda kept, value: kept[step].copy_(value), self.obs, rest)
        return with_stacks(kept, stacks)

    def act(self, step: int, actions: torch.Tensor) -> torch.Tensor:
        """Store `actions` (n, ...) of `step`; returns the row that holds them until the next rollout, while a recorded
        graph writes every step's to one address."""
        if self.actions is None:
            self.actions = actions.new_zeros(self.n_steps, *actions.shape)
        self.actions[step] = actions
        return self.actions[step]

    def store_hidden_state(self, step: int, hidden_state: Obs) -> None:
        """Store what the policy remembered, (n, ...) each, before it saw `step`."""
        if self.hidden_state is None:
            self.hidden_state = tree_map(lambda x: x.new_zeros(self.n_steps, *x.shape), hidden_state)
        tree_map(lambda kept, part: kept[step].copy_(part), self.hidden_state, hidden_state)

    def cut(self, step: int, truncated: torch.Tensor, final_obs: Obs) -> None:
        """Note the worlds `truncated` (n,) bool, which time stopped at `step` as they were in `final_obs` (n, ...).
        Only their rows are kept; on a GPU, which is not asked which those are, all, unless they are pictures."""
        asked = truncated.device.type == "cpu" or self.frames
        worlds = truncated.nonzero().flatten() if asked else None
        rows = tree_map(lambda x: x.clone() if worlds is None else x[worlds], final_obs)
        self._cuts.append((step, truncated, worlds, rows))

    def bootstrap(self, value: Callable[[Obs], torch.Tensor], gamma: float) -> None:
        """Time is not part of the task: where it ran out, the reward gains γ V(final observation)."""
        if not self._cuts:
            return
        values = value(tree_map(lambda *x: torch.cat(x), *(rows for *_, rows in self._cuts)))
        sizes = [self.n_envs if worlds is None else len(worlds) for _, _, worlds, _ in self._cuts]
        for (step, truncated, worlds, _), worth in zip(self._cuts, values.split(sizes), strict=True):
            if worlds is None:
                self.rewards[step] += gamma * worth * truncated
            else:
                self.rewards[step, worlds] += gamma * worth

    def finish(self, last_values: torch.Tensor, gamma: float, gae_lambda: float) -> None:
        """Compute `advantages` and the TD(λ) `returns` (T, n) from `last_values` (n,)."""
        self.advantages = gae(self.rewards, self.values, self.done, last_values, gamma, gae_lambda)
        self.returns = self.advantages + self.values

    def batch(self) -> Batch:
        """All transitions, step-major: row t · n_envs + world. Views, no copies."""
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
        """The stacks, step-major."""
        clips: dict[str, Clips] = {}
        for name, frames in self.frames.items():
            earlier = frames - 1
            step = torch.arange(self.n_steps, device=self.device).unsqueeze(1).expand(-1, self.n_envs)
            anew = torch.where(self.done[:-1], step[1:], -earlier)  # what was seen before the first step is one's own
            first = torch.cat([torch.full_like(step[:1], -earlier), anew]).cummax(0).values
            row = (before(step, first, frames) + earlier) * self.n_envs
            world = torch.arange(self.n_envs, device=self.device).unsqueeze(1)
            clips[name] = Clips(self._pictures[name].flatten(0, 1), (row + world).flatten(0, 1))
        return clips
