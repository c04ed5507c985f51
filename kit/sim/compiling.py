"""A word to the user while kernels compile, which happens once per machine and may take minutes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

AFTER_S, EVERY_S = 5.0, 1.0
"""Loading kernels that are compiled already takes less than the first."""
Tell = Callable[[str], None]
"""Told a sentence from time to time while kernels compile, and an empty one afterwards."""
_listeners: list[Tell] = []
_announced: set[str] = set()


@contextmanager
def listening(tell: Tell) -> Iterator[None]:
    """While the block runs, `tell` hears what would otherwise be printed. From a thread of its own."""
    _listeners.append(tell)
    try:
        yield
    finally:
        _listeners.remove(tell)


@contextmanager
def compiling(what: str, folder: str | Path) -> Iterator[None]:
    """Around a first launch: if it takes longer than a moment, it is said what is going on. `folder` is where compiled
    kernels are kept, one directory each."""
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(what, Path(folder), over), name="compiling", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(what: str, folder: Path, over: threading.Event) -> None:
    begun, before = time.monotonic(), count(folder)
    if over.wait(AFTER_S):
        return
    if not _listeners:
        _print(what, folder)
        return
    while True:
        passed_s = time.monotonic() - begun
        for tell in _listeners:
            tell(f"compiling {what}, once per machine: {count(folder) - before} kernels in {passed_s:.0f} s")
        if over.wait(EVERY_S):
            break
    for tell in _listeners:
        tell("")


def count(folder: Path) -> int:
    """Compiled modules in `folder`."""
    return sum(1 for _ in folder.glob("wp_*"))


def _print(what: str, folder: Path) -> None:
    if what not in _announced:
        _announced.add(what)
        where = sys.stdout if "ipykernel" in sys.modules else sys.stderr  # a notebook paints stderr red
        print(f"Compiling {what} for this machine, once; this may take a minute (kept in {folder}).", file=where)
