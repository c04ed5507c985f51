"""The copier process, which copies a run to its store: python -m kit.stores RUN_DIR URL [OWNER].

It copies until standard input closes, a signal comes or training dies; then it copies the rest and ends. A thread
copies, and every request to the store has a time limit. When a request hangs, the process reports it in .sync.json and
restarts itself by exec, which ends the thread. That is safe at any time, because `latest.json`, from which readers
start, is updated last.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from kit.stores import copier_lock, lease
from kit.stores.copier import Copier, Watch
from kit.stores.loop import Sync, Watched
from kit.stores.urls import open_store

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(folder: str, url: str, owner: str = "", saved_state: str = "") -> int:
    """Run the copier; return the exit code of `Sync.run`. `saved_state`: the loop's state before an exec, as JSON."""
    run_dir, before = Path(folder).resolve(), json.loads(saved_state) if saved_state else None
    owner = owner or lease.owner_of(run_dir)
    drain = threading.Event()
    for number in SIGNALS:
        signal.signal(number, lambda *_: drain.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    if before is None:
        with contextlib.suppress(OSError):
            os.nice(5)  # training has priority
    parent = before["parent"] if before else os.getppid()

    def should_drain() -> bool:  # after a signal, or with a closed pipe or a dead parent (a fork may keep the pipe)
        closed = not sys.stdin.isatty() and bool(select.select([0], [], [], 0)[0]) and not os.read(0, 64)
        return drain.is_set() or closed or os.getppid() != parent

    with os.fdopen(before["lock"], "a+") if before else (run_dir / copier_lock.FILE).open("a+") as lock:
        os.set_inheritable(lock.fileno(), True)

        def restart(state: dict[str, Any]) -> None:  # keeps the lock; signals are blocked until handlers are set again
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            saved_state = json.dumps({**state, "parent": parent, "lock": lock.fileno()})
            os.execv(sys.executable, [sys.executable, "-m", "kit.stores", folder, url, owner, saved_state])

        def make(announce: Watch) -> Copier:
            copier_lock.take(lock)
            announce("opening the store", 0)
            return Copier(run_dir, open_store(url, write=True), owner, watch=announce)

        copier = Watched(make)
        sync = Sync(run_dir, url, owner, copier, should_drain, restart=restart, before=before)
        copier.on_wait = sync.beat
        return sync.run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
