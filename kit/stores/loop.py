"""The main loop of the copier process (`kit.stores.__main__`): calls the copier, retries, writes .sync.json.

RUN_DIR/.sync.json   {"url", "step", "time", "state", "error", "owner", "failures", "pid", "updated"}
  state   "ok": the newest checkpoint is verified in the store, or it is damaged on this machine (see error);
          "behind": the newest checkpoint is not in the store yet; "failing": the last pass failed (see error)
  step, time   of the newest checkpoint verified in the store
  failures     number of failed passes since the last success
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.format.checkpoint import committed
from kit.format.files import read_json, write_atomic
from kit.stores import lease
from kit.stores.base import StoreError, within
from kit.stores.copier import Copier, Watch
from kit.stores.redact import one_line

STATE = ".sync.json"
TICK_S = 0.25
HEARTBEAT_S = 5.0
REFRESH_S = 240.0
"""Seconds between passes (`Copier.run_pass`) if there is no new checkpoint. These passes copy metrics and status, and
replace lost files."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0
"""Seconds before the first retry; the pause doubles after each failure, up to the second value."""
GIVE_UP = 300
"""Once training is over, the loop ends after this many consecutive failures, about a day of retries."""
CLOSE_S = 60.0
"""Time limit for releasing the lease, in seconds."""
PATIENCE_S = 180.0
"""Time limit of a request in seconds, to which size / SLOWEST is added. KIT_STORE_PATIENCE_S changes it."""
SLOWEST = 100_000
"""Transfer rate in bytes/s; a slower transfer counts as hanging."""


@dataclass
class Sync:
    """The loop of the copier process. Another thread calls `beat` once a second.

    `make_copier(watch)` opens the store. Once `should_drain()` is true (training is over), the loop copies the rest and
    returns. If a request hangs, `restart()` replaces the process, because nothing else ends the request; `restarted`:
    this process is such a replacement. `clock` gives timestamps. `timer` measures durations, because the system clock
    may be changed.
    """

    run_dir: Path
    url: str
    owner: str
    make_copier: Callable[[Watch], Copier]
    should_drain: Callable[[], bool]
    restart: Callable[[], object]
    restarted: bool = False
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    tick_s: float = TICK_S

    def __post_init__(self) -> None:
        self.state: dict[str, Any] = {
            **{"url": self.url, "step": None, "time": None, "state": "behind", "error": None},
            **{"owner": self.owner, "failures": 0, "pid": os.getpid(), "updated": self.clock()},
            **(read_json(self.run_dir / STATE, {}) if self.restarted else {}),
        }
        self._next_pass, self._last_pass, self._pending = float("-inf"), float("-inf"), True
        self._written = float("-inf")
        self._damaged: int | None = None
        """Newest step when the last pass reported a damaged checkpoint. This step alone starts no new pass."""
        self._writing = threading.Lock()
        self._copier: Copier | None = None
        self._patience_s = float(os.environ.get("KIT_STORE_PATIENCE_S", PATIENCE_S))
        self._request: tuple[str, float, float] | None = None  # name, time limit in seconds, start time

    def run(self) -> int:
        """Copy until training is over and everything is copied.

        Return 0: done, 3: another machine owns the run, 4: given up, or the run was deleted.
        """
        self.write()
        draining = lost = False
        while True:
            if not draining and self.should_drain():
                draining, self._next_pass = True, float("-inf")  # start the next pass at once
                if not self.restarted:  # count failures towards `GIVE_UP` from here; after a restart, earlier ones too
                    self.state["failures"] = 0
            if lost and draining:
                return 3
            if not lost and self.timer() >= self._next_pass and (draining or self._is_due()):
                try:
                    self._record_pass(self._run_pass(draining))
                except lease.LeaseHeld as error:  # stop copying, but keep writing .sync.json until training ends
                    self._record_failure(error)
                    lost = True
                except Exception as error:
                    self._record_failure(error)
                    if draining and self.state["failures"] >= GIVE_UP:
                        return 4
                else:
                    if draining and self.state["state"] == "ok":
                        return self._end(0)
            if not self.run_dir.is_dir():  # the run was deleted: release its lease
                return self._end(4)
            self.beat()
            self.sleep(self.tick_s)

    def _end(self, code: int) -> int:
        if self._copier:
            with contextlib.suppress(Exception):  # the lease expires by itself
                within(CLOSE_S, self._copier.close, self.url)
        self.write()
        return code

    def _run_pass(self, final: bool) -> dict[str, Any]:
        self._watch("starting", 0)
        try:
            self._copier = self._copier or self.make_copier(self._watch)
            newest = newest_step(self.run_dir)  # read before the pass: a later checkpoint is due again
            result = self._copier.run_pass(final)
            self._damaged = newest if result["problem"] else None
            return result
        finally:
            self._request = None

    def _watch(self, request: str, size: int) -> None:
        """Start the time limit of a request that transfers `size` bytes."""
        self._request = request, self._patience_s + size / SLOWEST, self.timer()

    def write(self) -> None:
        """Write .sync.json. A full disk is no error: copying to the store continues."""
        with self._writing, contextlib.suppress(OSError):
            self.state["updated"], self._written = self.clock(), self.timer()
            write_atomic(self.run_dir / STATE, json.dumps(self.state, indent=1), durable=False)

    def beat(self) -> None:
        """Restart the process if a request exceeds its time limit.

        Write .sync.json if the last write is `HEARTBEAT_S` old, to show that this process is alive.
        """
        request, limit_s, since = self._request or ("", float("inf"), 0.0)
        if self.timer() - since > limit_s:
            problem = f"the copier got no answer from the store for {limit_s:.0f} s while {request}"
            self._record_failure(StoreError(f"{problem}; if the store is a mount, it may be dead"))
            self.restart()
        if self.timer() - self._written >= HEARTBEAT_S:
            self.write()

    def _is_due(self) -> bool:
        is_new = newest_step(self.run_dir) not in (None, self.state["step"], self._damaged)
        since = self.timer() - self._last_pass
        if is_new and self.state["state"] == "ok":
            self.state["state"] = "behind"
            self.write()
        has_work = self._pending or is_new
        interval_s = self._copier.store.min_interval_s if self._copier else 0.0
        return since >= REFRESH_S or (has_work and since >= interval_s)

    def _record_pass(self, result: dict[str, Any]) -> None:
        """Record the `result` of `Copier.run_pass`."""
        self._last_pass, self._pending = self.timer(), bool(result["pending"])
        arrived = newest_step(self.run_dir) in (None, result["step"]) or result["problem"]
        outcome = {"step": result["step"], "time": result["time"], "error": result["problem"] or result["note"]}
        self.state |= {**outcome, "state": "ok" if arrived else "behind", "failures": 0}
        self.write()

    def _record_failure(self, error: Exception) -> None:
        self.state["failures"] += 1
        self._last_pass, self._pending = self.timer(), True
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.state["failures"] - 1, 10))
        self._next_pass = self.timer() + max(pause_s, getattr(error, "retry_after_s", 0.0))
        self.state.update(state="failing", error=one_line(error))
        self.write()


def newest_step(run_dir: Path) -> int | None:
    """Return the step of the newest checkpoint on this machine, or None. Reads only folder names."""
    return max((checkpoint.step for checkpoint in committed(run_dir / "checkpoints")), default=None)
