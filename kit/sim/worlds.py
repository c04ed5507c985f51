"""State memory of the CPU simulator's worlds, and the loop in which a thread steps them.

MjData keeps its arrays in one buffer, with the arrays of the state in front. Each world stores a copy of that front
part. A thread copies it into its own MjData, steps, and copies it back. So the working data of the physics stay in the
core's cache, and a thousand worlds need hardly more memory than one. The copies use memoryviews, which are faster than
numpy. MuJoCo's mj_setState would be slower too: it releases the GIL, and threads wait to get it back.
"""

from __future__ import annotations

import copy
from collections import deque

import mujoco
import numpy as np

STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_AFTER_CONSTRAINTS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})  # computed by mj_rnePostConstraint only
_ALIGNED = 64
"""Alignment of arrays in MjData's buffer, in bytes."""

Turn = tuple[int, int, int]
"""(number of the world, substeps to take in this turn, substeps left for a later turn)."""


def offset(data: mujoco.MjData, array: np.ndarray) -> int:
    """Return the offset of `array` in MjData's buffer, in bytes; the first array is qpos."""
    start: int = data.qpos.__array_interface__["data"][0]
    return int(array.__array_interface__["data"][0]) - start


def is_fixed(data: mujoco.MjData, array: np.ndarray) -> bool:
    """Return whether `array` is in MjData's buffer, so that its size and address never change."""
    return 0 <= offset(data, array) < data.nbuffer


def _buffer(data: mujoco.MjData) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(data.qpos.view(np.uint8), (data.nbuffer,), (1,))


def _find_state(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """Return a bool mask over the bytes at the front of MjData's buffer: True where `mj_setState` changes them.

    The mask compares a state of zeros with one of ones: bytes that are equal in 0.0 and 1.0 are False. The front
    ends after the last byte of the state. Resets `data`.
    """
    written = []
    for value in (0.0, 1.0):
        mujoco.mj_setState(model, data, np.full(mujoco.mj_stateSize(model, STATE), value), STATE)
        written.append(_buffer(data).copy())
    mujoco.mj_resetData(model, data)
    differ = np.not_equal(*written)
    size = int(differ.nonzero()[0][-1]) // _ALIGNED * _ALIGNED + _ALIGNED
    if model.nplugin and offset(data, data.plugin_data) < size:  # pointers, which must not be copied to another MjData
        raise NotImplementedError("this version of MuJoCo keeps pointers in the state; kit cannot run its plugins")
    return differ[:size]


def flat(array: np.ndarray) -> memoryview:
    return array.reshape(-1).data


class Worlds:
    """Data shared by the threads: state and time of each world, the work queue of a step, and MuJoCo's warnings."""

    def __init__(self, model: mujoco.MjModel, n: int) -> None:
        self.model = model
        new = mujoco.MjData(model)
        self.is_state = _find_state(model, new)
        front = _buffer(new)[: len(self.is_state)]
        self.bytes = np.tile(front, (n, 1))
        self.fronts = [row.data for row in self.bytes]
        self.times_s = [0.0] * n  # time is not in the buffer
        self.initial = bytes(front)
        self.no_warnings = flat(np.zeros_like(new.warning.number))
        self.queue: deque[Turn] = deque()
        self.warned: dict[int, np.ndarray] = {}
        """World -> how often MuJoCo raised each of its warnings in this step."""


class Scratch:
    """The MjData of one thread; a world is copied into it, stepped, and copied out."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds = worlds
        self.model = worlds.model
        self.data = mujoco.MjData(worlds.model)
        self.front = _buffer(self.data)[: len(worlds.is_state)].data
        self.warnings = flat(self.data.warning.number)
        self.copies: list[list[tuple[memoryview, memoryview]]] = [[] for _ in worlds.fronts]
        """Per world, for each registered field outside the state: (row of the batch, this MjData's field)."""
        self.after_constraints: list[np.ndarray] = []
        self.parameters: list[list[tuple[memoryview, memoryview]]] = [[] for _ in worlds.fronts]
        """Per world, for each parameter that differs between worlds: (this model's field, the world's own value)."""

    def register_parameter(self, name: str, batch: list[memoryview]) -> None:
        """From now on, before a world is stepped, copy its row of `batch` into the model's field `name`."""
        if self.model is self.worlds.model:
            self.model = copy.copy(self.worlds.model)
        value = flat(getattr(self.model, name))
        if not len(value):  # such as a field of tendons in a model without tendons
            return
        for parameters, row in zip(self.parameters, batch, strict=True):
            parameters.append((value, row))

    def register(self, name: str, batch: list[memoryview]) -> None:
        """From now on, after a world is stepped, copy the field `name` into its row of `batch`."""
        array = getattr(self.data, name)
        computed = flat(array)
        for copies, row in zip(self.copies, batch, strict=True):
            copies.append((row, computed))
        if name in _AFTER_CONSTRAINTS:
            self.after_constraints.append(array)

    def advance(self, leave: int = 0) -> None:
        """Take turns from the queue and step their worlds until `leave` turns are left; every thread runs this.

        The result does not depend on which thread steps which world. The model is read-only. If parameters differ
        between worlds, each thread first writes the world's parameters into its own copy of the model.
        """
        worlds, data, scratch = self.worlds, self.data, self.front
        queue, model, fronts, times_s = worlds.queue, self.model, worlds.fronts, worlds.times_s
        while len(queue) > leave:
            try:
                world, substeps, later = queue.popleft()
            except IndexError:  # another thread was faster
                return
            front = fronts[world]
            scratch[:] = front
            for parameter, own in self.parameters[world]:
                parameter[:] = own
            data.time = times_s[world]
            mujoco.mj_step(model, data, substeps)
            front[:] = scratch
            times_s[world] = data.time
            if self.warnings != worlds.no_warnings:
                worlds.warned[world] = worlds.warned.get(world, 0) + np.asarray(self.warnings)
                self.warnings[:] = worlds.no_warnings
            if later:
                queue.append((world, later, 0))
                continue
            if self.after_constraints:
                mujoco.mj_rnePostConstraint(model, data)
            for field, computed in self.copies[world]:  # copy_fields, inlined for speed
                field[:] = computed

    def load(self, world: int) -> None:
        """Copy the state and parameters of `world` into this MjData."""
        self.front[:] = self.worlds.fronts[world]
        self._take_parameters(world)
        self.data.time = self.worlds.times_s[world]

    def store(self, world: int) -> None:
        """Copy the state in this MjData to `world`."""
        self.worlds.fronts[world][:] = self.front
        self.worlds.times_s[world] = self.data.time

    def forward(self, world: int) -> None:
        """Load `world` and compute the quantities derived from its state (`mj_forward`)."""
        self.load(world)
        mujoco.mj_forward(self.model, self.data)
        if self.after_constraints:
            mujoco.mj_rnePostConstraint(self.model, self.data)
        self.warnings[:] = self.worlds.no_warnings  # the next step raises them again

    def reset(self, world: int, fields: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Reset `world` to the initial state, except for `fields`: (array of this MjData, values (n, ...)) pairs."""
        self.front[:], self.data.time = self.worlds.initial, 0.0
        self._take_parameters(world)
        for array, values in fields:
            array[:] = values[world]
        for array in self.after_constraints:  # as after mj_resetData: no step has been taken
            array.fill(0)
        mujoco.mj_forward(self.model, self.data)
        self.store(world)
        self.copy_fields(world)
        self.warnings[:] = self.worlds.no_warnings  # the next step raises them again

    def copy_fields(self, world: int) -> None:
        """Copy the registered fields in this MjData to the batched fields of `world`."""
        for field, computed in self.copies[world]:
            field[:] = computed

    def _take_parameters(self, world: int) -> None:
        for parameter, own in self.parameters[world]:
            parameter[:] = own
