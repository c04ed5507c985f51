"""Copy a run to its store in the background; training never waits for the store.

    training   --pipe-->   copier process (python -m kit.stores), the only writer to the store

When training ends, the pipe closes; the copier then copies the rest and ends. A copier that dies is started again.
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
"""Exit codes of a copier that ended on purpose, see `kit.stores.loop.Sync.run`."""
LAST_TRIES = 3
"""Maximum number of restarts of a copier after `stop`."""


class SyncHandle:
    """Handle of the copier process. If the process dies, it is restarted; after `stop`, at most `LAST_TRIES` times."""

    def __init__(self, run_dir: Path, url: str, owner: str) -> None:
        self.run_dir, self.url, self.owner = run_dir, url, owner
        self._stopping = threading.Event()
        self._tries = LAST_TRIES
        self._process = self._start()
        self._guard = threading.Thread(target=self._keep_alive, name="store-guard", daemon=True)
        self._guard.start()

    def state(self) -> dict[str, Any]:
        """Return the content of .sync.json (see `kit.stores.loop`)."""
        unknown = {"url": self.url, "step": None, "time": None, "state": "behind", "error": None}
        return {**unknown, **read_json(self.run_dir / STATE, {})}

    def is_done(self) -> bool:
        """Whether the copier has ended for good: after `stop`, and with everything copied or given up."""
        return not self._guard.is_alive()

    def stop(self, drain_s: float = 60.0) -> dict[str, Any]:
        """Tell the copier to copy the rest and end; wait at most `drain_s` seconds; return `state()`.

        If files are left after that time, the copier continues, even after this process has ended.
        """
        self._stopping.set()
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        self._guard.join(max(0.0, drain_s))
        return self.state()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kit.stores", str(self.run_dir), self.url, self.owner]
        null = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)

    def _keep_alive(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            code = self._process.wait()
            if self._stopping.is_set():
                self._tries -= 1
                if code in ENDED or self._tries < 0:
                    return
            failure = {"state": "failing", "error": f"the copier ended (exit code {code}); starting it again"}
            with contextlib.suppress(OSError):
                write_atomic(self.run_dir / STATE, json.dumps({**self.state(), **failure}, indent=1), durable=False)
            self._stopping.wait(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)
            self._process = self._start()
            if self._stopping.is_set() and self._process.stdin:  # `stop` closed only the previous process's pipe
                self._process.stdin.close()


def start_sync(run_dir: str | Path, url: str, owner: str | None = None) -> SyncHandle:
    """Start copying the run at `run_dir` to the store at `url`, in a separate process.

    Raises `UserError` if the store cannot be written, if another machine owns the run, or if the store holds a newer
    checkpoint than this machine.
    """
    run_dir = Path(run_dir).resolve()
    owner = owner or lease.owner_of(run_dir)
    store = open_store(url, write=True)
    within(OPEN_S, lambda: _claim(store, run_dir, owner), url)
    return SyncHandle(run_dir, url, owner)


def _claim(store: Store, run_dir: Path, owner: str) -> None:
    """Take the lease. If the store holds a newer checkpoint, release the lease and raise `UserError`."""
    try:
        lease.acquire(store, run_dir.name, owner)
        paths = [path.removeprefix(f"{run_dir.name}/") for path in store.list(run_dir.name)]
        stored_step = max(set(folders_in(paths).values()) - passed_over(run_dir), default=-1)
        local_step = newest_step(run_dir)
        if stored_step <= (-1 if local_step is None else local_step):
            return
        lease.release(store, run_dir.name, owner)
    except StoreError as error:
        raise Unusable(store.url, f"cannot be used ({one_line(error)}); try again later.") from None
    local = "nothing" if local_step is None else f"step {local_step:,}"
    conflict = f"holds step {stored_step:,} of run {run_dir.name!r}, and this machine {local}"
    raise Unusable(store.url, f"{conflict}; run `kit resume {store.url}/{run_dir.name}` or choose another run_name.")
