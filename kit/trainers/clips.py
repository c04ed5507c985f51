"""Stacks of pictures that are put together when somebody looks at them; until then every frame lies in memory once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from gymnasium import Space, spaces

from kit.envs.obs import is_image, tree_map


class Clips:
    """N stacks of T pictures. Of the tensor that they stand for, it can do what an update needs before it looks.

    In memory channels lie last and time in front, as convolutions on a CPU like them.
    """

    def __init__(self, frames: torch.Tensor, index: torch.Tensor) -> None:
        """`frames` (rows, H, W, C), each there once; `index` (N, T) the rows of each stack, oldest first."""
        self.frames, self.index = frames, index

    def index_select(self, dim: int, rows: torch.Tensor) -> Clips:
        """The stacks `rows` (k,); `dim` is 0."""
        return Clips(self.frames, self.index.index_select(dim, rows))

    def split(self, size: int) -> list[Clips]:
        """Consecutive pieces of `size` stacks, the last one possibly shorter."""
        return [Clips(self.frames, piece) for piece in self.index.split(size)]

    def seen(self) -> torch.Tensor:
        """(N, T, C, H, W)"""
        by_time = self.index.t()
        drawn = self.frames.index_select(0, by_time.flatten()).unflatten(0, by_time.shape)
        return drawn.transpose(0, 1).movedim(-1, -3)


Seen: TypeAlias = Any
"""An `Obs` in which some of the tensors may be `Clips`."""


def seen(obs: Seen) -> Any:
    """`obs` with every stack put together."""
    return tree_map(lambda x: x.seen() if isinstance(x, Clips) else x, obs)


def image_stacks(space: Space, frames: Mapping[str, int]) -> dict[str, int]:
    """Those of an env's `frames` that are of pictures; numbers are small enough to be kept as they come."""
    entries = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return {name: count for name, count in frames.items() if name in entries and is_image(entries[name])}


def newest(obs: Any, frames: Mapping[str, int]) -> tuple[dict[str, torch.Tensor], Any]:
    """The newest picture (n, H, W, C) of each stack (n, T, C, H, W) that `frames` names, and the rest of `obs`."""
    if "" in frames:
        return {"": channels_last(obs[:, -1])}, {}
    if not frames:
        return {}, obs
    rest = {name: value for name, value in obs.items() if name not in frames}
    return {name: channels_last(obs[name][:, -1]) for name in frames}, rest


def with_stacks(rest: Any, stacks: Mapping[str, Any]) -> Any:
    """What `newest` took apart, with `stacks` in place of the pictures."""
    return stacks.get("", {**rest, **stacks} if stacks else rest)


def channels_last(pictures: torch.Tensor) -> torch.Tensor:
    """(..., C, H, W) as (..., H, W, C)"""
    return pictures.movedim(-3, -1)


def before(newest: torch.Tensor, first: torch.Tensor, frames: int) -> torch.Tensor:
    """Numbers of the steps (..., T) whose frames are seen at the steps `newest` (...), oldest first, none before the
    step `first` (...) with which the episode began: that one fills the stack."""
    ages = torch.arange(frames - 1, -1, -1, device=newest.device)
    return torch.maximum(newest.unsqueeze(-1) - ages, first.unsqueeze(-1))
