"""NVIDIA Warp, configured before its first use. Import `wp` from here.

Importing this module loads torch and Warp. It sets Warp's log level, the cache folder of compiled kernels, and their
format (machine code), unless the user has set them.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import warp as wp

from kit.machine.info import kernels

__all__ = ["NEWER_DRIVER", "why_gpu_physics_is_slow", "why_warp_cannot_use_gpu", "wp"]

NEWER_DRIVER = "use a machine with a newer NVIDIA driver or GPU, `pip install 'warp-lang<1.18'`, or device='cpu'"
"""Remedy in the error about a driver or GPU that is too old for Warp.

Warp's wheels before 1.18 are built for CUDA 12, later ones for CUDA 13, which requires an R580 driver and a Turing GPU.
"""


def _init() -> None:
    """Initialise Warp. Hide the warnings that its C code prints to stderr on a machine without a GPU."""
    stderr = os.dup(2)
    with Path(os.devnull).open("w") as devnull:
        if not torch.cuda.is_available():
            os.dup2(devnull.fileno(), 2)
        try:
            wp.init()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


if wp.config.kernel_cache_dir is None:
    wp.config.kernel_cache_dir = str(kernels().parent)
if wp.config.cuda_output is None:  # PTX, the default, is compiled by the driver of every new machine
    wp.config.cuda_output = "cubin"
if wp.config.log_level == wp.LOG_INFO:
    wp.config.log_level = wp.LOG_WARNING
_init()


def why_warp_cannot_use_gpu() -> str | None:
    """Return why Warp cannot use a GPU, assuming that torch can; None if Warp can use it."""
    if wp.is_cuda_available():
        newest = max(wp.get_cuda_devices(), key=lambda device: device.arch)
        if newest.arch < min(wp.get_cuda_supported_archs(), default=0):
            return f"Warp {wp.config.version} has no kernels for a GPU as old as {newest.name}"
        if not newest.is_mempool_supported:  # MuJoCo Warp allocates memory while a CUDA graph is recorded
            return f"{newest.name} has no memory pools (as some virtual GPUs); physics needs them for CUDA graphs"
        return None
    versions = wp.get_cuda_toolkit_version(), wp.get_cuda_driver_version()
    built, driver = ("none" if each is None else ".".join(map(str, each)) for each in versions)
    return f"Warp {wp.config.version} cannot use the GPU: it is built for CUDA {built}, the driver offers {driver}"


def why_gpu_physics_is_slow() -> str | None:
    """Return why physics on this GPU is several times slower than it could be; None if it is not."""
    if wp.is_conditional_graph_supported():
        return None
    driver = ".".join(map(str, wp.get_cuda_driver_version() or ("none",)))
    return f"the driver (CUDA {driver}) has no conditional CUDA graphs, so each step runs all allowed solver iterations"
