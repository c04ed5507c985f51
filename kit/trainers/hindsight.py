"""Hindsight experience replay (HER; Andrychowicz et al., 2017): learn from goals that were reached by accident.

In a share of the sampled transitions (s, a, g, s'), the goal g is replaced by a goal g' that was achieved later in the
same episode (strategy `future`):

    t' ~ U{t, ..., T},   g' = achieved goal after step t',   r' = r(achieved goal after step t, g')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from gymnasium import Space, spaces

from kit.envs.obs import Obs
from kit.format.segments import DONE
from kit.trainers.replay import Replay, Transitions

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
ENTRIES = frozenset({"observation", ACHIEVED, DESIRED})
"""Entries of the observation of a goal task, as in Gymnasium-Robotics' `GoalEnv`."""

RewardFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(achieved goals (N, ...), desired goals (N, ...)) -> rewards (N,)."""


def has_goals(space: Space) -> bool:
    """Return whether observations of `space` have the entries of a goal task."""
    return isinstance(space, spaces.Dict) and set(space.spaces) >= ENTRIES


class HindsightReplay(Replay):
    """Replay buffer that replaces the goals of sampled transitions by goals achieved later in the same episode.

    Of every `n_sampled_goal` + 1 transitions in a batch, `n_sampled_goal` get another goal. Unlike SB3's buffer, this
    one also samples from episodes that have not ended, up to their newest row.
    """

    def __init__(
        self,
        capacity: int,
        n_envs: int,
        device: torch.device,
        frames: Mapping[str, int] | None,
        n_sampled_goal: int,
        compute_reward: RewardFunction,
    ) -> None:
        super().__init__(capacity, n_envs, device, frames)
        self.keeps_done = True
        self.replaced_share = 1 - 1 / (n_sampled_goal + 1)
        self._compute_reward = compute_reward
        self._episodes: torch.Tensor | None = None
        """(capacity, n): episode of each slot, numbered per env from 0, modulo capacity; None: still to be computed."""
        self._last_rows: torch.Tensor
        """(capacity, n): last row of each episode, by the episode's number."""
        self._episode: torch.Tensor
        """(n,): number of the current episode of each env."""

    def add(
        self, obs: Obs, actions: torch.Tensor, rewards: torch.Tensor, next_obs: Obs, terminated: torch.Tensor,
        done: torch.Tensor | None = None, done_envs: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        assert done is not None
        self._count_episodes()
        assert self._episodes is not None
        self._episodes[self.written % self.capacity] = self._episode
        self._last_rows.scatter_(0, self._episode.unsqueeze(0), self.written)
        self._episode = (self._episode + done) % self.capacity
        super().add(obs, actions, rewards, next_obs, terminated, done, done_envs)

    def sample(self, size: int, with_next: bool = True) -> Transitions:
        row, env = self._draw(size)
        batch, replaced = self._gather(row, env, with_next), int(self.replaced_share * size)
        goal = self._later_goal(row[:replaced], env[:replaced])
        obs, next_obs = cast(dict[str, torch.Tensor], batch.obs), cast(dict[str, torch.Tensor], batch.next_obs)
        obs[DESIRED][:replaced] = next_obs[DESIRED][:replaced] = goal
        batch.rewards[:replaced] = self._compute_reward(next_obs[ACHIEVED][:replaced], goal)
        return batch

    def load(self, rows: dict[str, torch.Tensor], start: int) -> None:
        super().load(rows, start)
        self._episodes = None

    def forget(self) -> None:
        super().forget()
        self._episodes = None

    def note_reset(self) -> None:
        super().note_reset()
        self._episodes = None

    def _later_goal(self, row: torch.Tensor, env: torch.Tensor) -> torch.Tensor:
        """Return goals (N, ...) that env `env` (N,) achieved in its row `row` (N,) or later in the same episode."""
        self._count_episodes()
        assert self._episodes is not None

        def at(column: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return column.flatten(0, 1).index_select(0, row % self.capacity * self.n_envs + env)

        left = at(self._last_rows, at(self._episodes, row)) - row + 1
        later = row + (torch.rand(len(row), dtype=torch.float64, device=self.device) * left).long()
        return at(self._columns[f"next_obs.{ACHIEVED}"], later)

    def _count_episodes(self) -> None:
        """Number the episodes of the stored rows, per env, unless that is done."""
        if self._episodes is not None:
            return
        shape, device = (self.capacity, self.n_envs), self.device
        self._episodes = torch.zeros(shape, dtype=torch.int64, device=device)
        self._last_rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._episode = torch.zeros(self.n_envs, dtype=torch.int64, device=device)
        rows = torch.arange(max(self.first, self.written - self.capacity), self.written, device=device)
        if not len(rows):
            return
        ended = self._columns[DONE].index_select(0, rows % self.capacity)
        for reset_row in self.breaks:
            ended[rows == reset_row] = True
        total = ended.long().cumsum(0)
        episodes = (total - ended.long()) % self.capacity
        self._episodes.index_copy_(0, rows % self.capacity, episodes)
        self._last_rows.scatter_reduce_(0, episodes, rows.unsqueeze(1).expand_as(episodes), "amax")
        self._episode = total[-1] % self.capacity
