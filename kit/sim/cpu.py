"""MuJoCo in C: every world is a row of bytes; threads, each with one `MjData`, step them in turn.

MjData keeps its arrays in one buffer, those that make up the state in front. A thread copies a world's front into its
MjData, steps it and copies it back, which takes 0.5 us; in return what the physics works on stays in the core's own
cache, which is too small for the MjData of more than a few Ants, and a thousand worlds need hardly more memory than
one.

`mj_step` runs without Python's lock, so plain threads come within a few percent of bare physics. What remains in
Python per world and step is one pop from a queue and one copy per field that is no part of the state, all bound
beforehand. Memoryviews are copied in 0.05 us each, where numpy takes 0.19. MuJoCo's own mj_setState and mj_getState
give up Python's lock each time, and the threads then wait for it: 1.5 % of a step of 16 Ants.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from kit.errors import UserError
from kit.machine.limits import usable_cores
from kit.sim.base import Simulator
from kit.sim.helpers import Helpers

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_AFTER_CONSTRAINTS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})  # computed by mj_rnePostConstraint only
_ARENA = ("efc_", "iefc_", "efm_", "iacc", "ifrc_", "island_", "map_")  # sized anew at every step
_DIVERGED = [int(w) for w in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL,
                              mujoco.mjtWarning.mjWARN_BADQACC)]  # fmt: skip
_ALIGNED = 64
"""Bytes; where arrays begin in MjData's buffer."""
_FULL = [int(w) for w in (mujoco.mjtWarning.mjWARN_CONTACTFULL, mujoco.mjtWarning.mjWARN_CNSTRFULL)]
_BAD_CTRL = int(mujoco.mjtWarning.mjWARN_BADCTRL)

if TYPE_CHECKING:
    from kit.sim.render import Renderer

Turn = tuple[int, int, int]
"""A world, the substeps to make now, and those left for a later turn."""


def _offset(data: mujoco.MjData, array: np.ndarray) -> int:
    """Where `array` begins, counted from the beginning of MjData's buffer, whose first array is qpos."""
    start: int = data.qpos.__array_interface__["data"][0]
    return int(array.__array_interface__["data"][0]) - start


def is_fixed(data: mujoco.MjData, array: np.ndarray) -> bool:
    """Whether `array` lies in MjData's buffer, so that its size and address never change."""
    return 0 <= _offset(data, array) < data.nbuffer


def _front(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[memoryview, np.ndarray]:
    """The front of MjData's buffer as bytes, up to the last one that `mj_setState` writes, and which of them it writes
    (a part of each number). Leaves `data` as new."""
    buffer = np.lib.stride_tricks.as_strided(data.qpos.view(np.uint8), (data.nbuffer,), (1,))
    written = []
    for value in (0.0, 1.0):
        mujoco.mj_setState(model, data, np.full(mujoco.mj_stateSize(model, _STATE), value), _STATE)
        written.append(buffer.copy())
    mujoco.mj_resetData(model, data)
    differ = np.not_equal(*written)
    size = int(differ.nonzero()[0][-1]) // _ALIGNED * _ALIGNED + _ALIGNED
    front = buffer[:size]
    if model.nplugin and _offset(data, data.plugin_data) < len(front):  # pointers, which are each MjData's own
        raise NotImplementedError("this version of MuJoCo keeps pointers among the state; kit cannot run its plugins")
    return front.data, differ[:size]


def _flat(array: np.ndarray) -> memoryview:
    return array.reshape(-1).data


def _tensor(name: str, batch: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(batch)
    return tensor.unflatten(-1, (3, 3)) if name.endswith("mat") else tensor


class _Scratch:
    """One thread's MjData, which every world passes through, and views of what is copied."""

    def __init__(self, model: mujoco.MjModel, n: int) -> None:
        self.data = mujoco.MjData(model)
        self.front, self.is_state = _front(model, self.data)
        self.warnings = _flat(self.data.warning.number)
        self.copies: list[list[tuple[memoryview, memoryview]]] = [[] for _ in range(n)]
        """Per world, the fields that are no part of the state: where they belong, and where they are here."""
        self.after_constraints: list[np.ndarray] = []


class CpuSim(Simulator):
    """`n` worlds of `model` in float64 on `threads` CPU threads (by default one per usable core)."""

    def __init__(self, model: mujoco.MjModel, n: int, threads: int | None = None) -> None:
        if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise UserError(
                "the model has sleep enabled, but MuJoCo's state does not say who sleeps, so no run could be resumed; "
                'remove sleep="enable" from its options.'
            )
        if not model.nq:
            raise UserError("the model has no joints, so nothing in it can move; add one.")
        self.model = model
        self.n = n
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.threads = max(1, min(threads or usable_cores(), n))
        self._scratch = [_Scratch(model, n) for _ in range(self.threads)]  # the first is the caller's
        first = self._scratch[0]
        self._worlds = np.tile(first.front, (n, 1))
        self._fronts = [front.data for front in self._worlds]
        self._times_s = [0.0] * n  # which is not in the buffer
        self._initial = bytes(first.front)
        self._turns: dict[int, list[Turn]] = {}  # by substeps
        self._fields: dict[str, torch.Tensor] = {}
        self._warned: dict[int, np.ndarray] = {}  # by world, how often each of MuJoCo's warnings came in this step
        self._diverged: torch.Tensor | None = None
        self._helpers = Helpers(self.threads - 1, "kit-sim")
        self._renderers: dict[tuple[object, ...], Renderer] = {}
        self._silent = _flat(np.zeros_like(first.data.warning.number))
        mujoco.mj_forward(model, first.data)

    def field(self, name: str) -> torch.Tensor:
        if name not in self._fields:
            self._fields[name] = self._register(name)
            setattr(self, name, self._fields[name])  # from now on an ordinary attribute
        return self._fields[name]

    def _register(self, name: str) -> torch.Tensor:
        own = self._scratch[0].data
        first: Any = getattr(own, name, None)
        known = isinstance(first, np.ndarray) and not name.startswith(_ARENA)
        if not known or (first.size and not is_fixed(own, first)):
            raise AttributeError(f"'{name}' is not an array of MjData of fixed size, so it cannot be a batched field")
        if self._is_state(name):
            strides = (self._worlds.strides[0], *first.strides)
            at = _offset(own, first)
            return _tensor(name, np.ndarray((self.n, *first.shape), first.dtype, self._worlds, at, strides))
        batch = np.zeros((self.n, *first.shape), dtype=first.dtype)
        for scratch in self._scratch:
            array = getattr(scratch.data, name)
            computed = _flat(array)
            for copies, row in zip(scratch.copies, batch, strict=True):
                copies.append((_flat(row), computed))
            if name in _AFTER_CONSTRAINTS:
                scratch.after_constraints.append(array)
        for world, row in enumerate(batch):
            self._follow(world)
            row[...] = first
        return _tensor(name, batch)

    def _is_state(self, name: str) -> bool:
        first = self._scratch[0]
        array = getattr(first.data, name)
        start = _offset(first.data, array)
        return start >= 0 and bool(first.is_state[start : start + array.nbytes].any())

    def _load(self, world: int) -> None:
        """Into the caller's MjData."""
        mine = self._scratch[0]
        mine.front[:] = self._fronts[world]
        mine.data.time = self._times_s[world]

    def _store(self, world: int) -> None:
        """From the caller's MjData."""
        mine = self._scratch[0]
        self._fronts[world][:] = mine.front
        self._times_s[world] = mine.data.time

    def _follow(self, world: int) -> None:
        """Load `world` into the caller's MjData, with what follows from its state."""
        mine = self._scratch[0]
        self._load(world)
        mujoco.mj_forward(self.model, mine.data)
        if mine.after_constraints:
            mujoco.mj_rnePostConstraint(self.model, mine.data)
        mine.warnings[:] = self._silent  # the next step gives them again

    def step(self, substeps: int = 1, prepare: Callable[[], object] | None = None) -> None:
        if substeps not in self._turns:
            self._turns[substeps] = self._share_out(substeps)
        turns = self._turns[substeps]
        queue: deque[Turn] = deque()
        last = int(turns[0][-1] > 0)  # a short turn, left to the caller
        mine, *others = self._scratch

        def fill_queue() -> None:
            if prepare is not None:
                prepare()
            queue.extend(turns)

        self._helpers.run(
            partial(self._advance, mine, queue),
            *[partial(self._advance, scratch, queue, last) for scratch in others],
            prepare=fill_queue,
        )
        if queue:  # what a delayed helper has put back since
            self._advance(mine, queue)
        self._diverged = self._diagnose() if self._warned else None

    def _share_out(self, substeps: int) -> list[Turn]:
        """The turns of a step, in order.

        The threads wait for each other at its end, on average half a turn, and one that slept takes 40 us to wake up.
        So with worlds enough the first two per thread keep a fifth of their substeps for the end, and the caller, who
        goes on alone, is the last to finish: 16 Ants on two threads get 4 % faster."""
        several = 2 * self.threads if self.threads > 1 and self.n >= 4 * self.threads else 0
        later = [min(substeps - 1, max(1, substeps // 5)) if world < several else 0 for world in range(self.n)]
        return [(world, substeps - rest, rest) for world, rest in enumerate(later)]

    def _advance(self, scratch: _Scratch, queue: deque[Turn], leave: int = 0) -> None:
        """Step worlds from `queue` in `scratch` until `leave` are left; every thread runs this. Which thread steps
        which world does not matter: worlds share nothing but the read-only model."""
        model, data, here, fronts, times_s = self.model, scratch.data, scratch.front, self._fronts, self._times_s
        while len(queue) > leave:
            try:
                world, substeps, later = queue.popleft()
            except IndexError:  # another thread was faster
                return
            front = fronts[world]
            here[:] = front
            data.time = times_s[world]
            mujoco.mj_step(model, data, substeps)
            front[:] = here
            times_s[world] = data.time
            if scratch.warnings != self._silent:
                self._warned[world] = self._warned.get(world, 0) + np.asarray(scratch.warnings)
                scratch.warnings[:] = self._silent
            if later:
                queue.append((world, later, 0))
                continue
            if scratch.after_constraints:
                mujoco.mj_rnePostConstraint(model, data)
            for field, computed in scratch.copies[world]:
                field[:] = computed

    def _diagnose(self) -> torch.Tensor | None:
        """Turn MuJoCo's warning counters into an exception or into the mask (n,) of worlds that diverged."""
        warned, self._warned = self._warned, {}
        if bad := sorted(world for world, counts in warned.items() if counts[_BAD_CTRL]):
            raise FloatingPointError(f"ctrl of world {bad[0]} is not finite; the policy's actions are probably NaN")
        if any(counts[_FULL].any() for counts in warned.values()):
            raise MemoryError("MuJoCo ran out of room for contacts; give the model more with MjSpec.memory")
        diverged = sorted(world for world, counts in warned.items() if counts[_DIVERGED].any())
        if not diverged:
            return None
        warnings.warn(
            f"the physics of {len(diverged)} of {self.n} worlds diverged (first: world {diverged[0]}); "
            "MuJoCo put them back into their initial state", RuntimeWarning, stacklevel=3,
        )  # fmt: skip
        mask = torch.zeros(self.n, dtype=torch.bool)
        mask[diverged] = True
        return mask

    def diverged(self) -> torch.Tensor | None:
        return self._diverged

    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        mine = self._scratch[0]
        targets = [(getattr(mine.data, name), value.numpy()) for name, value in fields.items()]
        for world in mask.numpy().nonzero()[0].tolist():
            mine.front[:], mine.data.time = self._initial, 0.0
            for there, value in targets:
                there[:] = value[world]
            for array in mine.after_constraints:
                array.fill(0)
            mujoco.mj_forward(self.model, mine.data)
            self._store(world)
            self._show(world)
            mine.warnings[:] = self._silent  # the next step gives them again

    def _show(self, world: int) -> None:
        """Copy what follows from the state of `world` from the caller's MjData, which holds it."""
        for field, computed in self._scratch[0].copies[world]:
            field[:] = computed

    def snapshot(self) -> dict[str, torch.Tensor]:
        """MuJoCo's integration state, and the fields that follow from it as they are: after `mj_step` positions of
        bodies and the like lag one substep behind qpos, so they cannot be recomputed."""
        state = np.empty((self.n, mujoco.mj_stateSize(self.model, _STATE)))
        for world, row in enumerate(state):
            self._load(world)
            mujoco.mj_getState(self.model, self._scratch[0].data, row, _STATE)
        derived = {name: value.clone() for name, value in self._fields.items() if not self._is_state(name)}
        return {"state": torch.from_numpy(state), **derived}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        state = snapshot["state"].cpu().numpy()
        shape = (self.n, mujoco.mj_stateSize(self.model, _STATE))
        if state.shape != shape:
            raise UserError(
                f"the snapshot holds {state.shape[0]} worlds of {state.shape[1]} numbers, this simulator {shape[0]} of "
                f"{shape[1]}; build it with the same model and number of envs."
            )
        for world, row in enumerate(state):
            mujoco.mj_setState(self.model, self._scratch[0].data, row, _STATE)
            self._store(world)
        if any(not self._is_state(name) for name in self._fields.keys() - snapshot.keys()):
            for world in range(self.n):
                self._follow(world)
                self._show(world)
        for name, value in snapshot.items():
            if name != "state":
                self.field(name).copy_(value)
        self._diverged = None

    def render(
        self, cameras: tuple[str, ...], height: int, width: int, *, shadows: bool = False, samples: int = 1
    ) -> torch.Tensor:
        from kit.sim.render import Renderer

        key = (tuple(cameras), height, width, shadows, samples)
        if key not in self._renderers:
            self._renderers[key] = Renderer(
                self.model, self.n, cameras, height, width, self.device, shadows=shadows, samples=samples
            )
        return self._renderers[key].render(
            self.geom_xpos, self.geom_xmat, self.cam_xpos, self.cam_xmat, self.light_xpos, self.light_xdir
        )

    def close(self) -> None:
        self._helpers.close()
        self._renderers.clear()
