"""Copies a run to its store in the background and never lets training wait for it.

    training   --pipe-->   the copier, a process of its own (python -m kit.stores), which alone writes to the store

A copier that ends is started again, and one that training leaves behind finishes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from kit.format.files import read_json, write_atomic
from kit.format.layout import folders_in, passed_over
from kit.stores import lease
from kit.stores.base import Store, StoreError, Unusable, within
from kit.stores.loop import FIRST_PAUSE_S, LONGEST_PAUSE_S, STATE, newest_step
from kit.stores.redact import one_line
from kit.stores.urls import OPEN_S, open_store

ENDED = (0, 3, 4)
"""Exit codes with which a copier leaves by itself, see `kit.stores.loop.Sync.run`."""
LAST_TRIES = 3
"""How often one that dies after `stop` is started again."""


class SyncHandle:
    """A copier in the background that is kept alive until `stop`, and after it until it has copied what there is."""

    def __init__(self, run_dir: Path, url: str, owner: str) -> None:
        self.run_dir, self.url, self.owner = run_dir, url, owner
        self._stopping = threading.Event()
        self._tries = LAST_TRIES
        self._process = self._start()
        self._guard = threading.Thread(target=self._keep_alive, name="store-guard", daemon=True)
        self._guard.start()

    def state(self) -> dict[str, Any]:
        """What .sync.json says now."""
        unknown = {"url": self.url, "step": None, "time": None, "state": "behind", "error": None}
        return {**unknown, **read_json(self.run_dir / STATE, {})}

    def is_done(self) -> bool:
        """Whether it has ended after `stop`: everything, the last figures and the run's page included, has arrived."""
        return not self._guard.is_alive()

    def stop(self, drain_s: float = 60.0) -> dict[str, Any]:
        """Ask it to copy what is committed and end, wait at most `drain_s` seconds and return the state then. What has
        not arrived by then is still being copied, by the process that stays behind."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        self._guard.join(max(0.0, drain_s))
        return self.state()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kit.stores", str(self.run_dir), self.url, self.owner]
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)

    def _keep_alive(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            code = self._process.wait()
            if self._stopping.is_set():  # and it was not killed: its work is done, or can be done no more
                self._tries -= 1
                if code in ENDED or self._tries < 0:
                    return
            said = {"state": "failing", "error": f"the copier ended (exit code {code}); starting it again"}
            with contextlib.suppress(OSError):
                write_atomic(self.run_dir / STATE, json.dumps({**self.state(), **said}, indent=1), durable=False)
            self._stopping.wait(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)
            self._process = self._start()
            if self._stopping.is_set() and self._process.stdin:  # `stop` closed the pipe of the one before
                self._process.stdin.close()


def start_sync(run_dir: str | Path, url: str, owner: str | None = None) -> SyncHandle:
    """Begin to copy the run at `run_dir` to the store at `url`, in a process of its own. Raises `UserError` if the
    store takes no files, if the run is another machine's, or if the store holds a newer state of it than this one."""
    run_dir = Path(run_dir).resolve()
    owner = owner or lease.owner_of(run_dir)
    store = open_store(url, write=True)
    within(OPEN_S, lambda: _claim(store, run_dir, owner), f"store={url!r}")
    return SyncHandle(run_dir, url, owner)


def _claim(store: Store, run_dir: Path, owner: str) -> None:
    try:
        lease.acquire(store, run_dir.name, owner)
        paths = [path.removeprefix(f"{run_dir.name}/") for path in store.list(run_dir.name)]
        there = max(set(folders_in(paths).values()) - passed_over(run_dir), default=-1)
        here = newest_step(run_dir)
        if there <= (-1 if here is None else here):
            return
        lease.release(store, run_dir.name, owner)
    except StoreError as error:
        raise Unusable(store.url, f"cannot be used ({one_line(error)}); try again later.") from None
    own = "nothing" if here is None else f"step {here:,}"
    said = f"holds step {there:,} of run {run_dir.name!r}, and this machine {own}"
    raise Unusable(store.url, f"{said}; run `kit resume {store.url}` or choose another run_name.")
