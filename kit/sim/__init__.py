"""Batched physics and image rendering: one interface, on CPU threads (MuJoCo) and on CUDA (MuJoCo Warp)."""

from __future__ import annotations

import warnings

import mujoco
import torch

from kit.sim.base import Simulator

__all__ = ["Simulator", "make_sim"]


def make_sim(
    model: mujoco.MjModel, n: int, device: str | torch.device = "cpu", threads: int | None = None
) -> Simulator:
    """Make a simulator of `n` worlds of `model`: MuJoCo in C on `threads` CPU threads, or MuJoCo Warp on CUDA."""
    if torch.device(device).type == "cpu":
        from kit.sim.cpu import CpuSim

        return CpuSim(model, n, threads=threads)
    from kit.sim.warp import WarpSim

    return WarpSim(model, n, device=device)


def _warn(message: str) -> None:
    warnings.warn(f"MuJoCo: {message}", RuntimeWarning, stacklevel=2)


if mujoco.get_mju_user_warning() is None:  # else MuJoCo writes MUJOCO_LOG.TXT into the working directory
    mujoco.set_mju_user_warning(_warn)
