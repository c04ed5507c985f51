"""MuJoCo in C: threads step the worlds in turn.

`mj_step` runs without Python's lock, so plain threads come within a few percent of bare physics.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from kit.errors import Overflow, UserError
from kit.machine.limits import usable_cores
from kit.sim.base import Simulator
from kit.sim.helpers import Helpers
from kit.sim.worlds import STATE, Scratch, Turn, Worlds, flat, is_fixed, offset

_ARENA = ("efc_", "iefc_", "efm_", "iacc", "ifrc_", "island_", "map_")  # sized anew at every step
_DIVERGED = [int(w) for w in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL,
                              mujoco.mjtWarning.mjWARN_BADQACC)]  # fmt: skip
_FULL = [int(w) for w in (mujoco.mjtWarning.mjWARN_CONTACTFULL, mujoco.mjtWarning.mjWARN_CNSTRFULL)]
_BAD_CTRL = int(mujoco.mjtWarning.mjWARN_BADCTRL)

if TYPE_CHECKING:
    from kit.sim.render import Renderer

Round = tuple[list[Turn], list[Callable[[], None]]]
"""A step's turns in order, and what each thread does, the caller first."""


def _tensor(name: str, batch: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(batch)
    return tensor.unflatten(-1, (3, 3)) if name.endswith("mat") else tensor


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
        self._worlds = Worlds(model, n)
        self._scratch = [Scratch(self._worlds) for _ in range(self.threads)]  # the first is the caller's
        self._rounds: dict[int, Round] = {}  # by substeps
        self._fields: dict[str, torch.Tensor] = {}
        self._diverged: torch.Tensor | None = None
        self._helpers = Helpers(self.threads - 1, "kit-sim")
        self._renderers: dict[tuple[object, ...], Renderer] = {}

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
            rows = self._worlds.bytes
            strides = (rows.strides[0], *first.strides)
            return _tensor(name, np.ndarray((self.n, *first.shape), first.dtype, rows, offset(own, first), strides))
        batch = np.zeros((self.n, *first.shape), dtype=first.dtype)
        rows_of = [flat(row) for row in batch]
        for scratch in self._scratch:
            scratch.register(name, rows_of)
        for world, row in enumerate(batch):
            self._scratch[0].follow(world)
            row[...] = first  # no other field: those may lag behind the state
        return _tensor(name, batch)

    def _is_state(self, name: str) -> bool:
        data = self._scratch[0].data
        array = getattr(data, name)
        start = offset(data, array)
        return start >= 0 and bool(self._worlds.is_state[start : start + array.nbytes].any())

    def step(self, substeps: int = 1, prepare: Callable[[], object] | None = None) -> None:
        if substeps not in self._rounds:
            self._rounds[substeps] = self._round(substeps)
        turns, work = self._rounds[substeps]
        queue = self._worlds.queue

        def fill_queue() -> None:
            if prepare is not None:
                prepare()
            queue.clear()  # of what a step that failed has left
            queue.extend(turns)

        self._helpers.run(*work, prepare=fill_queue)
        if queue:  # what a delayed helper has put back since
            work[0]()
        self._diverged = self._diagnose() if self._worlds.warned else None

    def _round(self, substeps: int) -> Round:
        turns = self._share_out(substeps)
        mine, *others = self._scratch
        last = int(turns[0][-1] > 0)  # a short turn, left to the caller
        return turns, [mine.advance, *[partial(scratch.advance, last) for scratch in others]]

    def _share_out(self, substeps: int) -> list[Turn]:
        """The turns of a step, in order.

        The threads wait for each other at its end, on average half a turn, and one that slept takes 40 us to wake up.
        So with worlds enough the first two per thread keep a fifth of their substeps for the end, and the caller, who
        goes on alone, is the last to finish: 16 Ants on two threads get 4 % faster."""
        several = 2 * self.threads if self.threads > 1 and self.n >= 4 * self.threads else 0
        later = [min(substeps - 1, max(1, substeps // 5)) if world < several else 0 for world in range(self.n)]
        return [(world, substeps - rest, rest) for world, rest in enumerate(later)]

    def _diagnose(self) -> torch.Tensor | None:
        """Turn MuJoCo's warning counters into an exception or into the mask (n,) of worlds that diverged."""
        warned, self._worlds.warned = self._worlds.warned, {}
        if bad := sorted(world for world, counts in warned.items() if counts[_BAD_CTRL]):
            raise FloatingPointError(f"ctrl of world {bad[0]} is not finite; the policy's actions are probably NaN")
        if any(counts[_FULL].any() for counts in warned.values()):
            raise Overflow("MuJoCo ran out of room for contacts; give the model more with MjSpec.memory")
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
        drawn = [(getattr(mine.data, name), value.numpy()) for name, value in fields.items()]
        for world in mask.numpy().nonzero()[0].tolist():
            mine.begin(world, drawn)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """MuJoCo's integration state, and the fields that follow from it as they are: after `mj_step` positions of
        bodies and the like lag one substep behind qpos, so they cannot be recomputed."""
        state = np.empty((self.n, mujoco.mj_stateSize(self.model, STATE)))
        for world, row in enumerate(state):
            self._scratch[0].load(world)
            mujoco.mj_getState(self.model, self._scratch[0].data, row, STATE)
        derived = {name: value.clone() for name, value in self._fields.items() if not self._is_state(name)}
        return {"state": torch.from_numpy(state), **derived}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        state = snapshot["state"].cpu().numpy()
        shape = (self.n, mujoco.mj_stateSize(self.model, STATE))
        if state.shape != shape:
            raise UserError(
                f"the snapshot holds {state.shape[0]} worlds of {state.shape[1]} numbers, this simulator {shape[0]} of "
                f"{shape[1]}; build it with the same model and number of envs."
            )
        for world, row in enumerate(state):
            mujoco.mj_setState(self.model, self._scratch[0].data, row, STATE)
            self._scratch[0].store(world)
        if any(not self._is_state(name) for name in self._fields.keys() - snapshot.keys()):
            for world in range(self.n):
                self._scratch[0].follow(world)
                self._scratch[0].show(world)
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
