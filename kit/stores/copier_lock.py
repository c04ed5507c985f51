"""Lock so that only one copier process works on a run: RUN_DIR/.sync.lock.

The lock is a flock, and the file names the holder: {"host", "boot", "pid", "started"}. If an earlier session's copier
on this machine still holds it, that copier is killed, which is safe at any time. In a folder that hosts or containers
share, the same pid may belong to an unrelated process; a process is killed only if all four values match.
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
    """Lock `file`, which is open for appending and reading. Raises `StoreError` if another process keeps the lock."""
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
    """Return host, boot id, pid and start time, which identify a process. Raises `psutil.Error` if it has ended."""
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
            ended = process.status() == psutil.STATUS_ZOMBIE  # but a thread that hangs in the kernel keeps the lock
            if ended or COPIER in process.cmdline():
                process.kill()
                return f"the copier of an earlier session (process {process.pid}) hangs and cannot be killed"
    except (psutil.Error, OSError, KeyError, TypeError, ValueError):
        pass
    who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "an unknown process"
    return f"another machine's copier has the run ({who}); waiting for it to end"
