"""Copies a run to its store in the background and never lets training wait for it.

Three processes, so that none can take another with it:

    training   --pipe-->   this one: decides when, counts failures, writes .sync.json   --pipe-->   a copier
                           (kit.stores.sync)                                                        (kit.stores.worker)

Only the copier touches the store. If a request of it hangs it is killed, the failure is written where the user looks,
and a new one is started after a pause; that is safe at any instant, because `latest.json` is moved last. This process
ends when training asked it to or died (the pipe closes), once everything committed has arrived.

    RUN_DIR/.sync.json   {"url", "step", "time", "state", "error", "owner", "failures", "pid", "updated"}
      state   "ok" (the newest checkpoint is in the store, verified), "behind" (on its way), "failing" (see error)
      step, time   of the newest checkpoint verified in the store
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kit.errors import UserError
from kit.format.layout import folders_in, newest_local, passed_over, step_in
from kit.runs.directory import write_atomic
from kit.stores import lease
from kit.stores.base import OPEN_S, Store, StoreError, open_store, within
from kit.stores.redact import one_line
from kit.stores.worker import Lost, Worker

STATE = ".sync.json"
TICK_S = 0.25
HEARTBEAT_S = 5.0
REFRESH_S = 240.0
"""With no new checkpoint, metrics and status are copied this often, and it is seen that the store has lost nothing."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 300.0
ORPHAN_S = 24 * 3600.0
"""How long to go on trying once training is gone and the store does not come back."""


class Copying(Protocol):
    """What the loop needs of a copier; `kit.stores.worker.Worker` is the real one."""

    interval_s: float

    def run_pass(self, final: bool) -> dict[str, Any]: ...
    def close(self, release: bool) -> None: ...


class Sync:
    """The loop. `should_drain` tells that training is over: copy what is there and return."""

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
    ) -> None:
        self.run_dir, self.copier, self._tick_s = run_dir, copier, tick_s
        self._should_drain, self._clock, self._sleep = should_drain, clock, sleep
        self.state: dict[str, Any] = {
            **{"url": url, "step": None, "time": None, "state": "behind", "error": None},
            **{"owner": owner, "failures": 0, "pid": os.getpid(), "updated": clock()},
        }
        self._next_pass = 0.0
        self._last_pass = float("-inf")
        self._drain_since: float | None = None
        self._pending = True

    def run(self) -> int:
        """Until everything is copied and training is over. Exit code: 0 done, 3 the run is another machine's now,
        4 given up."""
        self.write()
        while True:
            self._notice_drain()
            draining = self._drain_since is not None
            if self._clock() >= self._next_pass and (draining or self._is_due()):
                try:
                    self._note(self.copier.run_pass(final=draining))
                except Lost as error:
                    self._fail(error)
                    self.copier.close(release=False)
                    return self._sit_out()
                except Exception as error:
                    self._fail(error)
                else:
                    if draining and self.state["state"] == "ok":
                        with contextlib.suppress(Exception):  # it expires by itself
                            self.copier.close(release=True)
                        self.write()
                        return 0
            abandoned = self._drain_since is not None and self._clock() - self._drain_since > ORPHAN_S
            gone = not self.run_dir.is_dir()
            if abandoned or gone:  # nobody is left to copy for
                with contextlib.suppress(Exception):  # it expires by itself
                    self.copier.close(release=gone)  # this machine cannot go on with it: another may at once
                return 4
            self.beat()
            self._sleep(self._tick_s)

    def write(self) -> None:
        """.sync.json, whole; a full disk here is no reason to stop copying elsewhere."""
        self.state["updated"] = self._clock()
        with contextlib.suppress(OSError):
            write_atomic(self.run_dir / STATE, json.dumps(self.state, indent=1).encode(), durable=False)

    def _is_due(self) -> bool:
        newest = newest_local(self.run_dir)
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

    def _note(self, result: dict[str, Any]) -> None:
        self._last_pass = self._clock()
        self._pending = bool(result["pending"])
        newest = newest_local(self.run_dir)
        arrived = newest is None or newest == result["step"]
        problem = result.get("problem")
        state = "ok" if arrived or problem else "behind"
        self.state.update(step=result["step"], time=result["time"], state=state, error=problem, failures=0)
        self.write()

    def _fail(self, error: Exception) -> None:
        self.state["failures"] += 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.state["failures"] - 1, 10))
        if isinstance(error, StoreError):
            pause = max(pause, error.retry_after_s)
        self._last_pass = self._clock()
        self._next_pass = self._clock() + pause
        self._pending = True
        self.state.update(state="failing", error=one_line(error))
        self.write()

    def _sit_out(self) -> int:
        """The run is another machine's: copy nothing more, but keep saying so while training goes on."""
        while self._drain_since is None:
            self._notice_drain()
            self.beat()
            self._sleep(self._tick_s)
        self.write()
        return 3

    def beat(self) -> None:
        """Show that this process is alive, if it is time to."""
        if self._clock() - self.state["updated"] >= HEARTBEAT_S:
            self.write()


class SyncHandle:
    """The trainer's side: a background copier that is kept alive until `stop`."""

    def __init__(self, run_dir: Path, url: str, owner: str) -> None:
        self.run_dir, self.url, self.owner = run_dir, url, owner
        self._stopping = threading.Event()
        self._process = self._start()
        self._guard = threading.Thread(target=self._keep_alive, name="store-guard", daemon=True)
        self._guard.start()

    def state(self) -> dict[str, Any]:
        """What .sync.json says now."""
        try:
            return dict(json.loads((self.run_dir / STATE).read_bytes()))
        except (OSError, ValueError):
            return {"url": self.url, "step": None, "time": None, "state": "behind", "error": None}

    def is_done(self) -> bool:
        """Whether it has ended after `stop`: everything, the last figures and the run's page included, has arrived."""
        return self._process.poll() is not None

    def stop(self, drain_s: float = 60.0) -> dict[str, Any]:
        """Ask it to copy what is committed and end; wait at most `drain_s` seconds and return the state then. What has
        not arrived by then is still being copied, by the process that stays behind."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, drain_s))
        return self.state()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kit.stores.sync", str(self.run_dir), self.url, "--owner", self.owner]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def _keep_alive(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            code = self._process.wait()
            if self._stopping.is_set():
                return
            values = {
                **self.state(),
                "state": "failing",
                "error": f"the copier ended (exit code {code}); starting it again",
            }
            with contextlib.suppress(OSError):
                write_atomic(self.run_dir / STATE, json.dumps(values, indent=1).encode(), durable=False)
            if self._stopping.wait(pause):
                return
            pause = min(LONGEST_PAUSE_S, 2 * pause)
            self._process = self._start()


def start_sync(run_dir: str | Path, url: str, owner: str | None = None) -> SyncHandle:
    """Begin to copy the run at `run_dir` to the store at `url`, in a process of its own.

    First, here and now: the store must take files, the run must not be another machine's, and the store must not hold a
    newer state of it than this machine. Raises `UserError` if one of these is not so.
    """
    run_dir = Path(run_dir).resolve()
    owner = owner or lease.owner_of(run_dir)
    store = open_store(url, write=True)
    within(OPEN_S, lambda: _claim(store, run_dir, owner), f"store={url!r}")
    return SyncHandle(run_dir, url, owner)


def _claim(store: Store, run_dir: Path, owner: str) -> None:
    try:
        lease.acquire(store, run_dir.name, owner)
        try:
            _check_newest(store, run_dir)
        except UserError:
            lease.release(store, run_dir.name, owner)
            raise
    except StoreError as error:
        raise UserError(f"store={store.url!r} cannot be used ({one_line(error)}); try again later.") from None


def _check_newest(store: Store, run_dir: Path) -> None:
    start = len(run_dir.name) + 1
    folders = folders_in(path[start:] for path in store.list(run_dir.name))
    steps = {step_in(folder) or 0 for folder in folders} - passed_over(run_dir)
    there, here = max(steps, default=None), newest_local(run_dir)
    if there is not None and (here is None or here < there):
        own = "nothing" if here is None else f"step {here:,}"
        raise UserError(
            f"store={store.url!r} holds step {there:,} of run {run_dir.name!r}, and this machine {own}; "
            f"run `kit resume {store.url}` or choose another run_name."
        )


# -- the process -------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """python -m kit.stores.sync RUN_DIR URL [--owner NAME]: copies until standard input closes or a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m kit.stores.sync", description=main.__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("url")
    parser.add_argument("--owner")
    given = parser.parse_args(arguments)
    run_dir = given.run_dir.resolve()
    owner = given.owner or lease.owner_of(run_dir)
    drain = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: drain.set())
    with contextlib.suppress(OSError):
        os.nice(5)  # training goes first
    with _only_one(run_dir):
        worker = Worker(run_dir, given.url, owner)
        sync = Sync(run_dir, given.url, owner, worker, _training_is_over(drain))
        worker.on_wait = sync.beat
        return sync.run()


def _training_is_over(drain: threading.Event) -> Callable[[], bool]:
    """A signal came, the pipe from training closed, or the parent died (a fork of it may keep the pipe open)."""
    parent, interactive = os.getppid(), sys.stdin.isatty()

    def ask() -> bool:
        closed = not interactive and bool(select.select([0], [], [], 0)[0]) and not os.read(0, 64)
        return drain.is_set() or closed or os.getppid() != parent

    return ask


@contextlib.contextmanager
def _only_one(run_dir: Path) -> Any:
    """One copier per run: an older one, left behind by a session that ended, is replaced (killing one is safe)."""
    import fcntl

    with (run_dir / ".sync.lock").open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                file.seek(0)
                with contextlib.suppress(ValueError, OSError):
                    os.kill(int(file.read()), signal.SIGKILL)
                time.sleep(0.05)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


if __name__ == "__main__":
    sys.exit(main())
