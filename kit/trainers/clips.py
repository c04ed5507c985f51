"""Lazy frame stacks: each image is stored once, and a stack is gathered only when a network reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from gymnasium import Space, spaces

from kit.envs.obs import is_image, tree_map


class Clips:
    """N lazy stacks of T images; `materialize` gives the tensor.

    The tensor is time-major and channels-last in memory, the fastest order for convolutions on a CPU.
    """

    def __init__(self, frames: torch.Tensor, index: torch.Tensor) -> None:
        """`frames` (rows, H, W, C) holds each image once. `index` (N, T) holds each stack's rows, oldest first."""
        self.frames, self.index = frames, index

    def index_select(self, dim: int, rows: torch.Tensor) -> Clips:
        return Clips(self.frames, self.index.index_select(dim, rows))

    def split(self, size: int) -> list[Clips]:
        return [Clips(self.frames, index) for index in self.index.split(size)]

    def materialize(self) -> torch.Tensor:
        """Gather the stacks as one tensor (N, T, C, H, W)."""
        time_major = self.index.t()
        gathered = self.frames.index_select(0, time_major.flatten()).unflatten(0, time_major.shape)
        return gathered.transpose(0, 1).movedim(-1, -3)


LazyObs: TypeAlias = Any
"""An `Obs` in which some tensors may be `Clips`."""


def materialize(obs: LazyObs) -> Any:
    """Turn every `Clips` in `obs` into a tensor."""
    return tree_map(lambda x: x.materialize() if isinstance(x, Clips) else x, obs)


def image_stacks(space: Space, frames: Mapping[str, int]) -> dict[str, int]:
    """Return the image entries of `frames` (entry -> stack depth). Vector stacks are small and stored in full."""
    entries = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return {name: count for name, count in frames.items() if name in entries and is_image(entries[name])}


def split_newest(obs: Any, frames: Mapping[str, int]) -> tuple[dict[str, torch.Tensor], Any]:
    """Split `obs` into the newest image of each frame stack and the rest.

    `frames`: entry -> stack depth T. A stack is (n, T, C, H, W), its newest image (n, H, W, C).
    """
    if "" in frames:
        return {"": channels_last(obs[:, -1])}, {}
    if not frames:
        return {}, obs
    rest = {name: value for name, value in obs.items() if name not in frames}
    return {name: channels_last(obs[name][:, -1]) for name in frames}, rest


def with_stacks(rest: Any, stacks: Mapping[str, Any]) -> Any:
    """Combine `stacks` with the `rest` that `split_newest` returned."""
    return stacks.get("", {**rest, **stacks} if stacks else rest)


def channels_last(images: torch.Tensor) -> torch.Tensor:
    """Return a view of `images` (..., C, H, W) as (..., H, W, C)."""
    return images.movedim(-3, -1)


def frame_steps(newest: torch.Tensor, first: torch.Tensor, frames: int) -> torch.Tensor:
    """Return the steps (..., T) at which a stack's frames were taken, oldest first.

    `newest` (...) is the step of the newest frame. Steps before the episode's first step `first` (...) become `first`.
    """
    ages = torch.arange(frames - 1, -1, -1, device=newest.device)
    return torch.maximum(newest.unsqueeze(-1) - ages, first.unsqueeze(-1))
