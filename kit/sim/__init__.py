"""Batched physics and pictures: one interface, two machines."""

from __future__ import annotations

import warnings

import mujoco
import torch

from kit.sim.base import Simulator

__all__ = ["Simulator", "make_sim"]


def make_sim(
    model: mujoco.MjModel, n: int, device: str | torch.device = "cpu", threads: int | None = None
) -> Simulator:
    """`n` worlds of `model` on `device`: MuJoCo in C on `threads` CPU threads, MuJoCo Warp on CUDA."""
    if torch.device(device).type == "cpu":
        from kit.sim.cpu import CpuSim

        return CpuSim(model, n, threads=threads)
    from kit.sim.warp import WarpSim

    return WarpSim(model, n, device=device)


def _warn(message: str) -> None:
    warnings.warn(f"MuJoCo: {message}", RuntimeWarning, stacklevel=2)


if mujoco.get_mju_user_warning() is None:  # else MuJoCo writes a file MUJOCO_LOG.TXT into whatever folder this is
    mujoco.set_mju_user_warning(_warn)
