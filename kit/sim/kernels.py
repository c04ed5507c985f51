"""Run Warp on torch's device and CUDA stream, record CUDA graphs, and tell the user when kernels compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from kit.errors import UserError
from kit.machine.memory import no_garbage_collection
from kit.machine.warp import NEWER_DRIVER, why_warp_cannot_use_gpu, wp
from kit.sim.compiling import compiling as announced

__all__ = ["beside_torch", "compiling", "numbered", "recording", "wp"]


def numbered(device: str | torch.device) -> torch.device:
    """Return `device` with its index: "cuda" becomes the current GPU. Raises `UserError` if it cannot be used."""
    device = torch.device(device)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError(f"device={str(device)!r} cannot be used: torch finds no CUDA GPU; use device='cpu'.")
    if reason := why_warp_cannot_use_gpu():
        raise UserError(f"device={str(device)!r} cannot be used: {reason}; {NEWER_DRIVER}.")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


@contextmanager
def beside_torch(device: torch.device) -> Iterator[wp.Device]:
    """Let Warp use torch's `device` and current CUDA stream, so that neither has to synchronise for the other."""
    warp_device = wp.device_from_torch(device)
    with wp.ScopedDevice(warp_device):
        if warp_device.is_cuda:
            stream = wp.stream_from_torch(torch.cuda.current_stream(device))
            with wp.ScopedStream(stream, sync_enter=False):  # no work is pending on Warp's own stream
                yield warp_device
        else:
            yield warp_device


@contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """Run the code inside on another torch stream, after the current stream's work and before its later work.

    The order matters, because Warp, while it records, also executes some fills of memory at once.
    """
    main, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield
    main.wait_stream(side)


@contextmanager
def recording(device: torch.device) -> Iterator[wp.ScopedCapture]:
    """Record the launches inside as a CUDA graph; afterwards the yielded object's `graph` holds it.

    torch's default stream cannot be recorded, so another torch stream is used, not one of Warp's: Warp's streams are
    "blocking", and another thread that uses the default stream during a recording would make it fail (CUDA error 906).
    """
    stream = _side_stream(device) if device.type == "cuda" else nullcontext()
    with stream, beside_torch(device), no_garbage_collection(), wp.ScopedCapture(force_module_load=False) as capture:
        yield capture


def compiling(name: str) -> AbstractContextManager[None]:
    """Tell the user that `name` is being compiled, if the code inside takes several seconds."""
    return announced(name, str(wp.config.kernel_cache_dir))
