"""Simulator on MuJoCo Warp: steps all worlds in one launch on CUDA. Tests also run it on Warp's CPU device.

Reproducibility:
 - On the CPU device everything is exact to the bit: a restored snapshot continues exactly, and a masked reset changes
   neither the state nor the future of the other worlds.
 - On CUDA snapshot, restore, masked reset and quantities that depend on positions alone are exact. Contacts and
   constraint rows are listed in the order in which threads find them, and their forces, `cfrc_ext` and the inertia of
   branched trees are atomic sums. So the last bits (about 1e-7, relative) change from run to run, and chaotic motion
   amplifies the differences. Two runs from one checkpoint are therefore statistically equal, not numerically. Only an
   unbranched chain without contacts and with at most one active constraint is repeatable. `deterministic=True` fixes
   the order of the sums, which is slower, but not the order of the lists.
 - One step agrees with MuJoCo in C to float32 accuracy, not to the bit.
Source: the code of MuJoCo Warp 4.0.0; tests/sim/test_cuda.py checks it on a GPU.
"""

from __future__ import annotations

import warnings
from typing import Any

import mujoco
import torch

from kit.errors import Overflow
from kit.sim.ahead import compile_together
from kit.sim.base import Simulator
from kit.sim.capacity import capacity
from kit.sim.kernels import beside_torch, compiling, numbered, recording, wp

import mujoco_warp as mjw  # isort: skip  initialises Warp: after kit.sim.kernels, which sets Warp up

_STATE = ("time", "qpos", "qvel", "act", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied", "eq_active",
          "mocap_pos", "mocap_quat", "history", "plastic", "userdata")  # fmt: skip
"""The full state of a world (MuJoCo's integration state)."""
_AFTER_CONSTRAINTS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})  # computed by rne_postconstraint only, 0 after a reset
_SHARED = frozenset({"nacon", "ncollision", "cdof_tri_row", "cdof_tri_col"})  # not one row per world
_FORWARD, _FORWARD_IF_ANY = 0, -1  # keys of `_graphs` for forward passes; the other keys are numbers of substeps
_CHECK_EVERY = 32  # steps on CUDA between checks of the overflow flags

_CONTACTS = mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD
_CONSTRAINTS = mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ
_OTHER_LIMITS = mjw.OverflowType.HFIELD | mjw.OverflowType.CONTACT_MATCH | mjw.OverflowType.TACTILE
_WRONG_PHYSICS = int(_CONTACTS | _CONSTRAINTS | _OTHER_LIMITS)


class WarpSim(Simulator):
    """`n` worlds of `model` in float32 on `device`; fields are the simulator's own memory, not copies.

    The buffers of contacts and constraint rows have the size `capacity`. A full buffer raises `Overflow`. On CUDA it
    does so some dozens of steps later, because an immediate check would stall the GPU, but before any checkpoint:
    `snapshot` checks too.
    """

    dtype = torch.float32

    def __init__(self, model: mujoco.MjModel, n: int, device: str | torch.device = "cuda", *,
                 deterministic: bool = False) -> None:  # fmt: skip
        super().__init__(model, n, numbered(device))
        self.capacity = capacity(model)
        self._graphs: dict[int, Any] = {}
        self._after_constraints = False
        self._steps = 0
        with beside_torch(self.device):
            self._model = mjw.put_model(model)
            self._model.opt.warn_overflow = 0  # `_raise_overflow` raises an error instead
            if self.device.type == "cuda":  # drivers before CUDA 12.4 have no loops in graphs
                self._model.opt.graph_conditional = wp.is_conditional_graph_supported()
            if deterministic:  # `True` would be the bit mask of contacts only
                self._model.opt.deterministic = int(mjw.DeterminismType.ALL)
            self._data = mjw.make_data(model, n, nconmax=self.capacity.contacts, njmax=self.capacity.constraints)
        self._state = {name: t for name in _STATE if (t := self._tensor(name)).numel()}
        self._overflow = self._tensor("overflow")
        self._flags = torch.zeros_like(self._overflow, device="cpu", pin_memory=self.device.type == "cuda")
        self._any = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._flags_copied: torch.cuda.Event | None = None
        self._initial = {name: value[:1].clone() for name, value in self._state.items()}
        with compiling("the physics"), beside_torch(self.device) as warp_device:
            if self.device.type == "cuda":
                try:
                    compile_together(lambda: self._advance(1), warp_device)
                except Exception as error:  # slower, still correct
                    warnings.warn(f"kernels are compiled one after another: {error}", stacklevel=2)
            self._advance(1)  # every kernel must be compiled before a graph is recorded
            for name, value in self._state.items():
                value.copy_(self._initial[name].expand_as(value))
            self._overflow.zero_()
            self._advance(_FORWARD)

    def _register(self, name: str) -> torch.Tensor:
        if name in _AFTER_CONSTRAINTS and not self._after_constraints:
            self._after_constraints = True
            self._graphs.clear()
            with beside_torch(self.device):
                mjw.rne_postconstraint(self._model, self._data)
        return self._tensor(name)

    def parameter(self, name: str) -> torch.Tensor:
        if name not in self._parameters:
            self._check_parameter(name)
            shared = getattr(self._model, name)
            with beside_torch(self.device):
                own = wp.to_torch(shared)[:1].expand(self.n, *wp.to_torch(shared).shape[1:]).contiguous()
                setattr(self._model, name, wp.from_torch(own, dtype=shared.dtype))
            self._graphs.clear()  # they read the address of the shared field
            self._parameters[name] = own
        return self._parameters[name]

    def step(self, substeps: int = 1) -> None:
        self._launch(substeps)
        self._steps += 1
        if self.device.type == "cpu":
            self._raise_overflow(self._overflow)
        elif self._steps % _CHECK_EVERY == 0:
            # check the flags copied last time and start to copy the current ones, without synchronising
            if self._flags_copied is not None and self._flags_copied.query():
                self._raise_overflow(self._flags)
            self._flags.copy_(self._overflow, non_blocking=True)
            self._flags_copied = torch.cuda.current_stream(self.device).record_event()

    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        self._check_settable(fields)
        derived = {name: value for name, value in self._fields.items() if name not in self._state}
        before = {name: value.clone() for name, value in derived.items()}
        for name, value in self._state.items():
            _put(mask, fields.get(name, self._initial[name]).to(value.dtype), value)
        self._any.copy_(mask.any())
        self._launch(_FORWARD_IF_ANY)  # a forward pass in every world, which changes no state
        for name, value in derived.items():
            _put(~mask, before[name], value)
            if name in _AFTER_CONSTRAINTS:
                _put(mask, torch.zeros_like(value[:1]), value)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return the integration state, the registered fields, and the parameters, as `CpuSim` does."""
        self._raise_overflow(self._overflow)
        parameters = {f"model.{name}": value for name, value in self._parameters.items()}
        return {name: value.clone() for name, value in {**self._state, **self._fields, **parameters}.items()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        self._check_shape(snapshot["qpos"].shape, self._state["qpos"].shape, "coordinates")
        self._restore_parameters(snapshot)
        for name, value in self._state.items():
            value.copy_(snapshot[name])
        self._overflow.zero_()
        self._flags_copied = None  # a copy from before says nothing of the restored state
        self._launch(_FORWARD)  # for fields that were registered after the snapshot
        for name, value in snapshot.items():
            if not name.startswith("model."):
                (self._state[name] if name in self._state else self.field(name)).copy_(value)

    def close(self) -> None:
        super().close()
        self._graphs.clear()

    def _tensor(self, name: str) -> torch.Tensor:
        """Return mujoco_warp's field `name` as a torch tensor (n, ...) that shares its memory."""
        array = getattr(self._data, name, None)
        if not isinstance(array, wp.array) or name in _SHARED or array.shape[0] != self.n:
            raise AttributeError(f"'{name}' is not an array of MjData with a row per world, so it cannot be a field")
        if array.size == 0:  # such as `act` if no actuator has an activation state
            inner = getattr(array.dtype, "_shape_", ())
            return torch.zeros((*array.shape, *inner), dtype=self.dtype, device=self.device)
        return wp.to_torch(array)

    def _launch(self, substeps: int) -> None:
        """Launch the recorded graph of `substeps` steps, or of a forward pass: one call instead of thousands."""
        if substeps not in self._graphs:
            self._graphs[substeps] = self._record(substeps)
        with beside_torch(self.device):
            wp.capture_launch(self._graphs[substeps])

    def _record(self, substeps: int) -> Any:
        """Record the graph of `substeps` steps. All kernels must be compiled."""
        if substeps == _FORWARD_IF_ANY and self.device.type == "cuda":
            try:
                return self._record_branch()
            except RuntimeError as error:  # slower, still correct: each reset then costs a forward pass
                warnings.warn(f"resets are not recorded as a branch on this GPU: {error}", stacklevel=2)
                substeps = _FORWARD
        with recording(self.device) as capture:
            self._advance(substeps)
        return capture.graph

    def _record_branch(self) -> Any:
        """Record the forward pass as a conditional branch of a CUDA graph.

        A branch cannot allocate memory. So a forward pass before the recording allocates it, and the memory is kept as
        long as the graph.
        """
        memory = _ReplayAllocator(self.device)
        with beside_torch(self.device) as warp_device, wp.ScopedAllocator(warp_device, memory):
            self._advance(_FORWARD)
            memory.rewind()
            with recording(self.device) as capture:
                self._advance(_FORWARD_IF_ANY)
        self._branch_memory = memory
        return capture.graph

    def _advance(self, substeps: int) -> None:
        if substeps == _FORWARD:
            self._forward()
            return
        if substeps == _FORWARD_IF_ANY:
            condition: Any = wp.from_torch(self._any)
            wp.capture_if(condition, on_true=self._forward)
            return
        for _ in range(substeps):
            mjw.step(self._model, self._data)
        if self._after_constraints:
            mjw.rne_postconstraint(self._model, self._data)

    def _forward(self) -> None:
        mjw.forward(self._model, self._data)

    def _raise_overflow(self, flags: torch.Tensor) -> None:
        if not (errors := flags & _WRONG_PHYSICS).any():
            return
        world, sizes = int(torch.nonzero(errors)[0]), self.capacity
        kinds = int(errors[world])
        if kinds & int(_CONSTRAINTS):
            problem = f"World {world} needed more than constraints={sizes.constraints} constraint rows"
            raise Overflow(f"{problem}; raise the model's numeric 'max_constraints'.")
        if kinds & int(_CONTACTS):
            problem = f"The {self.n} worlds needed more than contacts={sizes.contacts} each on average"
            raise Overflow(f"{problem}; raise the model's numeric 'max_contacts'.")
        raise Overflow(f"World {world} ran out of room for {mjw.OverflowType(kinds).name} data, whose size is fixed.")


class _ReplayAllocator:
    """A Warp allocator that, after `rewind`, returns the blocks of the first pass again in the same order."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._next = device, 0
        self._blocks: list[torch.Tensor] = []

    def rewind(self) -> None:
        self._next = 0

    def allocate(self, size_in_bytes: int) -> int:
        if self._next == len(self._blocks):
            self._blocks.append(torch.empty(size_in_bytes, dtype=torch.uint8, device=self._device))
        block, self._next = self._blocks[self._next], self._next + 1
        if len(block) < size_in_bytes:
            raise RuntimeError(f"a forward pass allocates {size_in_bytes} bytes, but the first one {len(block)}")
        return block.data_ptr()

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        pass  # blocks are kept


def _put(mask: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy `source` (n, ...) or (1, ...) into the rows of `target` (n, ...) where `mask` (n,) bool is True."""
    torch.where(mask.view(-1, *[1] * (target.ndim - 1)), source, target, out=target)
