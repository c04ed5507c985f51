"""The pictures of a replay: every frame that a world showed, once."""

from __future__ import annotations

import torch

from kit.format.segments import DONE, RAGGED
from kit.trainers.clips import before

FRAMES = "frames."


class Pictures:
    """Of one camera: a ring of the newest frame of each row, and a pool of those with which episodes ended, which grows
    as it must. Frames are uint8 (H, W, C)."""

    def __init__(self, name: str, frames: int, capacity: int, n_envs: int, device: torch.device) -> None:
        self.name, self.frames, self.capacity, self.n_envs, self.device = name, frames, capacity, n_envs, device
        self.ring: torch.Tensor | None = None
        """(capacity, n, H, W, C)"""
        self.latest: torch.Tensor | None = None
        """(n, H, W, C): what was seen after the last row."""
        self._end = torch.full((capacity, n_envs), -1, device=device)
        """Where in the pool the last frame lies of an episode that ended with this row."""
        self._pool: torch.Tensor | None = None
        self._free: list[int] = []

    def add(self, slot: int, seen: torch.Tensor, following: torch.Tensor, done: torch.Tensor) -> None:
        """Put the frames `seen` (n, H, W, C) into `slot`; what followed is kept of worlds that are `done`."""
        self._memory(seen)[slot] = seen
        self._put_ends(torch.tensor([slot], device=self.device), done.unsqueeze(0), following[done])
        self.latest = following.clone()

    def seen(
        self, row: torch.Tensor, world: torch.Tensor, begun: torch.Tensor, written: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stacks (N, T, C, H, W) as they were in the rows `row` (N,) of worlds `world` (N,), in episodes that began
        with the rows `begun` (N,), and those after."""
        assert self.ring is not None and self.latest is not None
        flat = self.ring.flatten(0, 1)

        def at(rows: torch.Tensor, worlds: torch.Tensor) -> torch.Tensor:
            index = rows % self.capacity * self.n_envs + worlds
            return flat.index_select(0, index.flatten()).unflatten(0, index.shape)

        stack = at(before(row, begun, self.frames), world.unsqueeze(1))
        following = at(row + 1, world)
        last = (row == written - 1).nonzero().flatten()
        following[last] = self.latest[world[last]]
        end = self._end[row % self.capacity, world]
        ended = (end >= 0).nonzero().flatten()
        if self._pool is not None:
            following[ended] = self._pool[end[ended]]
        after = torch.cat([stack[:, 1:], following.unsqueeze(1)], dim=1)
        return stack.movedim(-1, -3), after.movedim(-1, -3)

    def rows(self, slots: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies, as columns of a segment."""
        if self.ring is None:
            return {}
        end = self._end.index_select(0, slots).flatten()
        pool = self.ring.new_zeros(0, *self.ring.shape[2:]) if self._pool is None else self._pool
        ends = pool.index_select(0, end[end >= 0])
        return {FRAMES + self.name: self.ring.index_select(0, slots).cpu(), RAGGED + self.name: ends.cpu()}

    def load(self, slots: torch.Tensor, rows: dict[str, torch.Tensor]) -> None:
        """Put columns as from `rows` back."""
        frames = rows[FRAMES + self.name].to(self.device)
        if len(frames):
            self._memory(frames[0]).index_copy_(0, slots, frames)
            self._put_ends(slots, rows[DONE].to(self.device), rows[RAGGED + self.name].to(self.device))

    def _put_ends(self, slots: torch.Tensor, done: torch.Tensor, ends: torch.Tensor) -> None:
        """Keep the last frames `ends` (E, H, W, C) of the rows in `slots` (k,), one for each True in `done` (k, n)."""
        old = self._end.index_select(0, slots)
        self._free.extend(old[old >= 0].tolist())
        places = torch.full_like(old, -1)
        if len(ends):
            pool = self._room(ends)
            index = torch.tensor([self._free.pop() for _ in range(len(ends))], device=self.device)
            pool[index] = ends
            places[done] = index
        self._end.index_copy_(0, slots, places)

    def _room(self, ends: torch.Tensor) -> torch.Tensor:
        """The pool, with so many free places at least."""
        size = 0 if self._pool is None else len(self._pool)
        lacking = len(ends) - len(self._free)
        if self._pool is None or lacking > 0:
            more = max(lacking, size // 4, 16)
            fresh = ends.new_zeros(more, *ends.shape[1:])
            self._pool = fresh if self._pool is None else torch.cat([self._pool, fresh])
            self._free.extend(range(size + more - 1, size - 1, -1))
        return self._pool

    def _memory(self, frames: torch.Tensor) -> torch.Tensor:
        if self.ring is None:  # empty: claimed from the system as it is first written
            shape = (self.capacity, *frames.shape)
            self.ring = torch.empty(shape, dtype=frames.dtype, device=self.device)
        return self.ring
