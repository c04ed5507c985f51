"""Notebooks in bulk: one notebook, many parameters, each execution in a process of its own.

    notebook: notebooks/01_train.ipynb
    parameters: {total_steps: 50000}        # for all
    grid: {env: [Reach, Ant], seed: [0, 1, 2]}    # every combination; or `jobs:`, a list of parameters
    store: hf://you/notebooks               # also lands there, while it is executed and at the end
    at_once: 2

Job `bulk-reach-s0` of bulk.yaml lies in `runs/bulk.notebooks/bulk-reach-s0`: notebook.ipynb as far as it is executed,
worker.log, and result.json, which is written last. What a notebook trains goes on from its run directory or its store
when the job is started again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.config import read_yaml
from kit.errors import UserError, need
from kit.format.files import read_json, write_atomic
from kit.machine import settings
from kit.runs import directory
from kit.runs.batch import KEYS, Results, run_all, slots
from kit.runs.run import Run

STARTS = 3
"""How often a job whose process was killed is begun."""
SETTINGS = ("notebook", "parameters", "grid", "jobs", "store", "runs_dir", "at_once")
STORED, JOB, NOTEBOOK, RESULT, PROGRESS = "store", "job.json", "notebook.ipynb", "result.json", "progress.json"


@dataclass
class NotebookJob:
    """One execution."""

    path: Path
    """Its folder."""
    notebook: Path
    parameters: dict[str, Any]
    store: str | None
    starts: int = 0
    error: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run(self) -> Run | None:
        """What it trains, once that is there."""
        path = Path(self.parameters.get("runs_dir", "runs")) / str(self.parameters.get("run_name"))
        return Run(path) if (path / "config.yaml").is_file() else None

    @property
    def result(self) -> dict[str, Any] | None:
        found = read_json(self.path / RESULT)
        return found if isinstance(found, dict) else None

    def start(self, threads: int, card_share: int) -> None:
        """Unless it is done with, or at work already."""
        if self.is_working() or (self.result or {}).get("state") in ("finished", "failed"):
            return
        self.starts += 1
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / RESULT).unlink(missing_ok=True)
        asked = {"notebook": str(self.notebook.absolute()), "parameters": self.parameters, "store": self.store}
        write_atomic(self.path / JOB, json.dumps(asked, indent=1))
        with directory.lock(self.path) as lock, (self.path / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "kit.scale.execute", str(self.path), str(lock.fileno())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()],
                start_new_session=True, env={**settings.worker_environment(threads), "KIT_CORES": str(threads)},
            )  # fmt: skip

    def is_working(self) -> bool:
        if self._process is not None:
            self._process.poll()  # so that no zombie is left
        return (self.path / ".lock").exists() and directory.is_locked(self.path)

    def again(self) -> bool:
        """Whether its process went without a word, and it is to be begun once more."""
        return self.result is None and self.starts < STARTS

    def stop(self) -> None:
        if (run := self.run) is not None and run.is_working():
            run.stop()  # the notebook sees that and ends

    def wait(self, seconds: float) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)

    def row(self) -> dict[str, Any]:
        done, progress = self.result, read_json(self.path / PROGRESS, {})
        state = "failed" if self.error else done["state"] if done else "running" if self.is_working() else "waiting"
        if not done and self.starts and state == "waiting":
            state, done = "failed", {"message": f"its process was killed {self.starts} times; see worker.log"}
        run = self.run
        now = run.status() if run is not None else {}
        cells = {"step": progress.get("cells_done", 0), "total_steps": progress.get("cells", 1)}
        message = self.error or (done or {}).get("message", "")
        reached = {name: now.get(name) for name in ("success_rate", "mean_return")}
        return {**dict.fromkeys(KEYS), "name": self.name, "state": state, **cells, **reached, "message": message}


def notebooks(
    path: str | Path, *, at_once: int | None = None, on_progress: Callable[[Results], None] | None = None
) -> Results:
    """Execute what the YAML file at `path` says (see above); called again, go on. Raises `UserError` before anything
    is begun, also for a parameter that the notebook does not have."""
    need("papermill", "notebook")
    jobs, asked = planned(Path(path))
    return run_all(jobs, slots([], len(jobs), asked if at_once is None else at_once), on_progress, unit="cell")


def planned(path: Path) -> tuple[list[NotebookJob], int | None]:
    """The jobs that a file asks for, and how many side by side. Raises `UserError`."""
    import papermill

    content = read_yaml(path)
    for name in content.keys() - set(SETTINGS):
        raise UserError(f"{path}: {name}={content[name]!r} is unknown; valid are {', '.join(SETTINGS)}.")
    notebook, stem = Path(content["notebook"]), re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem)
    if not notebook.is_file():
        raise UserError(f"{path}: notebook={content['notebook']!r} does not exist; give its path from here.")
    known = papermill.inspect_notebook(notebook)
    shared: dict[str, Any] = content.get("parameters") or {}
    grid: dict[str, list[Any]] = content.get("grid") or {}
    listed: list[dict[str, Any]] = content.get("jobs") or [{}]
    if not all(isinstance(said, dict) for said in (shared, grid)) or not all(
        isinstance(v, list) for v in grid.values()
    ):
        raise UserError(f"{path}: parameters and grid are mappings, and of a grid each value is a list to choose from.")
    folder = Path(content.get("runs_dir", "runs")) / f"{stem}.notebooks"
    if store := content.get(STORED):
        from kit.stores import open_store

        open_store(store, write=True)
    jobs, taken = list[NotebookJob](), Counter[str]()
    for job in listed:
        for chosen in itertools.product(*grid.values()):
            own = {**job, **dict(zip(grid, chosen, strict=True))}
            parameters = {**shared, **own}
            for name in parameters.keys() - known.keys():
                valid = ", ".join(known)
                raise UserError(
                    f"{path}: {name}={parameters[name]!r} is not a parameter of {notebook}; it has {valid}."
                )
            said = [f"s{value}" if name == "seed" else str(value) for name, value in own.items()]
            name = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join([stem, *said])).strip("-").lower()[:80]
            taken[name] += 1
            name = name if taken[name] == 1 else f"{name}-{taken[name]}"
            given = {"run_name": name, "runs_dir": str(content.get("runs_dir", "runs"))}
            parameters |= {key: value for key, value in given.items() if key in known and key not in parameters}
            jobs.append(NotebookJob(folder / name, notebook, parameters, store))
    return jobs, content.get("at_once")


def retry(path: str | Path) -> list[str]:
    """Forget how the failed jobs of a file ended, so that they are begun again; their names."""
    failed = [job for job in planned(Path(path))[0] if job.row()["state"] == "failed" and not job.is_working()]
    for job in failed:
        (job.path / RESULT).unlink(missing_ok=True)
    return [job.name for job in failed]
