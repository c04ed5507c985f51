"""When to copy, how long to wait, and how it went: the loop of the copying process (`kit.stores.__main__`).

RUN_DIR/.sync.json   {"url", "step", "time", "state", "error", "owner", "failures", "pid", "updated"}
  state   "ok" (the newest checkpoint is in the store, verified), "behind" (on its way), "failing" (see error)
  step, time   of the newest checkpoint verified in the store
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
"""With no new checkpoint, metrics and status are copied this often, and it is seen that the store has lost nothing."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0
ORPHAN_S = 24 * 3600.0
"""How long to go on trying once training is gone and the store does not come back."""
PATIENCE_S = 180.0
"""How long one request to a store may take, beside the time for its bytes. KIT_STORE_PATIENCE_S changes it."""
SLOWEST = 100_000
"""Bytes per second; slower than that counts as hanging."""


class Hung(StoreError):
    """A request to the store does not come back. Only with this process does its thread end."""


class Watched:
    """The copier that `make` opens, given what to announce requests to. `on_wait` is called each second of waiting."""

    def __init__(self, make: Callable[[Watch], Copier]) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self._make = make
        self._copier: Copier | None = None
        self._patience_s = float(os.environ.get("KIT_STORE_PATIENCE_S", PATIENCE_S))

    @property
    def interval_s(self) -> float:
        return self._copier.store.min_interval_s if self._copier else 0.0

    def run_pass(self, final: bool) -> dict[str, Any]:
        """One pass of `kit.stores.copier`. Raises what it raises, and `Hung`."""
        return self._in_time(lambda copier: copier.run_pass(final))

    def close(self) -> None:
        """Let go of the run."""
        if self._copier:
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
    """The loop. `should_drain` tells that training is over: copy what is there and return. `restart(before)` begins
    anew after a hang, and does not come back; the new loop is given `before`. `clock` is what it says, `timer` what it
    waits by: a clock may be set while it runs."""

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
        """Until training is over and all copied. Exit code: 0 done, 3 the run is another machine's now, 4 given up."""
        self.write()
        lost = False
        while True:
            if self._drain_since is None and self.should_drain():
                self._drain_since, self._next_pass = self.timer(), float("-inf")  # no more time to be patient
            draining = self._drain_since is not None
            if lost and draining:
                return 3
            if not lost and self.timer() >= self._next_pass and (draining or self._is_due()):
                try:
                    self._note(self.copier.run_pass(final=draining))
                except lease.LeaseHeld as error:  # copy nothing more, but keep saying so while training goes on
                    self._fail(error)
                    lost = True
                except Exception as error:
                    self._fail(error)
                    if isinstance(error, Hung):
                        self.restart({"state": self.state, "drain_since": self._drain_since})
                else:
                    if draining and self.state["state"] == "ok":
                        return self._let_go(0)
            if not self.run_dir.is_dir():  # this machine cannot go on with it: another may at once
                return self._let_go(4)
            if self._drain_since is not None and self.timer() - self._drain_since > ORPHAN_S:
                return 4  # nobody is left to copy for
            self.beat()
            self.sleep(self.tick_s)

    def _let_go(self, code: int) -> int:
        with contextlib.suppress(Exception):  # it expires by itself
            self.copier.close()
        self.write()
        return code

    def write(self) -> None:
        """.sync.json, whole; a full disk here is no reason to stop copying elsewhere."""
        self.state["updated"], self._written = self.clock(), self.timer()
        with contextlib.suppress(OSError):
            write_atomic(self.run_dir / STATE, json.dumps(self.state, indent=1), durable=False)

    def beat(self) -> None:
        """Show that this process is alive, if it is time to."""
        if self.timer() - self._written >= HEARTBEAT_S:
            self.write()

    def _is_due(self) -> bool:
        newest = newest_step(self.run_dir)
        since = self.timer() - self._last_pass
        if newest is not None and newest != self.state["step"] and self.state["state"] == "ok":
            self.state["state"] = "behind"
            self.write()
        wanted = self._pending or newest != self.state["step"]
        return since >= REFRESH_S or (wanted and since >= self.copier.interval_s)

    def _note(self, result: dict[str, Any]) -> None:
        self._last_pass, self._pending = self.timer(), bool(result["pending"])
        arrived = newest_step(self.run_dir) in (None, result["step"]) or result["problem"]
        told = {"step": result["step"], "time": result["time"], "error": result["problem"] or result["note"]}
        self.state |= {**told, "state": "ok" if arrived else "behind", "failures": 0}
        self.write()

    def _fail(self, error: Exception) -> None:
        self.state["failures"] += 1
        self._last_pass, self._pending = self.timer(), True
        self._next_pass = self.timer() + max(self._pause_s(), getattr(error, "retry_after_s", 0.0))
        self.state.update(state="failing", error=one_line(error))
        self.write()

    def _pause_s(self) -> float:
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.state["failures"] - 1, 10))


def newest_step(run_dir: Path) -> int | None:
    """Of the newest committed checkpoint on this machine, by its name alone."""
    return max((found.step for found in committed(run_dir / "checkpoints")), default=None)
