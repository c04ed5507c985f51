"""One copier per run and machine: who holds RUN_DIR/.sync.lock, and when it may be ended.

The lock is the system's (flock). What the file says, {"host", "boot", "pid", "started"}, tells whether its holder is a
copier on this very machine: one that an earlier session left behind is ended, since ending one is safe at any instant.
On a folder shared between hosts or containers the same number may be a stranger's process, which is left alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import IO, Any

FILE = ".sync.lock"
COPIER = "kit.stores"
SAME_START_S = 2.0
"""A process's start is counted from the start of the system, which Linux tells in whole seconds."""


def take(file: IO[str]) -> str | None:
    """Take the lock, open for appending and reading, or say why it cannot be had yet. A file system without locks
    never refuses."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _end_holder(file)
    except OSError:
        return None
    file.truncate(0)
    file.write(json.dumps(identity(os.getpid())))
    file.flush()
    return None


def identity(pid: int) -> dict[str, Any]:
    """What tells a process from every other one. Raises `psutil.Error` if there is none."""
    import psutil

    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "host": socket.gethostname(),
        "boot": boot.read_text().strip() if boot.exists() else "",
        "pid": pid,
        "started": psutil.Process(pid).create_time(),
    }


def _end_holder(file: IO[str]) -> str:
    import psutil

    file.seek(0)
    holder: dict[str, Any] = {}
    try:
        holder |= json.loads(file.read())
        pid, found = int(holder["pid"]), identity(int(holder["pid"]))
        same = all(found[name] == holder[name] for name in ("host", "boot"))
        if same and abs(found["started"] - float(holder["started"])) < SAME_START_S:
            ended = psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # but for a thread that is stuck in the kernel
            if not ended and COPIER in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)
                ended = True
            if ended:
                return f"the copier of an earlier session (process {pid}) hangs, and the system cannot end it"
    except (psutil.Error, OSError, KeyError, TypeError, ValueError):
        pass
    where = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "an unknown process"
    return f"another machine's copier has the run ({where}); it is left alone, and waited for"
