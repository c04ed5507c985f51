"""The simulator interface: `n` worlds of one model, their state as torch tensors, on whichever machine runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import mujoco
import torch


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

    model: mujoco.MjModel
    n: int
    device: torch.device
    dtype: torch.dtype
    """float64 for MuJoCo in C, float32 for MuJoCo Warp."""

    @abstractmethod
    def field(self, name: str) -> torch.Tensor:
        """The tensor (n, ...) of MjData's field `name`, kept current from now on."""

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.field(name)

    @abstractmethod
    def step(self, substeps: int = 1, prepare: Callable[[], object] | None = None) -> None:
        """Advance every world by `substeps` of `model.opt.timestep` seconds with the present inputs. What writes these
        inputs may be left to `prepare`, which is called first: on the CPU it runs while other threads are waking up."""

    @abstractmethod
    def reset(self, mask: torch.Tensor, **fields: torch.Tensor) -> None:
        """Put the worlds of `mask` (n,) bool into the model's initial state, then write `fields` (full width, leading
        size n; only the masked rows are used; any of qpos, qvel, act, ctrl, mocap_pos, mocap_quat) and recompute what
        follows from them (`mj_forward`). The other worlds are untouched."""

    def diverged(self) -> torch.Tensor | None:
        """The worlds (n,) bool whose physics became unstable in the last step, so that their state means nothing until
        they are reset; None when it is known, without asking the device, that there is none."""
        return ~(self.qpos.isfinite().all(1) & self.qvel.isfinite().all(1))

    def parameter(self, name: str) -> torch.Tensor | None:
        """The model's field `name` with a row per world (n, ...), to be written in place; None where all worlds share
        one model, as they do in C."""
        return None

    @abstractmethod
    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of everything that decides the future of every world, as tensors on the CPU or the device."""

    @abstractmethod
    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Return to a `snapshot` of a simulator of the same model and n, bit for bit on the CPU."""

    @abstractmethod
    def render(
        self, cameras: tuple[str, ...], height: int, width: int, *, shadows: bool = False, samples: int = 1
    ) -> torch.Tensor:
        """Pictures of every world, uint8 (n, len(cameras), height, width, 3), RGB. The defaults suit a network's eyes;
        people's like shadows, and 2 samples per pixel and axis."""

    def close(self) -> None:
        """Give back threads and memory."""
        return None
