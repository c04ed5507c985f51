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
    "qpos0", "body_mass", "body_inertia", "body_ipos", "body_iquat", "pair_friction", "geom_friction", "geom_rgba",
    "dof_damping", "dof_armature", "dof_frictionloss", "actuator_gainprm", "actuator_biasprm", "jnt_stiffness",
})  # fmt: skip
"""Fields of MjModel that can differ between worlds."""
SETTABLE = frozenset({"qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat"})
"""Fields of MjData that a reset can set."""


class Simulator(ABC):
    """`n` worlds of one `mujoco.MjModel`, stepped as a batch.

    Every field of MjData that a task needs is an attribute of the same name holding a tensor of leading size `n` on
    `device`: `sim.qpos` (n, nq), `sim.qvel` (n, nv), `sim.ctrl` (n, nu), `sim.xpos` (n, nbody, 3),
    `sim.xmat` (n, nbody, 3, 3), `sim.site_xpos` (n, nsite, 3), `sim.sensordata` (n, nsensordata), `sim.cfrc_ext`
    (n, nbody, 6), ... SI units, world frame unless MuJoCo says otherwise. The first use of a name registers it; from
    then on `step` and `reset` update it in place, so you can keep the tensor: it is always up to date.

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
                "the model has sleep enabled, but MuJoCo's state does not say which bodies sleep, so runs could not be "
                'resumed; remove sleep="enable" from its options.'
            )
        self.model, self.n, self.device = model, n, device
        self._fields: dict[str, torch.Tensor] = {}
        self._parameters: dict[str, torch.Tensor] = {}
        self._renderers: dict[tuple[object, ...], Renderer] = {}

    def field(self, name: str) -> torch.Tensor:
        """Return the tensor (n, ...) of MjData's field `name`; every later step updates it."""
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
        """Make the tensor that `field` returns. Raises `AttributeError` if its size per world is not fixed."""

    @abstractmethod
    def step(self, substeps: int = 1) -> None:
        """Advance every world by `substeps` physics steps of `model.opt.timestep` seconds with the current inputs."""

    @abstractmethod
    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        """Reset the worlds where `mask` (n,) bool is True to the model's initial state, except for `fields`.

        `fields` are any of `SETTABLE`. Each has n rows; only those of the reset worlds are used. Derived quantities are
        recomputed (`mj_forward`). The other worlds do not change.
        """

    def _check_settable(self, fields: Mapping[str, torch.Tensor]) -> None:
        if unknown := fields.keys() - SETTABLE:
            raise UserError(f"reset cannot set {sorted(unknown)}; it sets {', '.join(sorted(SETTABLE))}.")

    def diverged(self) -> torch.Tensor | None:
        """Return (n,) bool: True if the world's physics diverged in the last step.

        Return None if the simulator knows without synchronising that no world diverged.
        """
        return ~(self.qpos.isfinite().all(1) & self.qvel.isfinite().all(1))

    @abstractmethod
    def parameter(self, name: str) -> torch.Tensor:
        """Return the model's field `name` (one of `PARAMETERS`) as a tensor (n, ...), in which worlds may differ.

        At first all rows are equal. Write it in place, then call `derive`. Snapshots include it. Raises
        `AttributeError` for another name.
        """

    def derive(self, mask: torch.Tensor) -> None:
        """Recompute the constants that MuJoCo derives from the model's fields, in the worlds where `mask` (n,) is True.

        The constants are inverse weights, subtree masses and the like. Call this after a change of a `parameter`.
        With MuJoCo Warp, this does nothing: the constants keep the values of the compiled model. They scale the
        softness of contacts and limits. With a Go1's masses times 1.6, 20 physics steps change by 6.5e-2, and differ
        from the CPU's by 1.1e-3; by 1.6e-3 of 4.7e-2 for the armature, and 6e-4 of 7e-2 for the centres of mass.
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
        """Return a copy of the full state of every world, as tensors on the CPU or on `device`."""

    @abstractmethod
    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Restore a `snapshot` from a simulator with the same model and n. On the CPU, later steps are bit-exact."""

    def _check_shape(self, shape: Sequence[int], own: Sequence[int], unit: str) -> None:
        """Raise `UserError` unless a snapshot has this simulator's `own` shape (worlds, numbers)."""
        if tuple(shape) != tuple(own):
            raise UserError(
                f"the snapshot holds {shape[0]} worlds of {shape[1]} {unit}, this simulator {own[0]} of {own[1]}; "
                "build it with the same model and number of envs."
            )

    def render(
        self, cameras: tuple[str, ...], height: int, width: int, *, shadows: bool = False,
        worlds: torch.Tensor | None = None, poses: Mapping[str, torch.Tensor] = MappingProxyType({}),
        recoloured: Sequence[int] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Render RGB images, uint8 (n, len(cameras), height, width, 3).

        `worlds` (k,) are the indices of the worlds to render; the result then has k rows. None means all worlds.
        `shadows` make images easier to understand for people. `poses` replace the simulator's fields of the same name,
        such as "geom_xpos" (n, geoms, 3), or the model's colours, "geom_rgba" (n, geoms, 4). `recoloured`: ids of the
        geoms whose colours may change; the other geoms that do not move are then drawn once and reused.
        """
        from kit.sim.render import POSES, Renderer

        if "geom_rgba" in self._parameters:
            poses = {"geom_rgba": self._parameters["geom_rgba"], **poses}
        fixed = POSES.keys().isdisjoint(poses)
        key = (tuple(cameras), height, width, shadows, None if recoloured is None else tuple(recoloured), fixed)
        if key not in self._renderers:
            self._renderers[key] = Renderer(
                self.model, self.n, cameras, height, width, self.device, shadows=shadows, threads=self.threads,
                recoloured=recoloured, fixed=fixed,
            )  # fmt: skip
        rendered = {name: self.field(name) for name in POSES} | dict(poses)
        if worlds is not None:
            rendered = {name: value.index_select(0, worlds) for name, value in rendered.items()}
        return self._renderers[key].render(rendered)

    def close(self) -> None:
        """Release threads and memory."""
        self._renderers.clear()
