"""Image storage of a replay buffer: each frame of each env is stored once."""

from __future__ import annotations

import torch

from kit.format.segments import DONE, RAGGED
from kit.trainers.clips import frame_steps

FRAMES = "frames."
"""Prefix of the columns of a segment that hold images."""


class ImageRing:
    """Ring buffer of one camera's images, uint8 (H, W, C). Each row holds the newest image of each env's frame stack.

    A row is one step of all envs. A pool that grows on demand holds the final image of each episode.
    """

    def __init__(self, name: str, frames: int, capacity: int, n_envs: int, device: torch.device) -> None:
        self.name, self.frames, self.capacity, self.n_envs, self.device = name, frames, capacity, n_envs, device
        self.ring: torch.Tensor | None = None
        """(capacity, n, H, W, C)"""
        self.latest: torch.Tensor | None = None
        """(n, H, W, C): next images of the newest row; the following `add` stores them in the ring."""
        self._pool_index = torch.full((capacity, n_envs), -1, device=device)
        """Pool index of the final image of an episode that ended with this row, else -1."""
        self._pool: torch.Tensor | None = None
        self._free: list[int] = []

    def add(self, slot: int, images: torch.Tensor, next_images: torch.Tensor, done: torch.Tensor) -> None:
        """Store `images` (n, H, W, C) in `slot`; where `done`, store `next_images` as the episode's final image."""
        self._allocated(images)[slot] = images
        self._store_final(torch.tensor([slot], device=self.device), done.unsqueeze(0), next_images[done])
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
            last = (row == written - 1).nonzero().flatten()
            next_image[last] = self.latest[env[last]]
        pool_index = self._pool_index[row % self.capacity, env]
        ended = (pool_index >= 0).nonzero().flatten()
        if self._pool is not None:
            next_image[ended] = self._pool[pool_index[ended]]
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
            self._store_final(slots, rows[DONE].to(self.device), rows[RAGGED + self.name].to(self.device))

    def _store_final(self, slots: torch.Tensor, done: torch.Tensor, final: torch.Tensor) -> None:
        """Store `final` (E, H, W, C), the last images of episodes, one per True in `done` (k, n) of `slots` (k,)."""
        old = self._pool_index.index_select(0, slots)
        self._free.extend(old[old >= 0].tolist())
        new = torch.full_like(old, -1)
        if len(final):
            pool = self._grown_pool(final)
            index = torch.tensor([self._free.pop() for _ in range(len(final))], device=self.device)
            pool[index] = final
            new[done] = index
        self._pool_index.index_copy_(0, slots, new)

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
            self.ring = torch.empty(shape, dtype=images.dtype, device=self.device)  # no memory until written
        return self.ring
