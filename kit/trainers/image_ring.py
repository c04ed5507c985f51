"""Image storage of a replay buffer: each frame of each env is stored once."""

from __future__ import annotations

import torch

from kit.format.segments import DONE, RAGGED
from kit.trainers.clips import frame_steps

FRAMES = "frames."
"""Prefix of the columns of a segment that hold images."""


class ImageRing:
    """Ring buffer of one camera's images, uint8 (H, W, C). Each row holds the newest image of each env's frame stack.

    A row is one step of all envs; row r is in slot r % capacity. A pool that grows on demand holds the final image of
    each episode.
    """

    def __init__(self, name: str, frames: int, capacity: int, n_envs: int, device: torch.device) -> None:
        self.name, self.frames, self.capacity, self.n_envs, self.device = name, frames, capacity, n_envs, device
        self.ring: torch.Tensor | None = None
        """(capacity, n, H, W, C)"""
        self.latest: torch.Tensor | None = None
        """(n, H, W, C): images that follow the newest row; the ring gets them with the next row."""
        self._pool_index = torch.full((capacity, n_envs), -1, device=device)
        """Pool index of the final image of an episode that ended with this row, else -1."""
        self._pool: torch.Tensor | None = None
        self._free: list[int] = []
        """Unused indices of the pool."""
        self._used: dict[int, list[int]] = {}
        """Slot -> pool indices in its row of `_pool_index`; on the CPU, because reading the tensor waits for a GPU."""

    def add(self, slot: int, images: torch.Tensor, next_images: torch.Tensor, done_envs: torch.Tensor) -> None:
        """Store `images` (n, H, W, C) in `slot`, and `next_images` of `done_envs` (E,) as their final images."""
        self._allocated(images)[slot] = images
        self._store_final(slot, done_envs, next_images[done_envs])
        self.latest = next_images.clone()

    def stacks(self, row: torch.Tensor, env: torch.Tensor, episode_start: torch.Tensor) -> torch.Tensor:
        """Return the frame stacks (N, T, H, W, C) of N transitions.

        `row`, `env` (N,): indices of the transitions. `episode_start` (N,): first row of each transition's episode.
        """
        return self._at(frame_steps(row, episode_start, self.frames), env.unsqueeze(1))

    def next_stacks(self, stack: torch.Tensor, row: torch.Tensor, env: torch.Tensor, written: int) -> torch.Tensor:
        """Return the frame stacks (N, T, H, W, C) that follow `stack`; `written`: rows added so far."""
        next_image = self._at(row + 1, env)
        if self.latest is not None:  # None for a dataset, whose last row ends an episode
            next_image = _replaced(next_image, row == written - 1, self.latest, env)
        if self._pool is not None:
            pool_index = self._pool_index[row % self.capacity, env]
            next_image = _replaced(next_image, pool_index >= 0, self._pool, pool_index.clamp(min=0))
        return torch.cat([stack[:, 1:], next_image.unsqueeze(1)], dim=1)

    def _at(self, rows: torch.Tensor, envs: torch.Tensor) -> torch.Tensor:
        """Return the images (..., H, W, C) of `rows` (...) and `envs` (...)."""
        assert self.ring is not None
        index = rows % self.capacity * self.n_envs + envs
        return self.ring.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)

    def rows(self, slots: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copy the images in `slots` to the CPU as columns of a segment."""
        if self.ring is None:
            return {}
        pool_index = self._pool_index.index_select(0, slots).flatten()
        pool = self.ring.new_zeros(0, *self.ring.shape[2:]) if self._pool is None else self._pool
        final = pool.index_select(0, pool_index[pool_index >= 0])
        return {FRAMES + self.name: self.ring.index_select(0, slots).cpu(), RAGGED + self.name: final.cpu()}

    def load(self, slots: torch.Tensor, rows: dict[str, torch.Tensor]) -> None:
        """Restore columns from `rows()` into `slots`."""
        frames = rows[FRAMES + self.name].to(self.device)
        if len(frames):
            self._allocated(frames[0]).index_copy_(0, slots, frames)
            done, final = rows[DONE].cpu(), rows[RAGGED + self.name].to(self.device).split(rows[DONE].sum(1).tolist())
            for slot, ended, images in zip(slots.tolist(), done, final, strict=True):
                self._store_final(slot, ended.nonzero().flatten().to(self.device), images)

    def _store_final(self, slot: int, envs: torch.Tensor, final: torch.Tensor) -> None:
        """Store `final` (E, H, W, C), the last images of the episodes of `envs` (E,) that end in `slot`."""
        if slot in self._used:
            self._free.extend(self._used.pop(slot))
            self._pool_index[slot] = -1
        if not len(final):
            return
        pool = self._grown_pool(final)
        self._used[slot] = [self._free.pop() for _ in range(len(final))]
        index = torch.tensor(self._used[slot]).to(self.device, non_blocking=True)
        pool[index] = final
        self._pool_index[slot, envs] = index

    def _grown_pool(self, final: torch.Tensor) -> torch.Tensor:
        """Return the pool, with at least `len(final)` free places."""
        size = 0 if self._pool is None else len(self._pool)
        lacking = len(final) - len(self._free)
        if self._pool is None or lacking > 0:
            growth = max(lacking, size // 4, 16)
            zeros = final.new_zeros(growth, *final.shape[1:])
            self._pool = zeros if self._pool is None else torch.cat([self._pool, zeros])
            self._free.extend(range(size + growth - 1, size - 1, -1))
        return self._pool

    def _allocated(self, images: torch.Tensor) -> torch.Tensor:
        """Return the ring, allocated at the first call for images like `images` (n, H, W, C)."""
        if self.ring is None:
            shape = (self.capacity, *images.shape)
            self.ring = torch.empty(shape, dtype=images.dtype, device=self.device)  # on a CPU, no memory until written
        return self.ring


def _replaced(images: torch.Tensor, where: torch.Tensor, source: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return `images` (N, H, W, C) with `source[index]` where `where` (N,) is True; on a CPU, change them in place."""
    if images.device.type == "cpu":  # copy only those few
        rows = where.nonzero().flatten()
        images[rows] = source[index[rows]]
        return images
    return torch.where(where.view(-1, 1, 1, 1), source[index], images)  # on a GPU, `nonzero` would wait
