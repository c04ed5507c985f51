"""The copier process, which copies a run to its store: python -m kit.stores RUN_DIR URL [OWNER].

It copies until standard input closes, a signal comes or training dies; then it copies the rest and ends. A thread
restarts the process by exec if a request to the store hangs, and ends it if a later session's copier has started. The
process may die at any time: a checkpoint counts only once its manifest, which is uploaded last, is in the store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from kit.stores import lease
from kit.stores.base import StoreError
from kit.stores.copier import Copier, Watch
from kit.stores.loop import Sync
from kit.stores.urls import open_store

LOCK = ".sync.lock"
"""File in the run directory, locked (flock) by the copier. A new copier appends its name; earlier copiers then end."""


def main(folder: str, url: str, owner: str = "", parent: str = "", name: str = "") -> int:
    """Run the copier; return the exit code of `Sync.run`. Only a restart passes `parent` (process id) and `name`."""
    run_dir, restarted = Path(folder).resolve(), bool(name)
    owner, parent = owner or lease.owner_of(run_dir), parent or str(os.getppid())
    name = name or f"process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(4)}"
    lock = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    if not restarted:
        with contextlib.suppress(OSError):  # a full disk
            os.write(lock, f"{name}\n".encode())
    drain = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: drain.set())
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 5)  # training has priority

    def should_drain() -> bool:  # signal, closed stdin, or dead parent (its children may hold stdin)
        closed = not sys.stdin.isatty() and bool(select.select([0], [], [], 0)[0]) and not os.read(0, 64)
        return drain.is_set() or closed or str(os.getppid()) != parent

    def make_copier(watch: Watch) -> Copier:
        _take(lock)
        watch("opening the store", 0)
        return Copier(run_dir, open_store(url, write=True), owner, watch=watch)

    def restart() -> None:
        os.execv(sys.executable, [sys.executable, "-m", "kit.stores", folder, url, owner, parent, name])

    sync = Sync(run_dir, url, owner, make_copier, should_drain, restart, restarted)

    def beat() -> None:
        while True:
            time.sleep(1.0)
            with contextlib.suppress(OSError):  # the run was deleted
                if (run_dir / LOCK).read_text().partition(f"{name}\n")[2]:
                    os._exit(3)
            sync.beat()

    threading.Thread(target=beat, daemon=True).start()
    return sync.run()


def _take(lock: int) -> None:
    """Lock the open file `lock`. Raises `StoreError` if the copier of an earlier session does not end."""
    import fcntl

    for _ in range(60):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:  # this file system has no locks
            return
        else:
            return
    raise StoreError("the copier of an earlier session is still running, perhaps blocked by a dead mount")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
