"""The memory of worlds simulated by MuJoCo in C, and how one thread steps them.

MjData keeps its arrays in one buffer, those that make up the state in front. Every world is a copy of that front. A
thread copies it into its own MjData, steps it and copies it back: what the physics works on stays in the core's own
cache, and a thousand worlds need hardly more memory than one. Memoryviews are copied in a quarter of numpy's time, and
without giving up Python's lock, as MuJoCo's mj_setState does, for which the threads would then wait.
"""

from __future__ import annotations

import copy
from collections import deque

import mujoco
import numpy as np

STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_AFTER_CONSTRAINTS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})  # computed by mj_rnePostConstraint only
_ALIGNED = 64
"""Bytes; where arrays begin in MjData's buffer."""

Turn = tuple[int, int, int]
"""A world, the substeps to make now, and those left for a later turn."""


def offset(data: mujoco.MjData, array: np.ndarray) -> int:
    """Where `array` begins, counted from the beginning of MjData's buffer, whose first array is qpos."""
    start: int = data.qpos.__array_interface__["data"][0]
    return int(array.__array_interface__["data"][0]) - start


def is_fixed(data: mujoco.MjData, array: np.ndarray) -> bool:
    """Whether `array` lies in MjData's buffer, so that its size and address never change."""
    return 0 <= offset(data, array) < data.nbuffer


def _buffer(data: mujoco.MjData) -> np.ndarray:
    """MjData's buffer as bytes."""
    return np.lib.stride_tricks.as_strided(data.qpos.view(np.uint8), (data.nbuffer,), (1,))


def _find_state(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """For every byte in front, up to the last one that `mj_setState` writes, whether it does (it tells a part of each
    number). Leaves `data` as new."""
    written = []
    for value in (0.0, 1.0):
        mujoco.mj_setState(model, data, np.full(mujoco.mj_stateSize(model, STATE), value), STATE)
        written.append(_buffer(data).copy())
    mujoco.mj_resetData(model, data)
    differ = np.not_equal(*written)
    size = int(differ.nonzero()[0][-1]) // _ALIGNED * _ALIGNED + _ALIGNED
    if model.nplugin and offset(data, data.plugin_data) < size:  # pointers, which are each MjData's own
        raise NotImplementedError("this version of MuJoCo keeps pointers among the state; kit cannot run its plugins")
    return differ[:size]


def flat(array: np.ndarray) -> memoryview:
    return array.reshape(-1).data


class Worlds:
    """What the threads share: each world's front and time, what is left to do in this step, and MuJoCo's warnings."""

    def __init__(self, model: mujoco.MjModel, n: int) -> None:
        self.model = model
        new = mujoco.MjData(model)
        self.is_state = _find_state(model, new)
        front = _buffer(new)[: len(self.is_state)]
        self.bytes = np.tile(front, (n, 1))
        self.fronts = [row.data for row in self.bytes]
        self.times_s = [0.0] * n  # which is not in the buffer
        self.initial = bytes(front)
        self.silent = flat(np.zeros_like(new.warning.number))
        self.queue: deque[Turn] = deque()
        self.warned: dict[int, np.ndarray] = {}
        """By world, how often each warning came in this step."""


class Scratch:
    """One thread's MjData, which every world passes through."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds = worlds
        self.model = worlds.model
        self.data = mujoco.MjData(worlds.model)
        self.front = _buffer(self.data)[: len(worlds.is_state)].data
        self.warnings = flat(self.data.warning.number)
        self.copies: list[list[tuple[memoryview, memoryview]]] = [[] for _ in worlds.fronts]
        """Per world, the fields that are no part of the state: where they belong, and where they are here."""
        self.after_constraints: list[np.ndarray] = []
        self.parameters: list[list[tuple[memoryview, memoryview]]] = [[] for _ in worlds.fronts]
        """Per world, its own fields of the model: where they are here, and what they should be."""

    def own(self, name: str, batch: list[memoryview]) -> None:
        """From now on the model's field `name` is that of the world at work, of which `batch` has a row per world."""
        if self.model is self.worlds.model:
            self.model = copy.copy(self.worlds.model)
        here = flat(getattr(self.model, name))
        if not len(here):  # such as of tendons, where there are none
            return
        for parameters, row in zip(self.parameters, batch, strict=True):
            parameters.append((here, row))

    def register(self, name: str, batch: list[memoryview]) -> None:
        """Copy the field `name` to `batch` from now on, a row per world."""
        array = getattr(self.data, name)
        computed = flat(array)
        for copies, row in zip(self.copies, batch, strict=True):
            copies.append((row, computed))
        if name in _AFTER_CONSTRAINTS:
            self.after_constraints.append(array)

    def advance(self, leave: int = 0) -> None:
        """Step worlds from the queue until `leave` are left; every thread runs this. Which thread steps which world
        does not matter: worlds share nothing but the read-only model, or fill in their own fields of the thread's."""
        worlds, data, here = self.worlds, self.data, self.front
        queue, model, fronts, times_s = worlds.queue, self.model, worlds.fronts, worlds.times_s
        while len(queue) > leave:
            try:
                world, substeps, later = queue.popleft()
            except IndexError:  # another thread was faster
                return
            front = fronts[world]
            here[:] = front
            for parameter, own in self.parameters[world]:
                parameter[:] = own
            data.time = times_s[world]
            mujoco.mj_step(model, data, substeps)
            front[:] = here
            times_s[world] = data.time
            if self.warnings != worlds.silent:
                worlds.warned[world] = worlds.warned.get(world, 0) + np.asarray(self.warnings)
                self.warnings[:] = worlds.silent
            if later:
                queue.append((world, later, 0))
                continue
            if self.after_constraints:
                mujoco.mj_rnePostConstraint(model, data)
            for field, computed in self.copies[world]:  # as `show` does, without a call
                field[:] = computed

    def load(self, world: int) -> None:
        self.front[:] = self.worlds.fronts[world]
        self._take_parameters(world)
        self.data.time = self.worlds.times_s[world]

    def store(self, world: int) -> None:
        self.worlds.fronts[world][:] = self.front
        self.worlds.times_s[world] = self.data.time

    def follow(self, world: int) -> None:
        """Load `world`, and compute what follows from its state."""
        self.load(world)
        mujoco.mj_forward(self.model, self.data)
        if self.after_constraints:
            mujoco.mj_rnePostConstraint(self.model, self.data)
        self.warnings[:] = self.worlds.silent  # the next step gives them again

    def begin(self, world: int, fields: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Put `world` into the model's initial state but for `fields`: an array here, and what it should be in every
        world."""
        self.front[:], self.data.time = self.worlds.initial, 0.0
        self._take_parameters(world)
        for here, values in fields:
            here[:] = values[world]
        for array in self.after_constraints:
            array.fill(0)
        mujoco.mj_forward(self.model, self.data)
        self.store(world)
        self.show(world)
        self.warnings[:] = self.worlds.silent  # the next step gives them again

    def show(self, world: int) -> None:
        """Copy what follows from the state of `world`, which is here."""
        for field, computed in self.copies[world]:
            field[:] = computed

    def _take_parameters(self, world: int) -> None:
        for here, own in self.parameters[world]:
            here[:] = own
