"""Passes of a copier in a thread, where no request to the store may take longer than it should."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from kit.stores.base import THREAD, StoreError, in_thread
from kit.stores.copier import Copier

PATIENCE_S = 180.0
"""How long one request to a store may take, beside the time for its bytes. KIT_STORE_PATIENCE_S changes it."""
SLOWEST = 100_000
"""Bytes per second; slower than that counts as hanging."""


class Hung(StoreError):
    """A request to the store does not come back. Only with this process does its thread end."""


class Watched:
    """The copier that `make` opens, given the function that it announces its requests to. `on_wait` is called each
    second of waiting."""

    def __init__(self, make: Callable[[Callable[[str, int], None]], Copier]) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self._make = make
        self._copier: Copier | None = None
        self._patience_s = float(os.environ.get("KIT_STORE_PATIENCE_S", PATIENCE_S))
        self._announce("starting", 0)

    @property
    def interval_s(self) -> float:
        return self._copier.store.min_interval_s if self._copier else 0.0

    def run_pass(self, final: bool) -> dict[str, Any]:
        """One pass of `kit.stores.copier`. Raises what it raises, and `Hung`."""
        return self._in_time(lambda copier: copier.run_pass(final))

    def close(self, release: bool) -> None:
        """Let go of the run, if `release`."""
        if release and self._copier:
            self._in_time(Copier.close)

    def _in_time(self, work: Callable[[Copier], Any]) -> Any:
        def call() -> Any:
            if self._copier is None:
                self._copier = self._make(self._announce)
            return work(self._copier)

        self._announce("starting", 0)
        answer = in_thread(call)
        while not wait([answer], min(1.0, self._patience_s)).done:
            doing, limit_s, since = self._request
            if time.monotonic() - since > limit_s:
                stuck = "; it is stuck in the kernel, as on a dead mount" if _in_kernel() else ""
                raise Hung(f"the copier got no answer from the store for {limit_s:.0f} s while {doing}{stuck}")
            self.on_wait()
        return answer.result()

    def _announce(self, what: str, size: int) -> None:
        self._request = (what, self._patience_s + size / SLOWEST, time.monotonic())


def _in_kernel() -> bool:
    """Whether a request waits where no signal reaches it. A file system such as Google Drive's (FUSE) lets itself be
    interrupted once, and only then waits like that."""
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)
    for thread in threading.enumerate():
        if thread.name == THREAD and thread.ident:
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
    time.sleep(0.1)
    signal.signal(signal.SIGUSR1, previous)
    with contextlib.suppress(OSError):
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path("/proc/self/task").glob("*/stat")]
        return "D" in states
    return False
