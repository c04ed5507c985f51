"""Recorded episodes as a replay buffer, for trainers that learn from a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from kit.envs.contract import BatchEnv
from kit.envs.obs import POLICY, Obs, leaves, pick
from kit.format.segments import DONE, RAGGED
from kit.trainers.clips import channels_last, image_stacks
from kit.trainers.image_ring import FRAMES
from kit.trainers.replay import Replay
from kit.trainers.saving import Values

DATASET = "dataset"
"""Name of the component in checkpoints."""


class Episode(NamedTuple):
    """One recorded episode of T steps."""

    obs: Obs
    """(T + 1, ...): the first observation and the one after each step, with one image in place of a stack."""
    actions: torch.Tensor
    """(T, ...) as the env takes them."""
    rewards: torch.Tensor
    """(T,)"""
    terminated: torch.Tensor
    """(T,) bool"""


def recorded(obs: Obs, env: BatchEnv) -> Obs:
    """Reduce `obs` (n, ...) of `env` to the policy's entries and the newest image of each stack, for `Episode`."""
    return newest(pick(obs, env.obs_groups.get(POLICY)), image_stacks(env.observation_space, env.frames))


def newest(obs: Obs, stacks: Mapping[str, int]) -> Obs:
    """Return `obs` (n, ...) with each frame stack replaced by its newest image. `obs` is a dict or a single tensor.

    `stacks`: image entry -> stack depth.
    """
    if isinstance(obs, dict):
        return {name: x[:, -1] if name in stacks and isinstance(x, torch.Tensor) else x for name, x in obs.items()}
    return obs[:, -1] if stacks else obs


def rows_of(
    episodes: Iterable[Episode],
    frames: Mapping[str, int],
    stored: Callable[[torch.Tensor], torch.Tensor] = lambda actions: actions,
) -> Values:
    """Return all transitions of `episodes` in the format of `Replay.rows`, for a replay buffer with one env.

    `frames`: image entry -> stack depth. `stored` converts actions (T, ...) to what the trainer stores.
    """
    columns: dict[str, list[torch.Tensor]] = {}

    def add(name: str, values: torch.Tensor) -> None:
        columns.setdefault(name, []).append(values)

    for obs, actions, rewards, terminated in episodes:
        entries = obs if isinstance(obs, dict) else {"": obs}
        for name in frames:
            images: Any = channels_last(entries[name])  # type: ignore[arg-type]
            add(FRAMES + name, images[:-1].unsqueeze(1))
            add(RAGGED + name, images[-1:])
        rest = {name: x for name, x in entries.items() if name not in frames}
        for name, values in leaves("", rest.get("", rest)):
            add(f"obs{name}", values[:-1].unsqueeze(1))
            add(f"next_obs{name}", values[1:].unsqueeze(1))
        done = torch.zeros(len(rewards), dtype=torch.bool)
        done[-1] = True
        row = {"actions": stored(actions), "rewards": rewards, "terminated": terminated}
        row |= {DONE: done} if frames else {}
        for name, values in row.items():
            add(name, values.unsqueeze(1))
    return {name: torch.cat(values) for name, values in columns.items()}


class Demonstrations:
    """A replay buffer of recorded transitions, saved as a single file that all checkpoints of the run share."""

    replay: Replay
    """The data. In a resumed run (`rows` None), `load_state` sets it."""

    def __init__(self, rows: Values | None, frames: Mapping[str, int], device: torch.device) -> None:
        self._frames, self._device = frames, device
        if rows is not None:
            self.load_state(rows)

    def state(self) -> Values:
        return self.replay.rows(0, self.replay.written)

    def load_state(self, state: Values) -> None:
        self.replay = loaded(state, self._frames, self._device)


def loaded(rows: Values, frames: Mapping[str, int], device: torch.device) -> Replay:
    """Return a replay buffer filled completely with `rows` (from `rows_of`)."""
    replay = Replay(len(rows["rewards"]), 1, device, frames)
    replay.written = replay.capacity
    replay.load(dict(rows), 0)
    return replay
