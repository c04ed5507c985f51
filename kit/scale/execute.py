"""The process of one notebook: `python -m kit.scale.execute FOLDER LOCK`. papermill in this process, so that a kernel
dies with it; every few seconds what is executed goes to the store, and result.json is written last."""

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
from kit.scale.notebooks import JOB, NOTEBOOK, PROGRESS, RESULT, SOURCE, trained
from kit.scale.shelf import Shelf
from kit.stores import LeaseHeld
from kit.stores.redact import one_line, redact

SAVE_S = 5.0
"""Between two looks at what is executed."""


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    os.set_inheritable(int(arguments[1]), False)
    asked = json.loads((folder / JOB).read_text())
    attempt = secrets.token_hex(4)
    begun, over = time.time(), threading.Event()
    at = f"{folder.parent.name}/{folder.name}"
    store = Shelf(asked["store"], folder, at, f"{at}, attempt {attempt}") if asked["store"] else None
    watching = threading.Thread(target=_watch, args=(folder, over, store), daemon=True)
    watching.start()
    state, message = _execute(folder, asked)
    over.set()
    watching.join()
    _look(folder)
    result = {"state": state, "message": message, "attempt": attempt, "seconds": round(time.time() - begun, 1)}
    return _end(folder, result, store)


def _execute(folder: Path, asked: dict[str, Any]) -> tuple[str, str]:
    """How it ended, and why: as the exception says or the run, never as the notebook's own metadata do."""
    import papermill

    os.environ["KIT_GO_ON"] = "1"  # what it trains goes on where it is
    parameters = asked["parameters"]
    try:
        papermill.execute_notebook(
            folder / SOURCE, folder / NOTEBOOK, parameters, progress_bar=False, autosave_cell_every=int(SAVE_S)
        )
    except papermill.PapermillExecutionError as error:
        return "failed", redact(f"{error.ename}: {error.evalue}").splitlines()[0]
    except Exception as error:
        return "failed", f"{type(error).__name__}: {one_line(error)}"
    run = trained(parameters)
    if run is not None and (now := run.status())["state"] != "finished":
        return now["state"], now["message"]
    return "finished", ""


def _watch(folder: Path, over: threading.Event, store: Shelf | None) -> None:
    while not over.wait(SAVE_S):
        _look(folder)
        if store is not None:
            with contextlib.suppress(LeaseHeld):  # said at the end
                store.put(NOTEBOOK)


def _look(folder: Path) -> None:
    """Note how many cells are done."""
    try:
        cells = json.loads((folder / NOTEBOOK).read_text())["cells"]
    except (OSError, ValueError):  # it is being written
        return
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    done = sum(cell["execution_count"] is not None for cell in code)
    write_atomic(folder / PROGRESS, json.dumps({"cells_done": done, "cells": len(code)}), durable=False)


def _end(folder: Path, result: dict[str, Any], store: Shelf | None) -> int:
    """The notebook to the store, then the result there and here."""
    if store is not None:
        files = {NOTEBOOK: (folder / NOTEBOOK).read_bytes()} if (folder / NOTEBOOK).exists() else {}
        if trouble := store.finish({**files, RESULT: json.dumps(result, indent=1).encode()}):
            result = {**result, "state": "failed", "message": trouble}
    write_atomic(folder / RESULT, json.dumps(result, indent=1))
    return exit_code(result["state"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
