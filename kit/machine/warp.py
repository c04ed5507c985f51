"""Warp, set up before its first use, and whether it can use the GPU that torch uses. Import `wp` from here.

Kernels go to a folder that stays, and Warp keeps quiet; what the user chose of both stays. Loads torch and Warp.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import warp as wp

from kit.machine.info import kernels

__all__ = ["NEWER_DRIVER", "why_warp_cannot_use_gpu", "wp"]

NEWER_DRIVER = "use a machine with a newer NVIDIA driver or card, `pip install 'warp-lang<1.18'`, or device='cpu'"
"""What to do when Warp needs more than torch does: wheels before 1.18 are built for CUDA 12, later ones for CUDA 13,
which want an R580 driver and a Turing card."""


def _init() -> None:
    """Without a GPU, which is no reason for a warning, nothing that C code says meanwhile is shown."""
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        if not torch.cuda.is_available():
            os.dup2(nowhere.fileno(), 2)
        try:
            wp.init()
        finally:
            os.dup2(kept, 2)
            os.close(kept)


if wp.config.kernel_cache_dir is None:
    wp.config.kernel_cache_dir = str(kernels().parent)
if wp.config.log_level == wp.LOG_INFO:
    wp.config.log_level = wp.LOG_WARNING
_init()


def why_warp_cannot_use_gpu() -> str | None:
    """Why Warp cannot use the GPU that torch can, in words; None if it can."""
    if wp.is_cuda_available():
        card = max(wp.get_cuda_devices(), key=lambda card: card.arch)
        old = card.arch < min(wp.get_cuda_supported_archs(), default=0)
        return f"Warp {wp.config.version} has no kernels for a card as old as {card.name}" if old else None
    versions = wp.get_cuda_toolkit_version(), wp.get_cuda_driver_version()
    built, driver = ("none" if found is None else ".".join(map(str, found)) for found in versions)
    return f"Warp {wp.config.version} cannot use the GPU: it is built for CUDA {built}, the driver offers {driver}"
