"""The simulator interface: `n` worlds of one model, their state as torch tensors, on whichever machine runs them."""

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
"""Fields of MjModel that may differ between worlds."""


class Simulator(ABC):
    """`n` worlds of one `mujoco.MjModel`, stepped together.

    Every MjData quantity a task needs is an attribute of the same name holding a tensor of leading size `n` on
    `device`: `sim.qpos` (n, nq), `sim.qvel` (n, nv), `sim.ctrl` (n, nu), `sim.xpos` (n, nbody, 3),
    `sim.xmat` (n, nbody, 3, 3), `sim.site_xpos` (n, nsite, 3), `sim.sensordata` (n, nsensordata), `sim.cfrc_ext`
    (n, nbody, 6), ... SI units, world frame unless MuJoCo says otherwise. The first use of a name registers it; from
    then on `step` and `reset` keep it current. The tensors are the same memory for the life of the simulator.

    `ctrl`, `qfrc_applied`, `xfrc_applied`, `mocap_pos` and `mocap_quat` are inputs: write them in place before `step`.
    Everything else is an output, changed only by `step`, `reset` and `restore`.
    """

    dtype: torch.dtype
    """float64 for MuJoCo in C, float32 for MuJoCo Warp."""
    threads: int = 1
    """Of the CPU, that share physics and pictures."""

    def __init__(self, model: mujoco.MjModel, n: int, device: torch.device) -> None:
        if model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise UserError(
                "the model has sleep enabled, but MuJoCo's state does not say who sleeps, so no run could be resumed; "
                'remove sleep="enable" from its options.'
            )
        self.model, self.n, self.device = model, n, device
        self._fields: dict[str, torch.Tensor] = {}
        self._renderers: dict[tuple[object, ...], Renderer] = {}

    def field(self, name: str) -> torch.Tensor:
        """The tensor (n, ...) of MjData's field `name`, kept current from now on."""
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
        """What `field` gives from now on. Raises AttributeError if it cannot be had."""

    @abstractmethod
    def step(self, substeps: int = 1) -> None:
        """Advance every world by `substeps` of `model.opt.timestep` seconds with the present inputs."""

    @abstractmethod
    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        """Put the worlds of `mask` (n,) bool into the model's initial state, then write `fields` (full width, leading
        size n; only the masked rows are used; any of qpos, qvel, act, ctrl, mocap_pos, mocap_quat) and recompute what
        follows from them (`mj_forward`). The other worlds are untouched."""

    def diverged(self) -> torch.Tensor | None:
        """The worlds (n,) bool whose physics became unstable in the last step, so that their state means nothing until
        they are reset; None when it is known, without asking the device, that there is none."""
        return ~(self.qpos.isfinite().all(1) & self.qvel.isfinite().all(1))

    @abstractmethod
    def parameter(self, name: str) -> torch.Tensor:
        """The model's field `name` (one of `PARAMETERS`) with a row per world (n, ...), at first all alike: write it in
        place, then call `derive`. It is part of snapshots. Raises `AttributeError`."""

    def derive(self, mask: torch.Tensor) -> None:
        """Compute what MuJoCo derives from a model's fields (inverse weights, subtree masses, the inertia of simple
        bodies) for the worlds of `mask` (n,) bool, whose parameters were written. MuJoCo Warp leaves it as compiled."""
        return None

    def _check_parameter(self, name: str) -> None:
        if name not in PARAMETERS:
            raise AttributeError(f"'{name}' is not a field of the model that worlds may have for themselves")

    def _restore_parameters(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        for name, value in snapshot.items():
            if name.startswith("model."):
                self.parameter(name[6:]).copy_(value)

    @abstractmethod
    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of everything that decides the future of every world, as tensors on the CPU or the device."""

    @abstractmethod
    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Return to a `snapshot` of a simulator of the same model and n, bit for bit on the CPU."""

    def _compare(self, kept: Sequence[int], own: Sequence[int], unit: str) -> None:
        """Raise `UserError` if a snapshot is of another shape, (worlds, numbers)."""
        if tuple(kept) != tuple(own):
            raise UserError(
                f"the snapshot holds {kept[0]} worlds of {kept[1]} {unit}, this simulator {own[0]} of {own[1]}; "
                "build it with the same model and number of envs."
            )

    def render(
        self, cameras: tuple[str, ...], height: int, width: int, *, shadows: bool = False,
        worlds: torch.Tensor | None = None, poses: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> torch.Tensor:  # fmt: skip
        """Pictures of every world, or of those numbered `worlds` (k,), uint8 (n or k, len(cameras), height, width, 3),
        RGB. People's eyes like `shadows`. `poses`: what to draw in place of the worlds' own fields, such as "geom_xpos"
        (n, geoms, 3), or of the model's colours, "geom_rgba" (n, geoms, 4)."""
        from kit.sim.render import POSES, Renderer

        key = (tuple(cameras), height, width, shadows)
        if key not in self._renderers:
            args = (self.model, self.n, *key[:3], self.device)
            self._renderers[key] = Renderer(*args, shadows=shadows, threads=self.threads)
        drawn = {name: self.field(name) for name in POSES} | dict(poses)
        if worlds is not None:
            drawn = {name: value.index_select(0, worlds) for name, value in drawn.items()}
        return self._renderers[key].render(drawn)

    def close(self) -> None:
        """Give back threads and memory."""
        self._renderers.clear()
