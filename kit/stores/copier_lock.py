"""One copier per run and machine: who holds RUN_DIR/.sync.lock, and when it may be ended.

The lock is the system's (flock). The file says who has it, {"host", "boot", "pid", "started"}: a copier of this very
machine, left behind by an earlier session, is ended, which is safe at any instant. On a folder shared between hosts or
containers the same number may be a stranger's process, which is left alone.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import IO, Any

from kit.stores.base import StoreError

FILE = ".sync.lock"
COPIER = "kit.stores"


def take(file: IO[str]) -> None:
    """Hold the lock, `file` open for appending and reading. Raises `StoreError` if somebody else does."""
    import fcntl

    holder = ""
    for _ in range(10):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(json.dumps(identity(os.getpid())))
            file.flush()
            return
        except BlockingIOError:
            holder = _end_holder(file)
            time.sleep(0.05)  # one that is ended does not let go at once
        except OSError:  # this file system knows no locks
            return
    raise StoreError(holder)


def identity(pid: int) -> dict[str, Any]:
    """What tells a process from every other one. Raises `psutil.Error` if there is none."""
    import psutil

    boot, stat = Path("/proc/sys/kernel/random/boot_id"), Path(f"/proc/{pid}/stat")
    started = psutil.Process(pid).create_time()
    if stat.exists():  # in ticks since the system started, which stay the same when the clock is set
        started = float(stat.read_text().rpartition(")")[2].split()[19])
    system = {"host": socket.gethostname(), "boot": boot.read_text().strip() if boot.exists() else ""}
    return {**system, "pid": pid, "started": started}


def _end_holder(file: IO[str]) -> str:
    """End it if it is ours; who it is."""
    import psutil

    file.seek(0)
    holder: dict[str, Any] = {}
    try:
        holder |= json.loads(file.read())
        found = identity(int(holder["pid"]))
        if found == holder:
            process = psutil.Process(found["pid"])
            ended = process.status() == psutil.STATUS_ZOMBIE  # but for a thread that is stuck in the kernel
            if ended or COPIER in process.cmdline():
                process.kill()
                return f"the copier of an earlier session (process {process.pid}) hangs, and the system cannot end it"
    except (psutil.Error, OSError, KeyError, TypeError, ValueError):
        pass
    who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "an unknown process"
    return f"another machine's copier has the run ({who}); it is left alone, and waited for"
