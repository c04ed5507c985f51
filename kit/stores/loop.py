"""When to copy, and how it went: the loop of the copying process (`kit.stores.__main__`).

    RUN_DIR/.sync.json   {"url", "step", "time", "state", "error", "owner", "failures", "pid", "updated"}
      state   "ok" (the newest checkpoint is in the store, verified), "behind" (on its way), "failing" (see error)
      step, time   of the newest checkpoint verified in the store
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kit.format.checkpoint import committed
from kit.format.files import write_atomic
from kit.stores import lease
from kit.stores.deadlines import Hung
from kit.stores.redact import one_line

STATE = ".sync.json"
TICK_S = 0.25
HEARTBEAT_S = 5.0
REFRESH_S = 240.0
"""With no new checkpoint, metrics and status are copied this often, and it is seen that the store has lost nothing."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0
ORPHAN_S = 24 * 3600.0
"""How long to go on trying once training is gone and the store does not come back."""


class Copying(Protocol):
    """What the loop needs of a copier; `kit.stores.deadlines.Watched` is the real one."""

    @property
    def interval_s(self) -> float: ...
    def run_pass(self, final: bool) -> dict[str, Any]: ...
    def close(self, release: bool) -> None: ...


class Sync:
    """The loop. `should_drain` tells that training is over: copy what is there and return. `restart(before)` begins
    anew after a hang, and does not come back; the new loop is given `before`."""

    def __init__(
        self,
        run_dir: Path,
        url: str,
        owner: str,
        copier: Copying,
        should_drain: Callable[[], bool],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        tick_s: float = TICK_S,
        restart: Callable[[dict[str, Any]], object] = lambda before: None,
        before: dict[str, Any] | None = None,
    ) -> None:
        self.run_dir, self.copier, self._tick_s = run_dir, copier, tick_s
        self._should_drain, self._clock, self._sleep, self._restart = should_drain, clock, sleep, restart
        self.state: dict[str, Any] = {
            **{"url": url, "step": None, "time": None, "state": "behind", "error": None},
            **{"owner": owner, "failures": 0, "pid": os.getpid(), "updated": clock()},
        }
        self._next_pass = 0.0
        self._last_pass = float("-inf")
        self._drain_since: float | None = None
        self._pending = True
        if before:
            self.state |= before["state"]
            self._drain_since, self._next_pass = before["drain_since"], clock() + self._pause_s()

    def run(self, take: Callable[[], str | None] = lambda: None) -> int:
        """Until everything is copied and training is over. `take` says why this may not be the run's copier yet, or
        None. Exit code: 0 done, 3 the run is another machine's now, 4 given up."""
        if not self._has_turn(take):
            return 4
        self.write()
        while True:
            self._notice_drain()
            draining = self._drain_since is not None
            if self._clock() >= self._next_pass and (draining or self._is_due()):
                try:
                    self._note(self.copier.run_pass(final=draining))
                except lease.LeaseHeld as error:
                    self._fail(error)
                    return self._sit_out()
                except Exception as error:
                    self._fail(error)
                    if isinstance(error, Hung):
                        self._restart({"state": self.state, "drain_since": self._drain_since})
                else:
                    if draining and self.state["state"] == "ok":
                        with contextlib.suppress(Exception):  # it expires by itself
                            self.copier.close(release=True)
                        self.write()
                        return 0
            if self._is_abandoned():  # nobody is left to copy for
                gone = not self.run_dir.is_dir()  # this machine cannot go on with it: another may at once
                with contextlib.suppress(Exception):  # it expires by itself
                    self.copier.close(release=gone)
                return 4
            self.beat()
            self._sleep(self._tick_s)

    def write(self) -> None:
        """.sync.json, whole; a full disk here is no reason to stop copying elsewhere."""
        self.state["updated"] = self._clock()
        with contextlib.suppress(OSError):
            write_atomic(self.run_dir / STATE, json.dumps(self.state, indent=1), durable=False)

    def beat(self) -> None:
        """Show that this process is alive, if it is time to."""
        if self._clock() - self.state["updated"] >= HEARTBEAT_S:
            self.write()

    def _has_turn(self, take: Callable[[], str | None]) -> bool:
        """Wait for it, and say who has it; ending one that an earlier session left behind takes a moment."""
        since, shown = self._clock(), {name: self.state[name] for name in ("state", "error")}
        while holder := take():
            if self._clock() - since > 1.0 and self.state["error"] != holder:
                self.state.update(state="failing", error=holder)
                self.write()
            self._notice_drain()
            if self._is_abandoned():
                return False
            self.beat()
            self._sleep(self._tick_s / 5)
        self.state |= shown
        return True

    def _is_due(self) -> bool:
        newest = newest_step(self.run_dir)
        since = self._clock() - self._last_pass
        if newest is not None and newest != self.state["step"] and self.state["state"] == "ok":
            self.state["state"] = "behind"
            self.write()
        wanted = self._pending or newest != self.state["step"]
        return since >= REFRESH_S or (wanted and since >= self.copier.interval_s)

    def _notice_drain(self) -> None:
        if self._drain_since is None and self._should_drain():
            self._drain_since = self._clock()
            self._next_pass = 0.0  # no more time to be patient

    def _is_abandoned(self) -> bool:
        overdue = self._drain_since is not None and self._clock() - self._drain_since > ORPHAN_S
        return overdue or not self.run_dir.is_dir()

    def _note(self, result: dict[str, Any]) -> None:
        self._last_pass = self._clock()
        self._pending = bool(result["pending"])
        newest = newest_step(self.run_dir)
        arrived = newest is None or newest == result["step"]
        problem = result.get("problem")
        state = "ok" if arrived or problem else "behind"
        self.state.update(step=result["step"], time=result["time"], state=state, error=problem, failures=0)
        self.write()

    def _fail(self, error: Exception) -> None:
        self.state["failures"] += 1
        self._last_pass = self._clock()
        self._next_pass = self._clock() + max(self._pause_s(), getattr(error, "retry_after_s", 0.0))
        self._pending = True
        self.state.update(state="failing", error=one_line(error))
        self.write()

    def _pause_s(self) -> float:
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.state["failures"] - 1, 10))

    def _sit_out(self) -> int:
        """The run is another machine's: copy nothing more, but keep saying so while training goes on."""
        while self._drain_since is None:
            self._notice_drain()
            self.beat()
            self._sleep(self._tick_s)
        self.write()
        return 3


def newest_step(run_dir: Path) -> int | None:
    """Of the newest committed checkpoint on this machine, by its name alone."""
    return max((found.step for found in committed(run_dir / "checkpoints")), default=None)
