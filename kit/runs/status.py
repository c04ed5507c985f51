"""status.json: what a run is doing, rewritten whole once a second by the process at work, read by everybody else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from kit.format.files import read_json, write_atomic
from kit.runs.directory import is_locked

TRANSITIONS = {
    "starting": ("running", "interrupted", "failed"),
    "running": ("starting", "paused", "stopping", "finished", "failed"),
    "paused": ("running", "failed"),
    "stopping": ("interrupted", "failed"),
    "interrupted": (),
    "finished": (),
    "failed": (),
}
"""What a session may become from each state. It is back at the start when memory ran out."""
WORKING = ("starting", "running", "paused", "stopping")
DONE, FAILED, INTERRUPTED = 0, 1, 75
"""Exit codes of whoever does a run."""
EMPTY: dict[str, Any] = {
    "version": 1,
    "state": "starting",  # see TRANSITIONS
    "phase": "starting",  # what it is doing now, in a few words
    "step": 0,
    "total_steps": 0,
    "steps_per_s": None,
    "eta_s": None,
    "mean_return": None,
    "success_rate": None,
    "gpu": None,  # {"rollout": …, "update": …}: what the card did in this session, see kit.machine.gpu.Summary
    "checkpoint": None,  # {"step", "time"} of the last one verified on this machine
    "store": None,  # {"url", "step", "time", "state", "error"}: where it has arrived beyond this machine
    "message": "",
    "plan": "",  # how preset auto has fitted the run to the machine it began on
    "process": None,  # {"pid", "host"}
    "started": None,  # unix seconds, of this session
    "updated": None,
}
SILENT_S = 60.0
"""A copier says every few seconds that it is there."""
KEPT = ("checkpoint", "step", "mean_return", "success_rate", "plan")
"""What a new session takes over from the one before."""


class Status:
    """The writer's side. Every change is a call of `set`; `write` puts it on disk."""

    def __init__(self, run_path: Path, **values: Any) -> None:
        self._path = run_path
        self._lock = threading.Lock()
        self.written = False
        """Whether the last `write` reached the disk."""
        previous = read_json(run_path / "status.json", {})
        process = {"pid": os.getpid(), "host": socket.gethostname()}
        kept = {name: previous[name] for name in KEPT if name in previous}
        self.values = {**EMPTY, **kept, "process": process, "started": time.time(), **values}
        self.write()

    @staticmethod
    def create(run_path: Path, total_steps: int, **values: Any) -> None:
        """Say that a process is about to start; the process itself then writes its own status."""
        previous = {**EMPTY, **read_json(run_path / "status.json", {})}
        values = {**previous, "total_steps": total_steps, **values}
        values |= {"state": "starting", "phase": "starting", "message": "", "process": None, "updated": time.time()}
        write_atomic(run_path / "status.json", json.dumps(values, indent=1), durable=False)

    def set(self, **values: Any) -> None:
        """Change some values. With a state that is no work, or is to stand still, comes the phase of that name."""
        with self._lock:
            state = values.get("state", self.values["state"])
            if state not in (self.values["state"], *TRANSITIONS[self.values["state"]]):
                raise ValueError(f"a session that is {self.values['state']} cannot become {state}")
            if "state" in values and state not in ("starting", "running", "stopping"):
                values = {"phase": state, **values}
            self.values.update(values)

    def write(self) -> None:
        """Put it on disk. What a full disk does not take now is written next time, a second later."""
        with self._lock:
            self.values["updated"] = time.time()
            self.values["store"] = read_json(self._path / ".sync.json") or self.values["store"]
            with contextlib.suppress(OSError):
                write_atomic(self._path / "status.json", json.dumps(self.values, indent=1), durable=False)
                self.written = True
                return
            self.written = False


def exit_code(state: str) -> int:
    """Of a process whose run, or notebook, ended in `state`."""
    return {"finished": DONE, "interrupted": INTERRUPTED}.get(state, FAILED)


def read(run_path: Path) -> dict[str, Any]:
    """The status as it is now. A run that says it is at work while no process holds its lock was interrupted."""
    status = {**EMPTY, **read_json(run_path / "status.json", {})}
    status["store"] = store = read_json(run_path / ".sync.json") or status["store"]
    silent = store and store["state"] != "ok" and time.time() - (store.get("updated") or time.time()) > SILENT_S
    if silent and not is_locked(run_path):
        status["store"] = {**store, "state": "failing", "error": "no copier is at work; kit resume copies the rest"}
    if status["state"] in WORKING and not is_locked(run_path):
        status |= {"state": "interrupted", "steps_per_s": None, "eta_s": None, "gpu": None}
        last = f" (its last words: {status['message']})" if status["message"] else ""
        status["message"] = f"the process was killed; resume goes on from the last checkpoint{last}"
    return status
