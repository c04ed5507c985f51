"""status.json: state and progress of a run, which the training process writes once a second."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from kit.format.files import overwrite, read_json, write_atomic
from kit.runs.directory import is_locked

WORKING = ("starting", "running", "paused", "stopping")
"""States in which a training process exists."""
DONE, FAILED, INTERRUPTED = 0, 1, 75
"""Exit codes of a training process, and of notebooks and commands that run one."""
EMPTY: dict[str, Any] = {
    "version": 1,
    "state": "starting",  # one of WORKING, or after a session: interrupted, finished or failed
    "phase": "starting",  # the current activity, in a few words
    "step": 0,
    "total_steps": 0,
    "steps_per_s": None,
    "eta_s": None,
    "mean_return": None,
    "success_rate": None,
    "measured_in": None,  # where these two come from: "before training", "evaluation", "training", "final test"
    "gpu": None,  # {"rollout": …, "update": …}: GPU use in this session, see kit.machine.gpu.Summary
    "checkpoint": None,  # {"step", "time"} of the last checkpoint verified on this machine
    "store": None,  # {"url", "step", "time", "state", "error"}: the last checkpoint verified in the store
    "message": "",
    "task": "",  # env and algo, such as "Reach, PPO"; a store's list shows it
    "plan": "",  # the settings that preset "auto" chose when the run was created
    "process": None,  # {"pid", "host"}
    "started": None,  # unix seconds, of this session
    "updated": None,
}
SILENT_S = 60.0
"""The copier process, which copies the run to its store, updates .sync.json every few seconds. After this many seconds
without an update, the process counts as dead."""
KEPT = ("checkpoint", "step", "mean_return", "success_rate", "measured_in", "plan")
"""Keys whose values a new session keeps from the previous one."""


class Status:
    """Writes status.json: `set` changes values in memory, `write` puts them on disk."""

    def __init__(self, run_path: Path, **values: Any) -> None:
        self._path = run_path
        self._lock = threading.RLock()  # a signal may arrive inside `set`
        self.written = False
        """Whether the last `write` reached the disk."""
        previous = read_json(run_path / "status.json", {})
        process = {"pid": os.getpid(), "host": socket.gethostname()}
        kept = {name: previous[name] for name in KEPT if name in previous}
        self.values = {**EMPTY, **kept, "process": process, "started": time.time(), **values}
        self.write()

    @staticmethod
    def create(run_path: Path, total_steps: int, **values: Any) -> None:
        """Write the status of a run whose process is about to start. The process then overwrites it."""
        previous = {**EMPTY, **read_json(run_path / "status.json", {})}
        values = {**previous, "total_steps": total_steps, **values}
        values |= {"state": "starting", "phase": "starting", "message": "", "process": None, "updated": time.time()}
        write_atomic(run_path / "status.json", json.dumps(values, indent=1), durable=False)

    @staticmethod
    def mark_pruned(run_path: Path) -> None:
        """Set the phase "pruned", for a run that a search has stopped early; the state stays "interrupted"."""
        if previous := read_json(run_path / "status.json", {}):  # on a cluster, the run may be on another machine
            ended = {"phase": "pruned", "message": "its search ended it, because it was behind the other trials"}
            write_atomic(run_path / "status.json", json.dumps(previous | ended, indent=1), durable=False)

    def set(self, **values: Any) -> None:
        """Change some values. The states paused, interrupted, finished and failed also set the phase to their name."""
        with self._lock:
            if values.get("state") in ("paused", "interrupted", "finished", "failed"):
                values = {"phase": values["state"], **values}
            self.values.update(values)

    def write(self, in_place: bool = False) -> None:
        """Write the values to disk. Errors are ignored, because the next call follows a second later.

        `in_place`: overwrite the file, which needs no space on a full disk, instead of replacing it.
        """
        with self._lock:
            self.values["updated"] = time.time()
            self.values["store"] = read_json(self._path / ".sync.json") or self.values["store"]
            self.written = False
            with contextlib.suppress(OSError):
                path, text = self._path / "status.json", json.dumps(self.values, indent=1)
                overwrite(path, text) if in_place else write_atomic(path, text, durable=False)
                self.written = True


def _is_deleted(path: Path) -> bool:
    """Whether the folder is gone from its parent, which is there: not unmounted, and no mount that does not answer."""
    try:
        return path.name not in [beside.name for beside in path.parent.iterdir()]
    except OSError:
        return False


def exit_code(state: str) -> int:
    """Return the exit code for a run or notebook that ended in `state`."""
    return {"finished": DONE, "interrupted": INTERRUPTED}.get(state, FAILED)


def read(run_path: Path) -> dict[str, Any]:
    """Read the current status. If the state is in `WORKING` but the run's lock is free (the training process was
    killed), the returned state is "interrupted"."""
    status = {**EMPTY, **read_json(run_path / "status.json", {})}
    status["store"] = store = read_json(run_path / ".sync.json") or status["store"]
    silent = store and store["state"] != "ok" and time.time() - (store.get("updated") or time.time()) > SILENT_S
    if silent and not is_locked(run_path):
        error = "copying to the store has stopped; `kit resume` copies the rest"
        status["store"] = {**store, "state": "failing", "error": error}
    if status["state"] in WORKING and not is_locked(run_path):
        status |= {"state": "interrupted", "steps_per_s": None, "eta_s": None, "gpu": None}
        if _is_deleted(run_path):
            return status | {"state": "failed", "message": f"{run_path} was deleted or moved"}
        last = f" (its last message: {status['message']})" if status["message"] else ""
        status["message"] = f"the process was killed; resume goes on from the last checkpoint{last}"
    return status
