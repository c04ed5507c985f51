"""Off-policy data: a ring of the latest transitions of every world, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kit.envs.obs import Obs, from_leaves, leaves
from kit.format.segments import DONE, RAGGED, Segment
from kit.trainers.clips import newest, with_stacks
from kit.trainers.image_ring import FRAMES, Pictures


@dataclass
class Transitions:
    """A batch of N: observed, did, was paid, saw next; `terminated` says that nothing follows."""

    obs: Obs
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: Obs
    terminated: torch.Tensor


class Replay:
    """The last `capacity` rows; a row is one step of all `n_envs` worlds.

    Rows are numbered from the first one ever added; row `r` lies in slot `r % capacity`. Memory is claimed from the
    system as it is first written. A transition takes twice its observation, its action and 5 B more: of Reach 2 × 24
    and 7 numbers of 4 B, 0.23 GB for a million.

    Of the stacks of pictures that `frames` names every frame lies here once: a row has the newest, and where an episode
    ended there is one more, the last. A clip of 8 frames 3×64×64 takes 12 kB in place of the 197 of a pair of stacks.
    Full, the ring cannot put together its oldest rows' stacks any more and does not sample them.
    """

    def __init__(
        self, capacity: int, n_envs: int, device: torch.device, frames: Mapping[str, int] | None = None
    ) -> None:
        self.capacity, self.n_envs, self.device, self.frames = capacity, n_envs, device, frames or {}
        self.written = 0
        self.first = 0
        """The first row that is there: later than 0 where earlier ones were lost."""
        self.breaks: list[int] = []
        """Rows after which every world began anew although no episode had ended: what followed them was not seen."""
        self._columns: dict[str, torch.Tensor] = {}
        given = capacity, n_envs, device
        self._pictures = {name: Pictures(name, count, *given) for name, count in self.frames.items()}
        self._begun: torch.Tensor | None = None  # (capacity, n): see `_episodes`

    def __len__(self) -> int:
        """Rows that can be sampled."""
        return max(0, self.written - self._oldest)

    @property
    def _oldest(self) -> int:
        """The first row that can be sampled."""
        there = max(self.first, self.written - self.capacity)
        return there + (max(self.frames.values(), default=1) - 1 if there else 0)

    def add(
        self, obs: Obs, actions: torch.Tensor, rewards: torch.Tensor, next_obs: Obs, terminated: torch.Tensor,
        done: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Append one row: every argument has leading size `n_envs`. `next_obs` is what truly followed, `done` (bool)
        where an episode ended with it."""
        pictures, rest = newest(obs, self.frames)
        following, next_rest = newest(next_obs, self.frames)
        row = dict([*leaves("obs", rest), *leaves("next_obs", next_rest)])
        row |= {"actions": actions, "rewards": rewards, "terminated": terminated}
        slot = self.written % self.capacity
        if self.frames:
            assert done is not None
            row[DONE] = done
            self._note_episode_starts(slot)
            for name, kept in self._pictures.items():
                kept.add(slot, pictures[name], following[name], done)
        for name, value in row.items():
            self._column(name, value)[slot] = value
        self.written += 1

    def sample(self, size: int) -> Transitions:
        """`size` transitions, drawn with replacement by torch's global generator."""
        index = torch.randint(len(self) * self.n_envs, (size,), device=self.device) + self._oldest * self.n_envs
        for cut in self.breaks:
            index = torch.where(index // self.n_envs == cut, index + self.n_envs, index)
        row, world = index // self.n_envs, index % self.n_envs
        index = index % (self.capacity * self.n_envs)
        drawn = {name: column.flatten(0, 1).index_select(0, index) for name, column in self._columns.items()}
        obs, next_obs = from_leaves("obs", drawn), from_leaves("next_obs", drawn)
        if self.frames:
            begun = self._episodes().flatten().index_select(0, index)
            seen = {name: kept.seen(row, world, begun, self.written) for name, kept in self._pictures.items()}
            obs = with_stacks(obs, {name: now for name, (now, _) in seen.items()})
            next_obs = with_stacks(next_obs, {name: then for name, (_, then) in seen.items()})
        return Transitions(obs, drawn["actions"], drawn["rewards"], next_obs, drawn["terminated"])

    def rows(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Copies of rows `start` to `stop` on the CPU: column name -> (stop - start, n_envs, ...), and of pictures with
        which episodes ended one for each True in the column "done"."""
        if not max(self.first, self.written - self.capacity) <= start <= stop <= self.written:
            raise ValueError(f"rows {start} to {stop} are not all among the last {len(self)} of {self.written}")
        slots = torch.arange(start, stop, device=self.device) % self.capacity
        rows = {name: column.index_select(0, slots).cpu() for name, column in self._columns.items()}
        for pictures in self._pictures.values():
            rows |= pictures.rows(slots)
        return rows

    def load(self, rows: dict[str, torch.Tensor], start: int) -> None:
        """Put `rows` (as from `rows()`, the first one numbered `start`) back; `written` says which still count."""
        stop = start + len(rows["rewards"])
        first, last = max(start, self.written - self.capacity), min(stop, self.written)
        slots = torch.arange(first, max(first, last), device=self.device) % self.capacity
        rows = Segment(start, rows).part(first - start, first - start + len(slots)).rows
        for pictures in self._pictures.values():
            pictures.load(slots, rows)
        for name, value in rows.items():
            if len(value) and not name.startswith((RAGGED, FRAMES)):
                self._column(name, value[0]).index_copy_(0, slots, value.to(self.device))
        self._begun = None

    def forget(self) -> None:
        """Nothing that was written so far is there any more."""
        self.first = self.written

    def go_on(self, obs: Obs) -> None:
        """The worlds, put back as they were, are seen as `obs`."""
        for name, picture in newest(obs, self.frames)[0].items():
            self._pictures[name].latest = picture.clone()

    def note_reset(self) -> None:
        """The worlds begin new episodes, whatever they were doing."""
        if self.written and self.frames:
            self.breaks.append(self.written - 1)

    def _note_episode_starts(self, slot: int) -> None:
        """Of the row that is about to be written to `slot`."""
        if self.written == self.first:  # nothing is there, at first or after a loss
            self._begun = torch.zeros(self.capacity, self.n_envs, dtype=torch.int64, device=self.device)
            return
        begun, before = self._episodes(), (self.written - 1) % self.capacity
        ended = self._columns[DONE][before] | (self.written - 1 in self.breaks)
        begun[slot] = torch.where(ended, self.written, begun[before])

    def _episodes(self) -> torch.Tensor:
        """Of each row in the ring (capacity, n_envs) the number of the row with which its episode began, or an earlier
        one where that is out of sight."""
        if self._begun is not None:
            return self._begun
        there = torch.arange(max(self.first, self.written - self.capacity), self.written, device=self.device)
        ended = self._columns[DONE].index_select(0, there % self.capacity)
        for cut in self.breaks:
            ended[there == cut] = True
        begun = torch.zeros_like(ended, dtype=torch.int64)
        begun[1:] = torch.where(ended[:-1], there[1:].unsqueeze(1), 0).cummax(0).values
        whole = torch.zeros(self.capacity, self.n_envs, dtype=torch.int64, device=self.device)
        self._begun = whole.index_copy_(0, there % self.capacity, begun)
        return self._begun

    def _column(self, name: str, row: torch.Tensor) -> torch.Tensor:
        if name not in self._columns:
            shape = (self.capacity, *row.shape)
            self._columns[name] = torch.empty(shape, dtype=row.dtype, device=self.device)  # empty: nothing touched yet
        return self._columns[name]
