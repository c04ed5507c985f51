"""MuJoCo in C: the states of all worlds are one array; threads, each with one `MjData`, step them in turn.

A thread loads a world's state into its MjData, steps it and stores it again, which takes 0.7 us; in return what the
physics works on stays in the core's own cache, which is too small for the MjData of more than a few Ants, and a
thousand worlds need hardly more memory than one.

`mj_step` runs without Python's lock, so plain threads come within a few percent of bare physics. What remains in
Python per world and step is one pop from a queue, three calls of MuJoCo and one copy per field that is not itself part
of the state, all bound beforehand. The copies are of memoryviews: 0.04 us each, where numpy takes 0.19.
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

_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)  # the enumeration itself takes the binding 0.3 us more
_AFTER_CONSTRAINTS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})  # computed by mj_rnePostConstraint only
_ARENA = ("efc_", "iefc_", "efm_", "iacc", "ifrc_", "island_", "map_")  # sized anew at every step
_DIVERGED = [int(w) for w in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL,
                              mujoco.mjtWarning.mjWARN_BADQACC)]  # fmt: skip
_FULL = [int(w) for w in (mujoco.mjtWarning.mjWARN_CONTACTFULL, mujoco.mjtWarning.mjWARN_CNSTRFULL)]
_BAD_CTRL = int(mujoco.mjtWarning.mjWARN_BADCTRL)

if TYPE_CHECKING:
    from kit.sim.render import Renderer

Turn = tuple[int, int, int]
"""A world, the substeps to make now, and those left for a later turn."""


def is_fixed(data: mujoco.MjData, array: np.ndarray) -> bool:
    """Whether `array` lies in MjData's main buffer, whose first field is qpos, so that its size and address never
    change."""
    offset = array.__array_interface__["data"][0] - data.qpos.__array_interface__["data"][0]
    return 0 <= offset < data.nbuffer


def _flat(array: np.ndarray) -> memoryview:
    return array.reshape(-1).data


def _state_columns(model: mujoco.MjModel, data: mujoco.MjData) -> dict[str, slice]:
    """Where MuJoCo puts the arrays of MjData into a state: in the order of the bits that stand for them."""
    columns = {}
    for member in mujoco.mjtState.__members__.values():
        bit, name = int(member), member.name.removeprefix("mjSTATE_").lower()
        array = getattr(data, name, None)
        if bit & _STATE and bit.bit_count() == 1 and isinstance(array, np.ndarray) and array.dtype == np.float64:
            start = mujoco.mj_stateSize(model, bit - 1)
            columns[name] = slice(start, start + array.size)
    return columns


class _Scratch:
    """One thread's MjData, which every world passes through, and views of the fields that are copied from it."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.data = mujoco.MjData(model)
        self.warnings = _flat(self.data.warning.number)
        self.derived: list[memoryview] = []
        self.after_constraints: list[np.ndarray] = []


class CpuSim(Simulator):
    """`n` worlds of `model` in float64 on `threads` CPU threads (by default one per usable core)."""

    def __init__(self, model: mujoco.MjModel, n: int, threads: int | None = None) -> None:
        if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise UserError(
                "the model has sleep enabled, but MuJoCo's state does not say who sleeps, so no run could be resumed; "
                'remove sleep="enable" from its options.'
            )
        self.model = model
        self.n = n
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.threads = max(1, min(threads or usable_cores(), n))
        self._scratch = [_Scratch(model) for _ in range(self.threads)]  # the first is the caller's
        self._derived: list[list[memoryview]] = [[] for _ in range(n)]  # per world, in the order of _Scratch.derived
        self._turns: dict[int, list[Turn]] = {}  # by substeps
        self._fields: dict[str, torch.Tensor] = {}
        self._warned: dict[int, np.ndarray] = {}  # by world, how often each of MuJoCo's warnings came in this step
        self._diverged: torch.Tensor | None = None
        self._helpers = Helpers(self.threads - 1, "kit-sim")
        self._renderers: dict[tuple[object, ...], Renderer] = {}
        self._silent = _flat(np.zeros_like(self._scratch[0].data.warning.number))
        first = self._scratch[0].data
        self._initial = np.empty(mujoco.mj_stateSize(model, _STATE))
        mujoco.mj_getState(model, first, self._initial, _STATE)
        self._state = np.tile(self._initial, (n, 1))  # MuJoCo's integration state of every world
        self._rows = list(self._state)
        mujoco.mj_forward(model, first)
        self._columns = _state_columns(model, first)

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
        if name in self._columns:
            return torch.from_numpy(self._state)[:, self._columns[name]].unflatten(1, first.shape)
        batch = np.zeros((self.n, *first.shape), dtype=first.dtype)
        for scratch in self._scratch:
            array = getattr(scratch.data, name)
            scratch.derived.append(_flat(array))
            if name in _AFTER_CONSTRAINTS:
                scratch.after_constraints.append(array)
        for world, row in enumerate(batch):
            self._derived[world].append(_flat(row))
            self._follow(world)
            row[...] = first
        tensor = torch.from_numpy(batch)
        return tensor.unflatten(-1, (3, 3)) if name.endswith("mat") else tensor

    def _follow(self, world: int) -> None:
        """Load `world` into the caller's MjData, with what follows from its state."""
        mine = self._scratch[0]
        mujoco.mj_setState(self.model, mine.data, self._rows[world], _STATE)
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
        self._advance(mine, queue)  # what a delayed helper has put back since
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
        model, data, rows = self.model, scratch.data, self._rows
        load, step, store = mujoco.mj_setState, mujoco.mj_step, mujoco.mj_getState
        while len(queue) > leave:
            try:
                world, substeps, later = queue.popleft()
            except IndexError:  # another thread was faster
                return
            load(model, data, rows[world], _STATE)
            step(model, data, substeps)
            store(model, data, rows[world], _STATE)
            if scratch.warnings != self._silent:
                self._warned[world] = self._warned.get(world, 0) + np.asarray(scratch.warnings)
                scratch.warnings[:] = self._silent
            if later:
                queue.append((world, later, 0))
                continue
            if scratch.after_constraints:
                mujoco.mj_rnePostConstraint(model, data)
            self._show(world, scratch)

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
        drawn = [(self._columns[name], value.flatten(1).numpy()) for name, value in fields.items()]
        for world in mask.numpy().nonzero()[0].tolist():
            row = self._rows[world]
            row[:] = self._initial
            for columns, values in drawn:
                row[columns] = values[world]
            mujoco.mj_setState(self.model, mine.data, row, _STATE)
            for array in mine.after_constraints:
                array.fill(0)
            mujoco.mj_forward(self.model, mine.data)
            mujoco.mj_getState(self.model, mine.data, row, _STATE)
            self._show(world, mine)
            mine.warnings[:] = self._silent  # the next step gives them again

    def _show(self, world: int, scratch: _Scratch) -> None:
        """Copy what follows from the state of `world` from the MjData that holds it."""
        for here, there in zip(self._derived[world], scratch.derived, strict=False):
            here[:] = there

    def snapshot(self) -> dict[str, torch.Tensor]:
        """MuJoCo's integration state, and the fields that follow from it as they are: after `mj_step` positions of
        bodies and the like lag one substep behind qpos, so they cannot be recomputed."""
        derived = {name: value.clone() for name, value in self._fields.items() if name not in self._columns}
        return {"state": torch.from_numpy(self._state.copy()), **derived}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        state = snapshot["state"].cpu().numpy()
        if state.shape != self._state.shape:
            raise UserError(
                f"the snapshot holds {state.shape[0]} worlds of {state.shape[1]} numbers, this simulator {self.n} of "
                f"{self._state.shape[1]}; build it with the same model and number of envs."
            )
        self._state[:] = state
        if self._fields.keys() - self._columns.keys() - snapshot.keys():
            for world in range(self.n):
                self._follow(world)
                self._show(world, self._scratch[0])
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
