"""Lock for one copier per run and machine: RUN_DIR/.sync.lock.

The lock is a flock. The file names the holder, {"host", "boot", "pid", "started"}: a copier on this machine, left
behind by an earlier session, is killed, which is safe at any time. On a folder shared between hosts or containers the
same pid may belong to an unrelated process; all four values must match before a process is killed.
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
    """Take the lock on `file`, open for appending and reading. Raises `StoreError` if another process keeps it."""
    import fcntl

    reason = ""
    for _ in range(10):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(json.dumps(identity(os.getpid())))
            file.flush()
            return
        except BlockingIOError:
            reason = _kill_holder(file)
            time.sleep(0.05)  # a killed process does not release its lock at once
        except OSError:  # this file system has no locks
            return
    raise StoreError(reason)


def identity(pid: int) -> dict[str, Any]:
    """Return host, boot id, pid and start time, which identify a process. Raises `psutil.Error` if it is gone."""
    import psutil

    boot, stat = Path("/proc/sys/kernel/random/boot_id"), Path(f"/proc/{pid}/stat")
    started = psutil.Process(pid).create_time()
    if stat.exists():  # in ticks since boot, which do not change when the clock is set
        started = float(stat.read_text().rpartition(")")[2].split()[19])
    system = {"host": socket.gethostname(), "boot": boot.read_text().strip() if boot.exists() else ""}
    return {**system, "pid": pid, "started": started}


def _kill_holder(file: IO[str]) -> str:
    """Kill the holder if it is a copier on this machine; return why the lock is still held."""
    import psutil

    file.seek(0)
    holder: dict[str, Any] = {}
    try:
        holder |= json.loads(file.read())
        running = identity(int(holder["pid"]))
        if running == holder:
            process = psutil.Process(running["pid"])
            ended = process.status() == psutil.STATUS_ZOMBIE  # only a thread that is stuck in the kernel remains
            if ended or COPIER in process.cmdline():
                process.kill()
                return f"the copier of an earlier session (process {process.pid}) hangs, and the system cannot end it"
    except (psutil.Error, OSError, KeyError, TypeError, ValueError):
        pass
    who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "an unknown process"
    return f"another machine's copier has the run ({who}); waiting for it to end"
