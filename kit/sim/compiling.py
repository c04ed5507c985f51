"""Tell the user while Warp compiles kernels, which happens once per machine and can take minutes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.machine import host

AFTER_S, EVERY_S = 5.0, 1.0
"""Seconds before the first message, and between messages. Loading compiled kernels takes less than `AFTER_S`."""
Listener = Callable[[str], None]
"""Callback that gets a sentence from time to time while kernels compile, and an empty string afterwards."""
_listeners: list[Listener] = []
_announced: set[str] = set()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send messages to `listener`, which is called from another thread, instead of printing them."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def compiling(name: str, folder: str | Path) -> Iterator[None]:
    """Tell the user that `name` compiles if the code inside takes longer than `AFTER_S`; `folder` is Warp's cache."""
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(name, Path(folder), over), name="compiling", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(name: str, folder: Path, over: threading.Event) -> None:
    start, before = time.monotonic(), _count(folder)
    if over.wait(AFTER_S):
        return
    if not _listeners:
        _print(name, folder)
        return
    while True:
        elapsed_s = time.monotonic() - start
        for listener in _listeners:
            listener(f"compiling {name}, once per machine: {_count(folder) - before} modules in {elapsed_s:.0f} s")
        if over.wait(EVERY_S):
            break
    for listener in _listeners:
        listener("")


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.glob("wp_*"))


def _print(name: str, folder: Path) -> None:
    if name not in _announced:
        _announced.add(name)
        file = sys.stdout if host.kernel() else sys.stderr  # a notebook colours stderr red
        print(f"Compiling {name} for this machine, once; this may take a minute (cached in {folder}).", file=file)
