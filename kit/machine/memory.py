"""Memory: recognise out-of-memory errors, free memory, and control when memory is freed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Iterator

from kit.errors import Overflow

ALLOCATION_FAILED = re.compile(
    r"out of memory|failed to allocate|can't allocate memory|not enough memory|\w*_STATUS_ALLOC_FAILED", re.IGNORECASE
)
"""Out-of-memory messages of libraries without an exception class for it: the CUDA driver and runtime, Warp (a
RuntimeError with "Failed to allocate N bytes on device 'cuda:0'"), torch's CPU allocator, cuBLAS and cuDNN."""


def shortage(error: BaseException) -> str | None:
    """Return the first line of an out-of-memory `error`; None for any other error."""
    import torch

    message = str(error).strip() or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return message.splitlines()[0]
    # an Overflow (too few contacts allocated per env) is no shortage: fewer envs, the caller's remedy, would not help
    if not isinstance(error, RuntimeError) or isinstance(error, Overflow):
        return None
    if ALLOCATION_FAILED.search(message):
        return message.splitlines()[0]
    # Out of memory while a CUDA graph is recorded: the last error only says that the recording failed. The exception
    # raised before it (its __context__) gives the reason.
    return None if error.__context__ is None else shortage(error.__context__)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Context manager: disable Python's garbage collector while a CUDA graph is recorded.

    The collector might destroy an older graph. That call would abort the recording, or be recorded into the new graph
    (pytorch/pytorch#161037, mujocolab/mjlab#821).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_freed() -> None:
    """Make glibc keep freed memory for reuse instead of returning it to the system. No effect without glibc.

    A batch of images takes a hundred megabytes. If its memory is returned, the system maps it again page by page for
    the next batch, which takes a quarter of the time of an update on the CPU.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def give_back() -> None:
    """Free unreferenced memory, on the GPU too. Call it outside the `except` block: tracebacks hold references."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
