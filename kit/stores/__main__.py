"""The copying process: python -m kit.stores RUN_DIR URL [--owner NAME].

It copies until standard input closes or a signal comes, and then what is left: training asked it to end, or died.
Passes run in a thread, where every request to the store has a deadline. If one hangs, that is written where the user
looks, and the process executes itself anew, which ends the thread; safe at any instant, as `latest.json` moves last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.stores import alone, lease
from kit.stores.base import open_store
from kit.stores.copier import Copier
from kit.stores.loop import Sync, Watched

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Copy a run to a store until standard input closes or a signal comes. Exit code: see `Sync.run`."""
    parser = argparse.ArgumentParser(prog="python -m kit.stores", description=main.__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("url")
    parser.add_argument("--owner")
    parser.add_argument("--before", type=json.loads, help=argparse.SUPPRESS)  # what it was before it executed itself
    given = parser.parse_args()
    run_dir, before = given.run_dir.resolve(), given.before
    owner = given.owner or lease.owner_of(run_dir)
    drain = threading.Event()
    for number in SIGNALS:
        signal.signal(number, lambda *_: drain.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    if before is None:
        with contextlib.suppress(OSError):
            os.nice(5)  # training goes first
    parent = before["parent"] if before else os.getppid()
    with os.fdopen(before["lock"], "a+") if before else (run_dir / alone.FILE).open("a+") as lock:
        os.set_inheritable(lock.fileno(), True)

        def restart(now: dict[str, Any]) -> None:  # the lock is kept, and signals wait until they are listened to
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            told = json.dumps({**now, "parent": parent, "lock": lock.fileno()})
            command = ["-m", "kit.stores", str(run_dir), given.url, "--owner", owner, "--before", told]
            os.execv(sys.executable, [sys.executable, *command])

        def make(announce: Callable[[str, int], None]) -> Copier:
            alone.take(lock)
            announce("opening the store", 0)
            return Copier(run_dir, open_store(given.url, write=True), owner, watch=announce)

        copier, is_over = Watched(make), _is_over(drain, parent)
        sync = Sync(run_dir, given.url, owner, copier, is_over, restart=restart, before=before)
        copier.on_wait = sync.beat
        return sync.run()


def _is_over(drain: threading.Event, parent: int) -> Callable[[], bool]:
    """A signal came, the pipe from training closed, or the parent died (a fork of it may keep the pipe open)."""
    interactive = sys.stdin.isatty()

    def ask() -> bool:
        closed = not interactive and bool(select.select([0], [], [], 0)[0]) and not os.read(0, 64)
        return drain.is_set() or closed or os.getppid() != parent

    return ask


if __name__ == "__main__":
    sys.exit(main())
