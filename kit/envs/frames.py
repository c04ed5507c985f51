"""Frame stacking.

A task returns only the newest frame of an observation entry and declares in `frames` how many frames T the policy sees.
The env stacks the latest T as (n, T, ...), newest last. At the start of an episode the first frame is repeated T times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from kit.envs.obs import Obs
from kit.errors import UserError, check_whole


def stacked_space(space: gymnasium.Space, frames: Mapping[str, int]) -> gymnasium.Space:
    """Return `space` with each entry named in `frames` stacked to (T, ...). The name "" stands for a single Box."""
    for name, count in frames.items():
        entry = space if name == "" else space.get(name) if isinstance(space, spaces.Dict) else None
        if not isinstance(entry, spaces.Box):
            raise UserError(f"frames={dict(frames)!r}: {name!r} is not a Box among the observations of {space}.")
        check_whole(f"frames {name!r}", count, 1)
        low, high = (np.repeat(bound[None], count, axis=0) for bound in (entry.low, entry.high))
        stack = spaces.Box(low, high, dtype=entry.dtype.type)
        space = stack if name == "" else spaces.Dict({**space.spaces, name: stack})  # type: ignore[attr-defined]
    return space


class FrameStacks:
    """The latest T frames of n envs for each entry of `frames`. Returned stacks are copies."""

    def __init__(self, frames: Mapping[str, int]) -> None:
        self.frames = dict(frames)
        self._latest: dict[str, list[torch.Tensor]] = {}  # entry -> T frames (n, ...), newest last

    def reset(self, obs: Obs) -> Obs:
        """Start new episodes in all envs, with the first frames in `obs` (n, ...)."""
        self._latest = {name: [_entry(obs, name).clone() for _ in range(t)] for name, t in self.frames.items()}
        return self._stacked(obs)

    def push(self, obs: Obs) -> Obs:
        """Append the newest frames and return `obs` (n, ...) with each of them replaced by its stack."""
        for name, latest in self._latest.items():
            latest.append(latest.pop(0).copy_(_entry(obs, name)))
        return self._stacked(obs)

    def reset_envs(self, obs: Obs, env_ids: torch.Tensor, first: Obs) -> Obs:
        """Start new episodes in the envs `env_ids` (k,), with the first observations `first` (k, ...).

        Returns a copy of `obs` (n, ...), the result of `push`, with the rows of these envs replaced.
        """
        for name, latest in self._latest.items():
            for frame in latest:
                frame.index_copy_(0, env_ids, _entry(first, name))
        return self._stacked(_replace(obs, env_ids, first, self.frames) if isinstance(obs, dict) else obs)

    def _stacked(self, obs: Obs) -> Obs:
        stacks = {name: torch.stack(latest).transpose(0, 1) for name, latest in self._latest.items()}
        if isinstance(obs, Mapping):
            return {**obs, **stacks}
        return stacks.get("", obs)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: torch.stack(latest, dim=1) for name, latest in self._latest.items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, latest in self._latest.items():
            for frame, saved in zip(latest, state[name].unbind(1), strict=True):
                frame.copy_(saved)


def _entry(obs: Any, name: str) -> torch.Tensor:
    return obs[name] if name else obs


def _replace(obs: Any, env_ids: torch.Tensor, first: Any, skip: Mapping[str, int]) -> Any:
    """Copy `obs` with the rows `env_ids` replaced by `first`, except in the entries named in `skip`."""
    if not isinstance(obs, Mapping):
        return obs.index_copy(0, env_ids, first)
    return {name: v if name in skip else _replace(v, env_ids, first[name], {}) for name, v in obs.items()}
