"""The main loop of the copier process (`kit.stores.__main__`): calls the copier, retries, writes .sync.json.

RUN_DIR/.sync.json   {"url", "step", "time", "state", "error", "owner", "failures", "pid", "updated"}
  state   "ok" (the newest checkpoint is verified in the store, or cannot be copied and retrying would not help: see
          error), "behind" (not yet), "failing" (see error)
  step, time   of the newest checkpoint verified in the store
  failures     number of failed passes since the last one that succeeded
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.format.checkpoint import committed
from kit.format.files import write_atomic
from kit.stores import lease
from kit.stores.base import THREAD, StoreError, in_thread
from kit.stores.copier import Copier, Watch
from kit.stores.redact import one_line

STATE = ".sync.json"
TICK_S = 0.25
HEARTBEAT_S = 5.0
REFRESH_S = 240.0
"""Seconds between passes if there is no new checkpoint; they copy metrics and status, and replace lost files."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0
"""Seconds before the first retry; the pause doubles after each failure, up to the second value."""
ORPHAN_S = 24 * 3600.0
"""Seconds of retries after training has ended, if the store cannot be reached."""
PATIENCE_S = 180.0
"""Time limit of a request in seconds, to which size / SLOWEST is added. KIT_STORE_PATIENCE_S changes it."""
SLOWEST = 100_000
"""Bytes per second; a slower transfer counts as hanging."""


class Hung(StoreError):
    """A request to the store exceeded its time limit. Only the end of the process ends its thread."""


class Watched:
    """Runs a `Copier` in a thread and raises `Hung` when a request exceeds its time limit.

    `make(watch)` opens the store and returns the copier, which calls `watch` before each request. `on_wait` is called
    once a second while a request runs.
    """

    def __init__(self, make: Callable[[Watch], Copier]) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self._make = make
        self._copier: Copier | None = None
        self._patience_s = float(os.environ.get("KIT_STORE_PATIENCE_S", PATIENCE_S))

    @property
    def interval_s(self) -> float:
        """Minimum seconds between passes."""
        return self._copier.store.min_interval_s if self._copier else 0.0

    def run_pass(self, final: bool) -> dict[str, Any]:
        """Return `Copier.run_pass(final)`. Raises its errors, and `Hung`."""
        return self._with_deadlines(lambda copier: copier.run_pass(final))

    def close(self) -> None:
        """Release the lease."""
        if self._copier:
            self._with_deadlines(Copier.close)

    def _with_deadlines(self, work: Callable[[Copier], Any]) -> Any:
        """Return `work(copier)`, run in a thread. Raises `Hung`."""

        def call() -> Any:
            if self._copier is None:
                self._copier = self._make(self._announce)
            return work(self._copier)

        self._announce("starting", 0)
        future = in_thread(call)
        while not wait([future], min(1.0, self._patience_s)).done:
            request, limit_s, since = self._request
            if time.monotonic() - since > limit_s:
                stuck = "; it is stuck in the kernel, as on a dead mount" if _in_kernel() else ""
                raise Hung(f"the copier got no answer from the store for {limit_s:.0f} s while {request}{stuck}")
            self.on_wait()
        return future.result()

    def _announce(self, request: str, size: int) -> None:
        self._request = (request, self._patience_s + size / SLOWEST, time.monotonic())


def _in_kernel() -> bool:
    """Whether a thread is in uninterruptible sleep (state D), so that the process cannot even be killed.

    A request to a FUSE file system, such as Google Drive's, enters that state only after a signal; hence the signal.
    """
    signal.signal(signal.SIGUSR1, lambda *_: None)
    for thread in threading.enumerate():
        if thread.name == THREAD and thread.ident:
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
    time.sleep(0.1)
    with contextlib.suppress(OSError):
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path("/proc/self/task").glob("*/stat")]
        return "D" in states
    return False


@dataclass
class Sync:
    """The loop of the copier process.

    `should_drain()`: whether training is over; the loop then copies the rest and returns. `restart(before)` replaces
    the process after a request hung and does not return; the loop of the new process gets `before`. `clock` gives
    timestamps; `timer` measures durations, because the clock may be set meanwhile.
    """

    run_dir: Path
    url: str
    owner: str
    copier: Watched
    should_drain: Callable[[], bool]
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tick_s: float = TICK_S
    restart: Callable[[dict[str, Any]], object] = lambda before: None
    before: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.state: dict[str, Any] = {
            **{"url": self.url, "step": None, "time": None, "state": "behind", "error": None},
            **{"owner": self.owner, "failures": 0, "pid": os.getpid(), "updated": self.clock()},
        }
        self._next_pass, self._last_pass, self._pending = float("-inf"), float("-inf"), True
        self._written = float("-inf")
        self._drain_since: float | None = None
        if self.before:
            self.state |= self.before["state"]
            self._drain_since, self._next_pass = self.before["drain_since"], self.timer() + self._pause_s()

    def run(self) -> int:
        """Copy until training is over and everything has arrived.

        Return the exit code: 0 done, 3 another machine owns the run now, 4 given up.
        """
        self.write()
        lost = False
        while True:
            if self._drain_since is None and self.should_drain():
                self._drain_since, self._next_pass = self.timer(), float("-inf")  # start the next pass at once
            draining = self._drain_since is not None
            if lost and draining:
                return 3
            if not lost and self.timer() >= self._next_pass and (draining or self._is_due()):
                try:
                    self._record_pass(self.copier.run_pass(final=draining))
                except lease.LeaseHeld as error:  # stop copying, but keep writing .sync.json until training ends
                    self._record_failure(error)
                    lost = True
                except Exception as error:
                    self._record_failure(error)
                    if isinstance(error, Hung):
                        self.restart({"state": self.state, "drain_since": self._drain_since})
                else:
                    if draining and self.state["state"] == "ok":
                        return self._end(0)
            if not self.run_dir.is_dir():  # the run was deleted: release its lease
                return self._end(4)
            if self._drain_since is not None and self.timer() - self._drain_since > ORPHAN_S:
                return 4
            self.beat()
            self.sleep(self.tick_s)

    def _end(self, code: int) -> int:
        """Release the lease, write .sync.json and return `code`."""
        with contextlib.suppress(Exception):  # the lease expires by itself
            self.copier.close()
        self.write()
        return code

    def write(self) -> None:
        """Write .sync.json. A full disk is no error: copying to the store continues."""
        self.state["updated"], self._written = self.clock(), self.timer()
        with contextlib.suppress(OSError):
            write_atomic(self.run_dir / STATE, json.dumps(self.state, indent=1), durable=False)

    def beat(self) -> None:
        """Write .sync.json if the last write is `HEARTBEAT_S` old, to show that this process is alive."""
        if self.timer() - self._written >= HEARTBEAT_S:
            self.write()

    def _is_due(self) -> bool:
        newest = newest_step(self.run_dir)
        since = self.timer() - self._last_pass
        if newest is not None and newest != self.state["step"] and self.state["state"] == "ok":
            self.state["state"] = "behind"
            self.write()
        has_work = self._pending or newest != self.state["step"]
        return since >= REFRESH_S or (has_work and since >= self.copier.interval_s)

    def _record_pass(self, result: dict[str, Any]) -> None:
        self._last_pass, self._pending = self.timer(), bool(result["pending"])
        arrived = newest_step(self.run_dir) in (None, result["step"]) or result["problem"]
        outcome = {"step": result["step"], "time": result["time"], "error": result["problem"] or result["note"]}
        self.state |= {**outcome, "state": "ok" if arrived else "behind", "failures": 0}
        self.write()

    def _record_failure(self, error: Exception) -> None:
        self.state["failures"] += 1
        self._last_pass, self._pending = self.timer(), True
        self._next_pass = self.timer() + max(self._pause_s(), getattr(error, "retry_after_s", 0.0))
        self.state.update(state="failing", error=one_line(error))
        self.write()

    def _pause_s(self) -> float:
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.state["failures"] - 1, 10))


def newest_step(run_dir: Path) -> int | None:
    """Return the step of the newest checkpoint on this machine, None without one; reads only folder names."""
    return max((checkpoint.step for checkpoint in committed(run_dir / "checkpoints")), default=None)
