"""The process that executes one notebook: `python -m kit.scale.execute FOLDER LOCK`.

FOLDER is the job's folder, LOCK the file descriptor of its lock. papermill runs in this process, and the kernel ends
with this process. The notebook is copied to the store every few seconds; result.json is written last.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kit.format.files import write_atomic
from kit.runs.status import exit_code
from kit.scale.notebooks import JOB, NOTEBOOK, PROGRESS, RESULT, SOURCE, run_of
from kit.scale.store_folder import StoreFolder
from kit.stores import LeaseHeld
from kit.stores.redact import one_line, redact

SAVE_S = 5.0
"""Seconds between two copies of the notebook, on this machine and to the store."""


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    os.set_inheritable(int(arguments[1]), False)
    job = json.loads((folder / JOB).read_text())
    attempt = secrets.token_hex(4)
    started, done = time.time(), threading.Event()
    at = f"{folder.parent.name}/{folder.name}"
    store = StoreFolder(job["store"], folder, at, f"{at}, attempt {attempt}") if job["store"] else None
    watcher = threading.Thread(target=_watch, args=(folder, done, store), daemon=True)
    watcher.start()
    state, message = _execute(folder, job)
    done.set()
    watcher.join()
    _write_progress(folder)
    result = {"state": state, "message": message, "attempt": attempt, "seconds": round(time.time() - started, 1)}
    return _end(folder, result, store)


def _execute(folder: Path, job: dict[str, Any]) -> tuple[str, str]:
    """Execute the notebook. Return state and message, from its exception or from the run that it trained."""
    import papermill

    os.environ["KIT_GO_ON"] = "1"  # the notebook resumes its run if it exists
    parameters = job["parameters"]
    try:
        papermill.execute_notebook(
            folder / SOURCE, folder / NOTEBOOK, parameters, progress_bar=False, autosave_cell_every=int(SAVE_S)
        )
    except papermill.PapermillExecutionError as error:
        return "failed", redact(f"{error.ename}: {error.evalue}").splitlines()[0]
    except Exception as error:
        return "failed", f"{type(error).__name__}: {one_line(error)}"
    run = run_of(parameters)
    if run is not None and (status := run.status())["state"] != "finished":
        return status["state"], status["message"]
    return "finished", ""


def _watch(folder: Path, done: threading.Event, store: StoreFolder | None) -> None:
    """Write the progress and copy the notebook to the store every `SAVE_S` until `done`."""
    while not done.wait(SAVE_S):
        _write_progress(folder)
        if store is not None:
            with contextlib.suppress(LeaseHeld):  # `store.finish` reports this error
                store.put(NOTEBOOK)


def _write_progress(folder: Path) -> None:
    try:
        cells = json.loads((folder / NOTEBOOK).read_text())["cells"]
    except (OSError, ValueError):  # papermill is writing it
        return
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    done = sum(cell["execution_count"] is not None for cell in code)
    write_atomic(folder / PROGRESS, json.dumps({"cells_done": done, "cells": len(code)}), durable=False)


def _end(folder: Path, result: dict[str, Any], store: StoreFolder | None) -> int:
    """Copy notebook and result to the store, then write result.json on this machine; return the exit code."""
    if store is not None:
        files = {NOTEBOOK: (folder / NOTEBOOK).read_bytes()} if (folder / NOTEBOOK).exists() else {}
        if error := store.finish({**files, RESULT: json.dumps(result, indent=1).encode()}):
            result = {**result, "state": "failed", "message": error}
    write_atomic(folder / RESULT, json.dumps(result, indent=1))
    return exit_code(result["state"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
