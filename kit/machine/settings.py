"""Performance settings: thread limits for worker processes, and TF32 on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def worker_environment(threads: int, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a worker process: `environment` (default: this process's), with `threads` threads.

    Variables that are set already keep their values.
    """
    environment = os.environ if environment is None else environment
    caps = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
    # passive: waiting threads sleep; threads that spun made a minibatch take 24 instead of 10 ms
    return {**caps, "OMP_WAIT_POLICY": "passive", **environment}


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one PyTorch thread in the block. Faster for small batches; ten times as fast on a busy machine.

    If a program uses one of two cores, every layer waits until its second thread gets that core (measured: 13 ms per
    small convolution).
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def apply(device: str) -> str:
    """Turn on TF32 matrix products if `device` supports them (NVIDIA from Ampere on); return "tf32", else "full".

    TF32 uses 19 of 32 bits: the relative precision is about 1e-3, and products are several times faster.
    """
    import torch

    if not device.startswith("cuda") or torch.cuda.get_device_capability(device)[0] < 8:
        return "full"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    return "tf32"


def gpu_works() -> bool:
    """Return whether both torch and Warp can use a GPU of this machine. Warp may need a newer driver than torch."""
    import torch

    if not torch.cuda.is_available():
        return False
    from kit.machine.warp import why_warp_cannot_use_gpu

    return why_warp_cannot_use_gpu() is None
