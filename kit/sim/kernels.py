"""Warp beside torch: the same device and stream, no chatter, and a word to the user while kernels compile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import warp as wp

from kit.errors import UserError
from kit.machine import cache
from kit.machine.memory import nothing_collected
from kit.sim.compiling import compiling as announced


@contextmanager
def _without_stderr() -> Iterator[None]:
    """What C code says meanwhile goes nowhere."""
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


if wp.config.kernel_cache_dir is None:  # the user's own choice of folder stays
    wp.config.kernel_cache_dir = str(cache.kernels().parent)
if wp.config.log_level == wp.LOG_INFO:  # the user's own choice of level stays
    wp.config.log_level = wp.LOG_WARNING
with nullcontext() if torch.cuda.is_available() else _without_stderr():  # having no GPU is no reason for a warning
    wp.init()
import mujoco_warp as mjw  # noqa: E402  initialises Warp, so after the lines above: take both names from here

__all__ = ["beside_torch", "compiling", "mjw", "numbered", "out_of_reach", "recording", "wp"]


NEWER_DRIVER = "use a machine with a newer NVIDIA driver or card, `pip install 'warp-lang<1.18'`, or device='cpu'"
"""What to do when Warp needs more than torch does: wheels before 1.18 are built for CUDA 12, later ones for CUDA 13,
which want an R580 driver and a Turing card."""


def out_of_reach() -> str | None:
    """Why Warp cannot use the GPU that torch can, in words; None if it can."""
    if wp.is_cuda_available():
        card, least = (
            max(wp.get_cuda_devices(), key=lambda card: card.arch),
            min(wp.get_cuda_supported_archs(), default=0),
        )
        return (
            None if card.arch >= least else f"Warp {wp.config.version} has no kernels for a card as old as {card.name}"
        )
    built, driver = (
        "none" if found is None else ".".join(map(str, found))
        for found in (wp.get_cuda_toolkit_version(), wp.get_cuda_driver_version())
    )
    return f"Warp {wp.config.version} cannot use the GPU: it is built for CUDA {built}, the driver offers {driver}"


def numbered(device: str | torch.device) -> torch.device:
    """`device` with its number ("cuda" is the current one of possibly several), if there is one to use."""
    device = torch.device(device)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError(f"device={str(device)!r} was asked for, but torch finds no CUDA GPU; use device='cpu'.")
    if reason := out_of_reach():
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
    with aside, beside_torch(device), nothing_collected(), wp.ScopedCapture(force_module_load=False) as capture:
        yield capture


def compiling(what: str) -> AbstractContextManager[None]:
    """Around a first launch: if it takes longer than a moment, it is said what is going on."""
    return announced(what, str(wp.config.kernel_cache_dir))
