"""Stacks of frames: what a world has looked like lately, made of what it looks like now.

A task draws only the newest frame of an entry and says in `frames` how many of them a policy sees at once. The stack
(n, T, ...) holds them with the newest last; an episode begins with its first frame T times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from kit.envs.obs import Obs
from kit.errors import UserError


def stacked_space(space: gymnasium.Space, frames: Mapping[str, int]) -> gymnasium.Space:
    """`space` with each entry of `frames` as so many of it, (T, ...); the entry "" is a Box by itself."""
    for name, count in frames.items():
        entry = space if name == "" else space.get(name) if isinstance(space, spaces.Dict) else None
        if not isinstance(entry, spaces.Box):
            raise UserError(f"frames={dict(frames)!r}: {name!r} is not a Box among the observations of {space}.")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(f"frames={dict(frames)!r}: {count!r} must be a whole number of at least 1.")
        low, high = (np.repeat(bound[None], count, axis=0) for bound in (entry.low, entry.high))
        stack = spaces.Box(low, high, dtype=entry.dtype.type)
        space = stack if name == "" else spaces.Dict({**space.spaces, name: stack})  # type: ignore[attr-defined]
    return space


class FrameStacks:
    """The latest frames of `n` worlds. What it hands out is the caller's own."""

    def __init__(self, frames: Mapping[str, int]) -> None:
        self.frames = dict(frames)
        self._kept: dict[str, list[torch.Tensor]] = {}  # each (n, ...), the newest last

    def begin(self, obs: Obs) -> Obs:
        """New episodes in every world, first seen as `obs` (n, ...)."""
        self._kept = {name: [_entry(obs, name).clone() for _ in range(t)] for name, t in self.frames.items()}
        return self._stacked(obs)

    def push(self, obs: Obs) -> Obs:
        """`obs` (n, ...) with what is newest in it as the end of a stack."""
        for name, kept in self._kept.items():
            kept.append(kept.pop(0).copy_(_entry(obs, name)))
        return self._stacked(obs)

    def renew(self, obs: Obs, worlds: torch.Tensor, first: Obs) -> Obs:
        """`obs` (n, ...), as `push` gave it, where the worlds numbered `worlds` (k,) have begun anew and are seen as
        `first` (k, ...)."""
        for name, kept in self._kept.items():
            for frame in kept:
                frame.index_copy_(0, worlds, _entry(first, name))
        return self._stacked(_put(obs, worlds, first, self.frames) if isinstance(obs, dict) else obs)

    def _stacked(self, obs: Obs) -> Obs:
        stacks = {name: torch.stack(kept).transpose(0, 1) for name, kept in self._kept.items()}
        if isinstance(obs, Mapping):
            return {**obs, **stacks}
        return stacks.get("", obs)

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the stacks, (n, T, ...)."""
        return {name: torch.stack(kept, dim=1) for name, kept in self._kept.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put `state` back."""
        for name, kept in self._kept.items():
            for frame, was in zip(kept, state[name].unbind(1), strict=True):
                frame.copy_(was)


def _entry(obs: Any, name: str) -> torch.Tensor:
    return obs[name] if name else obs


def _put(obs: Any, worlds: torch.Tensor, first: Any, but: Mapping[str, int]) -> Any:
    """A copy of `obs` whose rows `worlds` are `first`'s, apart from the entries named in `but`."""
    if not isinstance(obs, Mapping):
        return obs.index_copy(0, worlds, first)
    return {name: v if name in but else _put(v, worlds, first[name], {}) for name, v in obs.items()}
