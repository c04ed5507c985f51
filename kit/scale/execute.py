"""The process of one notebook: `python -m kit.scale.execute FOLDER LOCK`. papermill in this process, so that a kernel
dies with it; every few seconds what is executed goes to the store, and result.json is written last."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.format.files import write_atomic
from kit.runs.session import DONE, FAILED, INTERRUPTED
from kit.scale.notebooks import JOB, NOTEBOOK, PROGRESS, RESULT, SOURCE, trained
from kit.stores import LeaseHeld, Store, StoreError, lease, open_store
from kit.stores.redact import one_line, redact

SAVE_S, PATIENCE_S = 5.0, 300.0
"""Between two looks at what is executed; for which a store that does not answer is asked at the end."""


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    os.set_inheritable(int(arguments[1]), False)
    asked = json.loads((folder / JOB).read_text())
    attempt = secrets.token_hex(4)
    begun, over = time.time(), threading.Event()
    store = Shelf(asked["store"], folder, attempt) if asked["store"] else None
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
    write = json.dumps(result, indent=1).encode()
    if store is not None and (trouble := store.finish(write)):
        result = {**result, "state": "failed", "message": trouble}
        write = json.dumps(result, indent=1).encode()
    write_atomic(folder / RESULT, write.decode())
    return {"finished": DONE, "interrupted": INTERRUPTED}.get(result["state"], FAILED)


class Shelf:
    """The job's folder in a store, which one attempt at a time may write, by the store's lease."""

    def __init__(self, url: str, folder: Path, attempt: str) -> None:
        self._url, self._folder, self._attempt = url, folder, attempt
        self._opened: Store | None = None
        self._at = f"{folder.parent.name}/{folder.name}"
        self._next = self._renew = 0.0
        self._seen: int | None = None

    @property
    def _store(self) -> Store:
        """Opened when it is needed: it may be out of reach for a while."""
        if self._opened is None:
            self._opened = open_store(self._url, write=True)
        return self._opened

    def put(self, name: str) -> None:
        """The file as it is now, unless it was put a moment ago or has not changed. What fails is tried again later."""
        changed = (self._folder / name).stat().st_mtime_ns if (self._folder / name).exists() else None
        if changed == self._seen or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SAVE_S
        try:
            self._next = time.monotonic() + max(SAVE_S, self._store.min_interval_s)
            self._write({f"{self._at}/{name}": (self._folder / name).read_bytes()})
            self._seen = changed
        except (StoreError, UserError, OSError) as error:
            print(f"{name} was not copied: {error}", flush=True)

    def finish(self, result: bytes) -> str:
        """Everything, the result last of all. What went wrong, if it did for `PATIENCE_S`."""
        end = time.monotonic() + PATIENCE_S
        notebook = self._folder / NOTEBOOK
        files = {f"{self._at}/{NOTEBOOK}": notebook.read_bytes()} if notebook.exists() else {}
        while True:
            try:
                self._write({**files, f"{self._at}/{RESULT}": result})
                lease.release(self._store, self._at, lease.owner_of(self._folder))
                return ""
            except LeaseHeld as error:  # another attempt has taken over: what that writes counts
                return str(error)
            except (StoreError, UserError, OSError) as error:
                if time.monotonic() > end:
                    return f"done, but it could not be copied: {error}"
                time.sleep(SAVE_S)

    def _write(self, files: dict[str, bytes]) -> None:
        if time.monotonic() > self._renew:
            lease.acquire(self._store, self._at, lease.owner_of(self._folder))
            self._renew = time.monotonic() + lease.TTL_S / 2
        self._store.put(files, message=f"{self._at}, attempt {self._attempt}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
