"""Replay buffer: a ring of the latest transitions of all envs, as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kit.envs.obs import Obs, from_leaves, leaves, tree_map
from kit.format.segments import DONE, RAGGED, Segment
from kit.trainers.clips import split_newest, with_stacks
from kit.trainers.image_ring import FRAMES, ImageRing


@dataclass
class Transitions:
    """A batch of transitions; every tensor has leading size N."""

    obs: Obs
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: Obs
    terminated: torch.Tensor


def both(a: Transitions, b: Transitions) -> Transitions:
    """Return the transitions of `a`, then those of `b`."""
    pairs = zip(vars(a).values(), vars(b).values(), strict=True)
    return Transitions(*(tree_map(lambda *x: torch.cat(x), *pair) for pair in pairs))


class Replay:
    """Ring buffer of the last `capacity` rows; a row is one step of all `n_envs` envs.

    Rows are numbered from the first ever added, 0; row `r` is in slot `r % capacity`. On a CPU, the operating system
    provides the memory only as rows are first written.

    `frames` maps image observations to the length T of their frame stacks. Each image is stored once: a row has the
    newest one only, and the last row of an episode also its final image. When the ring is full, its oldest T - 1 rows
    are not sampled, because earlier images of their stacks are overwritten.
    """

    def __init__(
        self, capacity: int, n_envs: int, device: torch.device, frames: Mapping[str, int] | None = None
    ) -> None:
        self.capacity, self.n_envs, self.device, self.frames = capacity, n_envs, device, frames or {}
        self.keeps_done = bool(self.frames)
        """Whether rows hold the column "done"."""
        self.written = 0
        self.first = 0
        """`forget` dropped all rows with smaller numbers; 0 if it was never called."""
        self.breaks: list[int] = []
        """Rows after which all envs were reset without `done`, at a resume. They are not sampled, because their
        `next_obs` is unknown. Recorded only if `keeps_done`."""
        self._columns: dict[str, torch.Tensor] = {}
        self._images = {name: ImageRing(name, count, capacity, n_envs, device) for name, count in self.frames.items()}
        self._episode_starts: torch.Tensor | None = None  # (capacity, n): see `_first_rows`

    def __len__(self) -> int:
        """Number of rows that can be sampled."""
        return max(0, self.written - self._oldest)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, written or not, once the first row is stored; the images of episodes' ends excepted."""
        rings = [images.ring for images in self._images.values() if images.ring is not None]
        return sum(tensor.nbytes for tensor in (*self._columns.values(), *rings))

    @property
    def _oldest(self) -> int:
        """Number of the oldest row that can be sampled."""
        stored = max(self.first, self.written - self.capacity)
        return stored + (max(self.frames.values(), default=1) - 1 if stored else 0)

    def add(
        self, obs: Obs, actions: torch.Tensor, rewards: torch.Tensor, next_obs: Obs, terminated: torch.Tensor,
        done: torch.Tensor | None = None, done_envs: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Append one row; every argument but `done_envs` has leading size `n_envs`.

        `next_obs` is the next observation of the same episode, never the first of the next one; `done` (bool) is True
        in the last step of an episode and needed only if `keeps_done`; `done_envs` (E,) are the indices of its Trues
        (`BatchEnv.done_envs`), computed here if None.
        """
        images, rest = split_newest(obs, self.frames)
        next_images, next_rest = split_newest(next_obs, self.frames)
        row = dict([*leaves("obs", rest), *leaves("next_obs", next_rest)])
        row |= {"actions": actions, "rewards": rewards, "terminated": terminated}
        slot = self.written % self.capacity
        if self.keeps_done:
            assert done is not None
            row[DONE] = done
            if self.frames:
                self._store_first_row(slot)
                done_envs = done.nonzero().flatten() if done_envs is None else done_envs
                for name, ring in self._images.items():
                    ring.add(slot, images[name], next_images[name], done_envs)
        for name, value in row.items():
            self._column(name, value)[slot] = value
        self.written += 1

    def sample(self, size: int, with_next: bool = True) -> Transitions:
        """Sample `size` transitions with replacement, from torch's global generator.

        Without `with_next`, `next_obs` lacks the frame stacks, which take time to gather.
        """
        return self._gather(*self._draw(size), with_next)

    def _draw(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the row numbers (N,) and envs (N,) of `size` random transitions."""
        index = torch.randint(len(self) * self.n_envs, (size,), device=self.device) + self._oldest * self.n_envs
        for reset_row in self.breaks:
            index = torch.where(index // self.n_envs == reset_row, index + self.n_envs, index)
        return index // self.n_envs, index % self.n_envs

    def _gather(self, row: torch.Tensor, env: torch.Tensor, with_next: bool) -> Transitions:
        """Return the transitions of the envs `env` (N,) in the rows `row` (N,)."""
        index = row % self.capacity * self.n_envs + env
        batch = {name: column.flatten(0, 1).index_select(0, index) for name, column in self._columns.items()}
        obs, next_obs = from_leaves("obs", batch), from_leaves("next_obs", batch)
        if self.frames:
            episode_start = self._first_rows().flatten().index_select(0, index)
            stacks = {name: ring.stacks(row, env, episode_start) for name, ring in self._images.items()}
            obs = with_stacks(obs, {name: stack.movedim(-1, -3) for name, stack in stacks.items()})
            if with_next:
                next_stacks = {
                    name: ring.next_stacks(stacks[name], row, env, self.written) for name, ring in self._images.items()
                }
                next_obs = with_stacks(next_obs, {name: stack.movedim(-1, -3) for name, stack in next_stacks.items()})
        return Transitions(obs, batch["actions"], batch["rewards"], next_obs, batch["terminated"])

    def rows(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Copy rows `start` to `stop` - 1 to the CPU: column name -> (stop - start, n_envs, ...).

        Columns of final images have instead one entry per True in the column "done".
        """
        if not max(self.first, self.written - self.capacity) <= start <= stop <= self.written:
            raise ValueError(f"rows {start} to {stop} are not all among the last {len(self)} of {self.written}")
        slots = torch.arange(start, stop, device=self.device) % self.capacity
        rows = {name: column.index_select(0, slots).cpu() for name, column in self._columns.items()}
        for ring in self._images.values():
            rows |= ring.rows(slots)
        return rows

    def load(self, rows: dict[str, torch.Tensor], start: int) -> None:
        """Restore `rows`, returned by `rows()`; the first one has number `start`.

        Ignores rows numbered `written` or higher, and rows older than the last `capacity` rows before `written`.
        """
        stop = start + len(rows["rewards"])
        first, last = max(start, self.written - self.capacity), min(stop, self.written)
        slots = torch.arange(first, max(first, last), device=self.device) % self.capacity
        rows = Segment(start, rows).part(first - start, first - start + len(slots)).rows
        for ring in self._images.values():
            ring.load(slots, rows)
        for name, value in rows.items():
            if len(value) and not name.startswith((RAGGED, FRAMES)):
                self._column(name, value[0]).index_copy_(0, slots, value.to(self.device))
        self._episode_starts = None

    def forget(self) -> None:
        """Drop all rows written so far."""
        self.first = self.written

    def continue_from(self, obs: Obs) -> None:
        """Store the images of `obs`, the observation of the restored envs, as the next images of the last row."""
        for name, image in split_newest(obs, self.frames)[0].items():
            self._images[name].latest = image.clone()

    def note_reset(self) -> None:
        """Record that all envs were reset without `done` after the last row."""
        if self.written and self.keeps_done:
            self.breaks.append(self.written - 1)

    def _store_first_row(self, slot: int) -> None:
        """Store, for the row about to be written to `slot`, the first row of each env's episode."""
        if self.written == self.first:  # the buffer is empty: it is new, or `forget` was called
            self._episode_starts = torch.zeros(self.capacity, self.n_envs, dtype=torch.int64, device=self.device)
            return
        first_row, last = self._first_rows(), (self.written - 1) % self.capacity
        ended = self._columns[DONE][last] | (self.written - 1 in self.breaks)
        first_row[slot] = torch.where(ended, self.written, first_row[last])

    def _first_rows(self) -> torch.Tensor:
        """Return, for each slot and env, the number of the first row of its episode, (capacity, n_envs).

        If that row has been overwritten, the returned number may be too small.
        """
        if self._episode_starts is not None:
            return self._episode_starts
        rows = torch.arange(max(self.first, self.written - self.capacity), self.written, device=self.device)
        ended = self._columns[DONE].index_select(0, rows % self.capacity)
        for reset_row in self.breaks:
            ended[rows == reset_row] = True
        starts = torch.zeros_like(ended, dtype=torch.int64)
        starts[1:] = torch.where(ended[:-1], rows[1:].unsqueeze(1), 0).cummax(0).values
        ring = torch.zeros(self.capacity, self.n_envs, dtype=torch.int64, device=self.device)
        self._episode_starts = ring.index_copy_(0, rows % self.capacity, starts)
        return self._episode_starts

    def _column(self, name: str, row: torch.Tensor) -> torch.Tensor:
        """Return the column `name`; the first call allocates it, for rows of the shape and dtype of `row` (n, ...)."""
        if name not in self._columns:
            shape = (self.capacity, *row.shape)
            self._columns[name] = torch.empty(shape, dtype=row.dtype, device=self.device)  # on a CPU: no memory yet
        return self._columns[name]
