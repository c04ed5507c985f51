"""Running out of memory: which errors mean it, in words, how to give back what is held, and when not to."""

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
"""What libraries say that have no exception of their own for it: the CUDA driver and runtime, Warp (a RuntimeError with
"Failed to allocate N bytes on device 'cuda:0'"), torch's allocator for CPUs, cuBLAS and cuDNN."""


def shortage(error: BaseException) -> str | None:
    """What memory ran out, in a few words, if that is what `error` means; else None."""
    import torch

    words = str(error).strip() or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return words.splitlines()[0]
    if not isinstance(error, RuntimeError) or isinstance(error, Overflow):  # fewer worlds would not help
        return None
    if ALLOCATION_FAILED.search(words):
        return words.splitlines()[0]
    # Whoever records a CUDA graph may say no more than that it was broken off; what came before says why.
    return None if error.__context__ is None else shortage(error.__context__)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """While a CUDA graph is recorded. Were Python to collect garbage then, and an older graph with it, freeing that
    would break the recording off or become part of it (pytorch/pytorch#161037, mujocolab/mjlab#821)."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep_freed() -> None:
    """From now on, memory that this process frees stays with it, where its C library is glibc. A batch of pictures
    takes a hundred megabytes, which otherwise go back to the system each time and come again page by page: a quarter of
    the time of an update on the CPU."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def give_back() -> None:
    """Free what nothing refers to any more, on the card too. Tracebacks refer to much: be outside the `except`."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
