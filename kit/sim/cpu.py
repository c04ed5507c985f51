"""Simulator on MuJoCo in C: threads step the worlds. `mj_step` releases the GIL, so no processes are needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import mujoco
import numpy as np
import torch

from kit.errors import Overflow, UserError
from kit.machine.limits import usable_cores
from kit.sim.base import Simulator
from kit.sim.helpers import Helpers
from kit.sim.worlds import STATE, Scratch, Turn, Worlds, flat, is_fixed, offset

_ARENA = ("efc_", "iefc_", "efm_", "iacc", "ifrc_", "island_", "map_")  # arrays whose size changes at every step
_DIVERGED = [int(w) for w in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL,
                              mujoco.mjtWarning.mjWARN_BADQACC)]  # fmt: skip
_FULL = [int(w) for w in (mujoco.mjtWarning.mjWARN_CONTACTFULL, mujoco.mjtWarning.mjWARN_CNSTRFULL)]
DERIVED = ("body_subtreemass", "body_invweight0", "dof_M0", "dof_invweight0", "tendon_length0", "tendon_invweight0",
           "actuator_acc0")  # fmt: skip
"""Fields of MjModel that `mj_setConst` computes from masses, inertias, gains and `qpos0`."""
_INERTIAL_FRAME = ("body_ipos", "body_iquat")
_BAD_CTRL = int(mujoco.mjtWarning.mjWARN_BADCTRL)


def _tensor(name: str, batch: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(batch)
    return tensor.unflatten(-1, (3, 3)) if name.endswith("mat") else tensor


class CpuSim(Simulator):
    """`n` worlds of `model` in float64 on `threads` CPU threads (by default one per usable core)."""

    dtype = torch.float64

    def __init__(self, model: mujoco.MjModel, n: int, threads: int | None = None) -> None:
        super().__init__(model, n, torch.device("cpu"))
        if not model.nq:
            raise UserError("the model has no joints, so nothing in it can move; add a joint.")
        self.threads = max(1, min(threads or usable_cores(), n))
        self._worlds = Worlds(model, n)
        self._scratch = [Scratch(self._worlds) for _ in range(self.threads)]  # the first belongs to the calling thread
        self._constants: Scratch | None = None
        """The model in which `derive` works. It has its own, because `mj_setConst` also writes fields that all worlds
        share, such as the offset of a weld, the places of cameras and the scale of the solver's tolerance."""
        self._rounds: dict[int, tuple[list[Turn], list[Callable[[], None]]]] = {}
        """Substeps -> (the turns of a step, in order; one function per thread, that of the calling thread first)."""
        self._diverged: torch.Tensor | None = None
        self._derived: dict[str, np.ndarray] = {}
        self._helpers = Helpers(self.threads - 1)

    def _register(self, name: str) -> torch.Tensor:
        data = self._scratch[0].data
        array: Any = getattr(data, name, None)
        known = isinstance(array, np.ndarray) and not name.startswith(_ARENA)
        if not known or (array.size and not is_fixed(data, array)):
            raise AttributeError(f"'{name}' is not an array of MjData of fixed size, so it cannot be a batched field")
        if self._is_state(name):
            rows = self._worlds.bytes
            strides = (rows.strides[0], *array.strides)
            return _tensor(name, np.ndarray((self.n, *array.shape), array.dtype, rows, offset(data, array), strides))
        batch = np.zeros((self.n, *array.shape), dtype=array.dtype)
        by_world = [flat(row) for row in batch]
        for scratch in self._scratch:
            scratch.register(name, by_world)
        for world, row in enumerate(batch):
            self._scratch[0].forward(world)
            row[...] = array  # only this field; other registered fields keep their values from the last step
        return _tensor(name, batch)

    def parameter(self, name: str) -> torch.Tensor:
        if name not in self._parameters:
            self._check_parameter(name)
            if self._constants is None:
                self._constants = Scratch(self._worlds)
                self._derived = {derived: self._per_world(derived) for derived in DERIVED}
            self._parameters[name] = torch.from_numpy(self._per_world(name))
            if name in _INERTIAL_FRAME:  # MuJoCo stores the tree of a body's geoms, by which it skips pairs, in it
                for scratch in self._scratch:
                    scratch.model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
        return self._parameters[name]

    def _per_world(self, name: str) -> np.ndarray:
        """Return the model's field `name` with a row per world, (n, ...). Later steps read these rows."""
        batch = np.repeat(getattr(self.model, name)[None], self.n, 0)
        for scratch in filter(None, (*self._scratch, self._constants)):
            scratch.register_parameter(name, [flat(row) for row in batch])
        return batch

    def derive(self, mask: torch.Tensor) -> None:
        if (own := self._constants) is None:  # no parameter has changed
            return
        for world in mask.numpy().nonzero()[0].tolist():
            own.load(world)
            mujoco.mj_setConst(own.model, own.data)
            for name, rows in self._derived.items():
                rows[world] = getattr(own.model, name)

    def _is_state(self, name: str) -> bool:
        data = self._scratch[0].data
        array = getattr(data, name)
        start = offset(data, array)
        return start >= 0 and bool(self._worlds.is_state[start : start + array.nbytes].any())

    def step(self, substeps: int = 1) -> None:
        if substeps not in self._rounds:
            turns = self._turns(substeps)
            last = int(turns[0][-1] > 0)  # turns that the other threads leave for the calling thread
            mine, *others = self._scratch
            self._rounds[substeps] = turns, [mine.advance, *[partial(scratch.advance, last) for scratch in others]]
        turns, work = self._rounds[substeps]
        queue = self._worlds.queue
        queue.clear()  # a failed step may have left turns
        queue.extend(turns)
        self._helpers.run(*work)
        if queue:  # a slower thread has added a later turn
            work[0]()
        self._diverged = self._diagnose() if self._worlds.warned else None

    def _turns(self, substeps: int) -> list[Turn]:
        """Return the turns of a step in order: (world, substeps done at once, substeps left for later).

        Short turns at the end of a step shorten the wait for the last thread. So, if there are at least four worlds per
        thread, two worlds per thread keep a fifth of their substeps for a second turn at the end. 16 Ants on two
        threads get 4 % faster.
        """
        split = 2 * self.threads if self.threads > 1 and self.n >= 4 * self.threads else 0
        later = [min(substeps - 1, max(1, substeps // 5)) if world < split else 0 for world in range(self.n)]
        return [(world, substeps - rest, rest) for world, rest in enumerate(later)]

    def _diagnose(self) -> torch.Tensor | None:
        """Turn MuJoCo's warnings of this step into an error, or into the result of `diverged`."""
        warned, self._worlds.warned = self._worlds.warned, {}
        if bad := sorted(world for world, counts in warned.items() if counts[_BAD_CTRL]):
            raise FloatingPointError(
                f"ctrl of world {bad[0]} is not finite: the action was probably NaN, and before it an observation or a "
                "reward; `kit check ENV` looks for those"
            )
        if any(counts[_FULL].any() for counts in warned.values()):
            raise Overflow("MuJoCo ran out of memory for contacts; give the model more with MjSpec.memory")
        diverged = sorted(world for world, counts in warned.items() if counts[_DIVERGED].any())
        if not diverged:
            return None
        warnings.warn(
            f"the physics of {len(diverged)} of {self.n} worlds diverged (first: world {diverged[0]}); "
            "MuJoCo reset them to their initial state", RuntimeWarning, stacklevel=3,
        )  # fmt: skip
        mask = torch.zeros(self.n, dtype=torch.bool)
        mask[diverged] = True
        return mask

    def diverged(self) -> torch.Tensor | None:
        return self._diverged

    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        self._check_settable(fields)
        mine = self._scratch[0]
        values = [(getattr(mine.data, name), value.numpy()) for name, value in fields.items()]
        for world in mask.numpy().nonzero()[0].tolist():
            mine.reset(world, values)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return MuJoCo's integration state, the registered fields, and the parameters that differ between worlds.

        Registered fields cannot be recomputed: after `mj_step`, body positions and the like belong to the qpos before
        the last substep.
        """
        state = np.empty((self.n, mujoco.mj_stateSize(self.model, STATE)))
        for world, row in enumerate(state):
            self._scratch[0].load(world)
            mujoco.mj_getState(self.model, self._scratch[0].data, row, STATE)
        derived = {name: value.clone() for name, value in self._fields.items() if not self._is_state(name)}
        parameters = {f"model.{name}": value.clone() for name, value in self._parameters.items()}
        return {"state": torch.from_numpy(state), **derived, **parameters}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        state = snapshot["state"].cpu().numpy()
        self._check_shape(state.shape, (self.n, mujoco.mj_stateSize(self.model, STATE)), "numbers")
        self._restore_parameters(snapshot)
        if self._parameters:
            self.derive(torch.ones(self.n, dtype=torch.bool))
        for world, row in enumerate(state):
            mujoco.mj_setState(self.model, self._scratch[0].data, row, STATE)
            self._scratch[0].store(world)
        if any(not self._is_state(name) for name in self._fields.keys() - snapshot.keys()):
            for world in range(self.n):
                self._scratch[0].forward(world)
                self._scratch[0].copy_fields(world)
        for name, value in snapshot.items():
            if name != "state" and not name.startswith("model."):
                self.field(name).copy_(value)
        self._diverged = None

    def close(self) -> None:
        super().close()
        self._helpers.close()
