"""MuJoCo in C: one `MjData` per world, the worlds shared out over a pool of threads.

`mj_step` runs without Python's lock, so plain threads come within a few percent of bare physics. What remains in
Python per world and step is one pop from a queue, one `mj_step` and one copy per registered field, all bound
beforehand. The copies are of memoryviews: 0.04 us each, where numpy takes 0.19.
"""

from __future__ import annotations

import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from kit.errors import UserError
from kit.machine.limits import usable_cores
from kit.sim.base import INPUTS, Simulator
from kit.sim.helpers import Helpers

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_AFTER_CONSTRAINTS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})  # computed by mj_rnePostConstraint only
_ARENA = ("efc_", "iefc_", "efm_", "iacc", "ifrc_", "island_", "map_")  # sized anew at every step
_DIVERGED = [int(w) for w in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL,
                              mujoco.mjtWarning.mjWARN_BADQACC)]  # fmt: skip
_FULL = [int(w) for w in (mujoco.mjtWarning.mjWARN_CONTACTFULL, mujoco.mjtWarning.mjWARN_CNSTRFULL)]
_BAD_CTRL = int(mujoco.mjtWarning.mjWARN_BADCTRL)

if TYPE_CHECKING:
    from kit.sim.render import Renderer

Copies = list[tuple[memoryview, memoryview]]  # (destination, source), flat
Turn = tuple[
    mujoco.MjData, Copies, Copies, int, int
]  # a world, before, after, substeps now, substeps in a turn to come


def is_fixed(data: mujoco.MjData, array: np.ndarray) -> bool:
    """Whether `array` lies in MjData's main buffer, whose first field is qpos, so that its size and address never
    change."""
    offset = array.__array_interface__["data"][0] - data.qpos.__array_interface__["data"][0]
    return 0 <= offset < data.nbuffer


def _flat(array: np.ndarray) -> memoryview:
    return array.reshape(-1).data


class CpuSim(Simulator):
    """`n` worlds of `model` in float64 on `threads` CPU threads (by default one per usable core)."""

    def __init__(self, model: mujoco.MjModel, n: int, threads: int | None = None) -> None:
        self.model = model
        self.n = n
        self.device = torch.device("cpu")
        self.dtype = torch.float64
        self.threads = max(1, min(threads or usable_cores(), n))
        self._data = [mujoco.MjData(model) for _ in range(n)]
        self._inputs: list[Copies] = [[] for _ in range(n)]  # per world: batch -> MjData, before a step
        self._outputs: list[Copies] = [[] for _ in range(n)]  # per world: MjData -> batch, after a step
        self._all: list[Copies] = [[] for _ in range(n)]  # per world: MjData -> batch, after a reset
        self._turns: dict[int, list[Turn]] = {}  # by substeps
        self._fields: dict[str, torch.Tensor] = {}
        self._after_constraints = False
        self._diverged: torch.Tensor | None = None
        self._helpers = Helpers(self.threads - 1, "kit-sim")
        self._renderers: dict[tuple[object, ...], Renderer] = {}
        self._warnings = np.zeros((n, len(self._data[0].warning.number)), dtype=np.int32)
        for world, data in enumerate(self._data):
            mujoco.mj_forward(model, data)
            self._outputs[world].append((_flat(self._warnings[world]), _flat(data.warning.number)))
        _ = self.ctrl  # an input of every step

    def field(self, name: str) -> torch.Tensor:
        if name not in self._fields:
            self._fields[name] = self._register(name)
            setattr(self, name, self._fields[name])  # from now on an ordinary attribute
        return self._fields[name]

    def _register(self, name: str) -> torch.Tensor:
        first: Any = getattr(self._data[0], name, None)
        known = isinstance(first, np.ndarray) and not name.startswith(_ARENA)
        if not known or (first.size and not is_fixed(self._data[0], first)):
            raise AttributeError(f"'{name}' is not an array of MjData of fixed size, so it cannot be a batched field")
        if name in _AFTER_CONSTRAINTS and not self._after_constraints:
            self._after_constraints = True
            for data in self._data:
                mujoco.mj_rnePostConstraint(self.model, data)
        batch = np.zeros((self.n, *first.shape), dtype=first.dtype)
        for world, data in enumerate(self._data):
            here, there = _flat(batch[world]), _flat(getattr(data, name))
            here[:] = there
            self._all[world].append((here, there))
            if name in INPUTS:
                self._inputs[world].append((there, here))
            else:
                self._outputs[world].append((here, there))
        tensor = torch.from_numpy(batch)
        return tensor.unflatten(-1, (3, 3)) if name.endswith("mat") else tensor

    def step(self, substeps: int = 1) -> None:
        if substeps not in self._turns:
            self._turns[substeps] = self._share_out(substeps)
        queue = deque(self._turns[substeps])
        last = int(queue[0][-1] > 0)  # a short turn, left to the caller
        self._helpers.run(partial(self._advance, queue), partial(self._advance, queue, last))
        self._advance(queue)  # what a delayed helper has put back since
        self._diverged = self._diagnose() if self._warnings.any() else None

    def _share_out(self, substeps: int) -> list[Turn]:
        """The turns of a step, in order.

        The threads wait for each other at its end, on average half a turn, and one that slept takes 40 us to wake up.
        So with worlds enough the first two per thread keep a fifth of their substeps for the end, and the caller, who
        goes on alone, is the last to finish: 16 Ants on two threads get 4 % faster."""
        several = 2 * self.threads if self.threads > 1 and self.n >= 4 * self.threads else 0
        later = [min(substeps - 1, max(1, substeps // 5)) if world < several else 0 for world in range(self.n)]
        worlds = zip(self._data, self._inputs, self._outputs, later, strict=True)
        return [(data, inputs, outputs, substeps - rest, rest) for data, inputs, outputs, rest in worlds]

    def _advance(self, queue: deque[Turn], leave: int = 0) -> None:
        """Step worlds from `queue` until `leave` are left; every thread runs this. Which thread steps which world does
        not matter: worlds share nothing but the read-only model."""
        model, step, take, put_back = self.model, mujoco.mj_step, queue.popleft, queue.append
        after_constraints = self._after_constraints
        while len(queue) > leave:
            try:
                data, inputs, outputs, substeps, later = take()
            except IndexError:  # another thread was faster
                return
            for there, here in inputs:
                there[:] = here
            step(model, data, substeps)
            if later:
                put_back((data, inputs, outputs, later, 0))
                continue
            if after_constraints:
                mujoco.mj_rnePostConstraint(model, data)
            for here, there in outputs:
                here[:] = there

    def _diagnose(self) -> torch.Tensor | None:
        """Turn MuJoCo's warning counters into an exception or into the mask (n,) of worlds that diverged."""
        counts = self._warnings.copy()
        self._warnings[:] = 0
        for world in np.flatnonzero(counts.any(1)).tolist():
            self._data[world].warning.number[:] = 0
        if counts[:, _BAD_CTRL].any():
            world = int(np.argmax(counts[:, _BAD_CTRL] > 0))
            raise FloatingPointError(f"ctrl of world {world} is not finite; the policy's actions are probably NaN")
        if counts[:, _FULL].any():
            raise MemoryError("MuJoCo ran out of room for contacts; give the model more with MjSpec.memory")
        diverged = counts[:, _DIVERGED].any(1)
        if not diverged.any():
            return None
        warnings.warn(
            f"the physics of {diverged.sum()} of {self.n} worlds diverged (first: world {np.argmax(diverged)}); "
            "MuJoCo put them back into their initial state", RuntimeWarning, stacklevel=3,
        )  # fmt: skip
        return torch.from_numpy(diverged)

    def diverged(self) -> torch.Tensor | None:
        return self._diverged

    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        sources = [(name, value.numpy()) for name, value in fields.items()]
        for world in mask.numpy().nonzero()[0].tolist():
            data = self._data[world]
            mujoco.mj_resetData(self.model, data)
            for name, value in sources:
                getattr(data, name)[:] = value[world]
            mujoco.mj_forward(self.model, data)
            for here, there in self._all[world]:
                here[:] = there

    def snapshot(self) -> dict[str, torch.Tensor]:
        """MuJoCo's integration state, and the registered fields as they are: after `mj_step` positions of bodies and
        the like lag one substep behind qpos, so they cannot be recomputed."""
        state = np.empty((self.n, mujoco.mj_stateSize(self.model, _STATE)))
        for data, inputs, row in zip(self._data, self._inputs, state, strict=True):
            for there, here in inputs:
                there[:] = here
            mujoco.mj_getState(self.model, data, row, _STATE)
        return {"state": torch.from_numpy(state), **{name: value.clone() for name, value in self._fields.items()}}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        state = snapshot["state"].cpu().numpy()
        if state.shape != (self.n, size := mujoco.mj_stateSize(self.model, _STATE)):
            raise UserError(
                f"the snapshot holds {state.shape[0]} worlds of {state.shape[1]} numbers, this simulator {self.n} of "
                f"{size}; build it with the same model and number of envs."
            )
        for data, copies, row in zip(self._data, self._all, state, strict=True):
            mujoco.mj_resetData(self.model, data)
            mujoco.mj_setState(self.model, data, row, _STATE)
            mujoco.mj_forward(self.model, data)
            for here, there in copies:
                here[:] = there
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
