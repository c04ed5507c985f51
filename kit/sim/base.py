"""The simulator interface: `n` worlds of one MuJoCo model, with their state as torch tensors on CPU or CUDA."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import mujoco
import torch

from kit.errors import UserError

if TYPE_CHECKING:
    from kit.sim.render import Renderer


PARAMETERS = frozenset({
    "qpos0", "body_mass", "body_inertia", "body_ipos", "body_iquat", "pair_friction", "geom_friction", "geom_size",
    "geom_rgba", "dof_damping", "dof_armature", "dof_frictionloss", "actuator_gainprm", "actuator_biasprm",
    "jnt_stiffness",
})  # fmt: skip
"""Fields of MjModel that can differ between worlds."""


class Simulator(ABC):
    """`n` worlds of one `mujoco.MjModel`, stepped as a batch.

    Every field of MjData that a task needs is an attribute of the same name holding a tensor of leading size `n` on
    `device`: `sim.qpos` (n, nq), `sim.qvel` (n, nv), `sim.ctrl` (n, nu), `sim.xpos` (n, nbody, 3),
    `sim.xmat` (n, nbody, 3, 3), `sim.site_xpos` (n, nsite, 3), `sim.sensordata` (n, nsensordata), `sim.cfrc_ext`
    (n, nbody, 6), ... SI units, world frame unless MuJoCo says otherwise. The first use of a name registers it; from
    then on `step` and `reset` update it. The tensors are the same memory for the life of the simulator.

    `ctrl`, `qfrc_applied`, `xfrc_applied`, `mocap_pos` and `mocap_quat` are inputs: write them in place before `step`.
    Everything else is an output, changed only by `step`, `reset` and `restore`.
    """

    dtype: torch.dtype
    """float64 for MuJoCo in C, float32 for MuJoCo Warp."""
    threads: int = 1
    """CPU threads for physics and rendering."""

    def __init__(self, model: mujoco.MjModel, n: int, device: torch.device) -> None:
        if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise UserError(
                "the model has sleep enabled, but MuJoCo's state does not say which bodies sleep, so no run could be "
                'resumed; remove sleep="enable" from its options.'
            )
        self.model, self.n, self.device = model, n, device
        self._fields: dict[str, torch.Tensor] = {}
        self._renderers: dict[tuple[object, ...], Renderer] = {}

    def field(self, name: str) -> torch.Tensor:
        """Return the tensor (n, ...) of MjData's field `name`, and update it in every step from now on."""
        if name not in self._fields:
            self._fields[name] = self._register(name)
            setattr(self, name, self._fields[name])  # from now on an ordinary attribute
        return self._fields[name]

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.field(name)

    @abstractmethod
    def _register(self, name: str) -> torch.Tensor:
        """Make the tensor that `field` returns. Raises AttributeError if `name` has no batched tensor."""

    @abstractmethod
    def step(self, substeps: int = 1) -> None:
        """Advance every world by `substeps` of `model.opt.timestep` seconds with the current inputs."""

    @abstractmethod
    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        """Reset the worlds in `mask` (n,) bool to the model's initial state, with `fields` written over it.

        `fields` are any of qpos, qvel, act, ctrl, mocap_pos, mocap_quat, each with all n rows, of which those in `mask`
        are used. Derived quantities are recomputed (`mj_forward`). The other worlds are untouched.
        """

    def diverged(self) -> torch.Tensor | None:
        """Return the mask (n,) bool of worlds whose physics diverged in the last step; reset them before using them.

        None if it is known, without a device synchronisation, that no world diverged.
        """
        return ~(self.qpos.isfinite().all(1) & self.qvel.isfinite().all(1))

    @abstractmethod
    def parameter(self, name: str) -> torch.Tensor:
        """Return the model's field `name` (one of `PARAMETERS`) with a row per world, (n, ...), initially all equal.

        Write it in place, then call `derive`. Snapshots include it. Raises `AttributeError` for another name.
        """

    def derive(self, mask: torch.Tensor) -> None:
        """Recompute constants of the worlds in `mask` (n,) bool after their parameters were written.

        These are the quantities that MuJoCo derives from a model's fields: inverse weights, subtree masses, the inertia
        of simple bodies. With MuJoCo Warp they stay as compiled.
        """
        return None

    def _check_parameter(self, name: str) -> None:
        if name not in PARAMETERS:
            raise AttributeError(f"'{name}' is not a field of the model that can differ between worlds")

    def _restore_parameters(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        for name, value in snapshot.items():
            if name.startswith("model."):
                self.parameter(name[6:]).copy_(value)

    @abstractmethod
    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return a copy of the full state of every world, as tensors on the CPU or the device."""

    @abstractmethod
    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Restore a `snapshot` of a simulator of the same model and n; exact to the bit on the CPU."""

    def _check_shape(self, shape: Sequence[int], own: Sequence[int], unit: str) -> None:
        """Raise `UserError` if the snapshot's state has another `shape` (worlds, numbers) than this simulator's."""
        if tuple(shape) != tuple(own):
            raise UserError(
                f"the snapshot holds {shape[0]} worlds of {shape[1]} {unit}, this simulator {own[0]} of {own[1]}; "
                "build it with the same model and number of envs."
            )

    def render(
        self, cameras: tuple[str, ...], height: int, width: int, *, shadows: bool = False,
        worlds: torch.Tensor | None = None, poses: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> torch.Tensor:  # fmt: skip
        """Render RGB images of all worlds, or of the worlds with numbers `worlds` (k,).

        Returns uint8 (n or k, len(cameras), height, width, 3). `shadows` make images easier to read for people.
        `poses` replaces fields of the worlds, such as "geom_xpos" (n, geoms, 3), or the model's colours, "geom_rgba"
        (n, geoms, 4).
        """
        from kit.sim.render import POSES, Renderer

        key = (tuple(cameras), height, width, shadows)
        if key not in self._renderers:
            args = (self.model, self.n, *key[:3], self.device)
            self._renderers[key] = Renderer(*args, shadows=shadows, threads=self.threads)
        rendered = {name: self.field(name) for name in POSES} | dict(poses)
        if worlds is not None:
            rendered = {name: value.index_select(0, worlds) for name, value in rendered.items()}
        return self._renderers[key].render(rendered)

    def close(self) -> None:
        """Release threads and memory."""
        self._renderers.clear()
