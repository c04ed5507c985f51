"""Warp beside torch: the same device and stream, and a word to the user while kernels compile."""

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
    """`device` with its number ("cuda" is the current one of possibly several), if there is one to use."""
    device = torch.device(device)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError(f"device={str(device)!r} was asked for, but torch finds no CUDA GPU; use device='cpu'.")
    if reason := why_warp_cannot_use_gpu():
        raise UserError(f"device={str(device)!r} was asked for, but {reason}; {NEWER_DRIVER}.")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


@contextmanager
def beside_torch(device: torch.device) -> Iterator[wp.Device]:
    """Warp arrays made and kernels launched inside belong to torch's `device` and run in order with torch's work:
    on CUDA they share torch's current stream, so neither ever waits for the other."""
    warp_device = wp.device_from_torch(device)
    with wp.ScopedDevice(warp_device):
        if warp_device.is_cuda:
            stream = wp.stream_from_torch(torch.cuda.current_stream(device))
            with wp.ScopedStream(stream, sync_enter=False):  # on Warp's own stream there is nothing to wait for
                yield warp_device
        else:
            yield warp_device


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    """What is inside goes to another stream of torch's. In order with the present one, for Warp fills memory for the
    graph even while it records."""
    main, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield
    main.wait_stream(side)


@contextmanager
def recording(device: torch.device) -> Iterator[wp.ScopedCapture]:
    """Launches made inside are recorded as a graph, which is the answer's `graph` afterwards.

    On CUDA they are recorded on a stream of torch's: its default stream cannot be recorded, and while one of Warp's own
    is, which are "blocking", whatever another thread asks of the default stream fails and spoils the recording (CUDA's
    error 906), such as the copy of a checkpoint on its way to disk."""
    aside = _aside(device) if device.type == "cuda" else nullcontext()
    with aside, beside_torch(device), no_garbage_collection(), wp.ScopedCapture(force_module_load=False) as capture:
        yield capture


def compiling(what: str) -> AbstractContextManager[None]:
    """Around a first launch: if it takes longer than a moment, it is said what is going on."""
    return announced(what, str(wp.config.kernel_cache_dir))
