"""Switches that make the same arithmetic faster: thread caps, so that nothing fights for cores, and TF32 on GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping


def worker_environment(threads: int, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a worker process that should use `threads` cores; values the user set stay."""
    environment = os.environ if environment is None else environment
    # A thread that spins while it waits takes the core from the one it waits for: 24 ms a minibatch instead of 10.
    caps = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
    return {**caps, "OMP_WAIT_POLICY": "passive", **environment}


def apply(device: str) -> str:
    """Let this process multiply float32 as "tf32" where `device` can (NVIDIA from Ampere on), else in "full"; says
    which. TF32 keeps 19 bits of 32, about 1e-3 relative, and is several times faster."""
    import torch

    if not device.startswith("cuda") or torch.cuda.get_device_capability(device)[0] < 8:
        return "full"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    return "tf32"


def gpu_works() -> bool:
    """Whether networks and physics can both use a GPU here: Warp may need a newer driver than torch does."""
    import torch

    if not torch.cuda.is_available():
        return False
    from kit.machine.warp import why_warp_cannot_use_gpu

    return why_warp_cannot_use_gpu() is None
