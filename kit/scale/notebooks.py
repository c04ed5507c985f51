"""Execute a notebook with many sets of parameters by papermill, each in its own process.

    notebook: notebooks/01_train.ipynb
    parameters: {total_steps: 50000}        # parameters of every execution
    grid: {env: [Reach, Ant], seed: [0, 1, 2]}    # every combination; or `jobs:`, a list of mappings
    store: hf://you/notebooks               # notebooks are copied there during execution and at the end
    at_once: 2

Job `bulk-reach-s0` of bulk.yaml has the folder `runs/bulk.notebooks/bulk-reach-s0`. The folder holds notebook.ipynb
(with the outputs so far), worker.log, and result.json, which is written last. If the job is started again, the run that
the notebook trains resumes from its run directory or its store.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.config import folder_name, read_yaml
from kit.errors import UserError, need
from kit.format.files import read_json, write_atomic
from kit.format.manifest import parse_json
from kit.machine import settings
from kit.runs import directory
from kit.runs.run import Run
from kit.scale.batch import check_stores, run_batch, with_shared_folder
from kit.scale.work import KEYS, Engine, Results
from kit.stores import lease, open_store

MAX_STARTS = 3
"""A job counts as failed if its process was killed this many times."""
SETTINGS = ("notebook", "parameters", "grid", "jobs", "store", "runs_dir")
JOB, SOURCE, NOTEBOOK = "job.json", "source.ipynb", "notebook.ipynb"
RESULT, PROGRESS = "result.json", "progress.json"


def run_of(parameters: Mapping[str, Any]) -> Run | None:
    """Return the run that a notebook with these parameters trains; None if the run directory does not exist yet."""
    path = Path(str(parameters.get("runs_dir", "runs"))).expanduser() / str(parameters.get("run_name"))
    return Run(path) if (path / "config.yaml").is_file() else None


@dataclass
class NotebookJob:
    """One execution of a notebook."""

    path: Path
    """The job's folder."""
    source: str
    """The content of the notebook file."""
    parameters: dict[str, Any]
    store: str | None
    starts: int = 0
    error: str = ""
    note: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run(self) -> Run | None:
        return run_of(self.parameters)

    @property
    def run_path(self) -> Path | None:
        return None if self.run is None else self.run.path

    @property
    def store_path(self) -> str:
        return f"{self.path.parent.name}/{self.name}"

    @property
    def result(self) -> dict[str, Any] | None:
        result = read_json(self.path / RESULT)
        return result if isinstance(result, dict) else None

    def start(self, threads: int) -> None:
        """Start a process that executes the notebook, unless one is running, or the job has finished or failed.

        A finished job's result is fetched from the store if this machine has none.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self.result is None and (self.stored() or {}).get("state") == "finished":
            self.fetch()
        if self.is_working() or (self.result or {}).get("state") in ("finished", "failed"):
            return
        self.starts += 1
        (self.path / RESULT).unlink(missing_ok=True)
        write_atomic(self.path / JOB, json.dumps({"parameters": self.parameters, "store": self.store}, indent=1))
        write_atomic(self.path / SOURCE, self.source)
        with directory.lock(self.path) as lock, (self.path / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "kit.scale.execute", str(self.path), str(lock.fileno())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()],
                start_new_session=True, env={**settings.worker_environment(threads), "KIT_CORES": str(threads)},
            )  # fmt: skip

    def stored(self) -> dict[str, Any] | None:
        """Return the result in the store, written by any machine; None if there is none."""
        content = open_store(self.store).read_or_none(f"{self.store_path}/{RESULT}") if self.store else None
        return None if content is None else parse_json(content, RESULT)

    def look(self) -> dict[str, Any]:
        stored = self.stored() if self.result is None and not self.is_working() else None
        return self.row() | {key: value for key, value in (stored or {}).items() if key in KEYS}

    def fetch(self) -> None:
        if self.store and self.result is None and (stored := self.stored()) is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            open_store(self.store).get(f"{self.store_path}/{NOTEBOOK}", self.path / NOTEBOOK)
            write_atomic(self.path / RESULT, json.dumps(stored, indent=1))

    def is_working(self) -> bool:
        if self._process is not None:
            self._process.poll()  # avoids a zombie process
        return (self.path / ".lock").exists() and directory.is_locked(self.path)

    def should_restart(self) -> bool:
        """Return whether the job must be started again, because its process was killed."""
        return self.result is None and self.starts < MAX_STARTS

    def held_for(self) -> float:
        return lease.held_for(self.store, self.store_path, self.path)

    def stop(self) -> None:
        if (run := self.run) is not None and run.is_working():
            run.stop()  # the notebook waits for the run and then ends

    def wait(self, seconds: float) -> None:
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                if (run := self.run) is not None and run.is_working():
                    self.stop()  # it may have started its run in the meantime; it ends after the run's checkpoint
                else:  # `stop` does nothing while it does not train
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(self._process.pid, signal.SIGTERM)

    def row(self) -> dict[str, Any]:
        done, progress = self.result, read_json(self.path / PROGRESS, {})
        killed = ""
        if self.error:
            state = "failed"
        elif done:
            state = done["state"]
        elif self.is_working():
            state = "running"
        elif self.starts >= MAX_STARTS:
            state, killed = "failed", f"its process was killed {self.starts} times; see worker.log"
        else:
            state = "waiting"
        run = self.run
        status = run.status() if run is not None else {}
        cells = {"step": progress.get("cells_done", 0), "total_steps": progress.get("cells", 1)}
        message = self.error or killed or (done or {}).get("message", "") or self.note
        scores = {name: status.get(name) for name in ("success_rate", "mean_return")}
        return {**dict.fromkeys(KEYS), "name": self.name, "state": state, **cells, **scores, "message": message}


def notebooks(
    path: str | Path,
    *,
    at_once: int | None = None,
    on: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    on_progress: Callable[[Results], None] | None = None,
) -> Results:
    """Execute the notebooks of the YAML file at `path`, on this machine or `on` a cluster.

    The docstring of `kit.scale.notebooks` shows such a file. Arguments as in `kit.batch`. Call it again to continue.
    Raises `UserError` before anything starts, also for a parameter that the notebook lacks.
    """
    jobs, engine = plan_jobs(Path(path), at_once=at_once, on=on, cpus=cpus, gpus=gpus)
    check_stores(job.store for job in jobs)
    return run_batch(jobs, [], engine, on_progress, unit="cell")


def plan_jobs(path: Path, **resources: Any) -> tuple[list[NotebookJob], Engine]:
    """Read the jobs of a file; `resources` override those of the file. Raises `UserError`."""
    papermill: Any = need("papermill", "notebook")

    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("notebook"), str):
        raise UserError(f"{path} has no `notebook:` with the path of a notebook; see `kit.scale.notebooks`.")
    engine = Engine.of(content, **resources)
    for name in ("store", "runs_dir"):
        if not isinstance(content.get(name, ""), str | None):
            raise UserError(f"{path}: {name}={content[name]!r} is not a text; write a path or a store's URL.")
    content["runs_dir"] = content.get("runs_dir") or "runs"
    content = with_shared_folder(content) if engine.on else content
    for name in content.keys() - set(SETTINGS):
        raise UserError(f"{path}: {name}={content[name]!r} is unknown; valid are {', '.join(SETTINGS)}.")
    notebook, stem = Path(content["notebook"]), folder_name(path.stem)
    if not notebook.is_file():
        raise UserError(f"{path}: notebook={content['notebook']!r} does not exist; give its path from this folder.")
    try:
        defaults = papermill.inspect_notebook(notebook)
    except ValueError as error:
        raise UserError(f"{path}: {notebook} cannot be executed ({error}); open it in Jupyter and save it.") from None
    shared: dict[str, Any] = content.get("parameters") or {}
    grid: dict[str, list[Any]] = content.get("grid") or {}
    job_entries: list[dict[str, Any]] = content.get("jobs") or [{}]
    mappings = [shared, grid, *job_entries] if isinstance(job_entries, list) else [None]
    are_mappings = all(isinstance(entry, dict) for entry in mappings)
    if not are_mappings or not all(isinstance(values, list) and values for values in grid.values()):
        raise UserError(
            f"{path}: `parameters` and `grid` must be mappings, `jobs` a list of mappings, and each value of `grid` a "
            "list that is not empty."
        )
    folder = Path(content["runs_dir"]).expanduser() / f"{stem}.notebooks"
    store = content.get("store")
    jobs, taken = list[NotebookJob](), Counter[str]()
    for entry in job_entries:
        for values in itertools.product(*grid.values()):
            own = {**entry, **dict(zip(grid, values, strict=True))}
            parameters = {**shared, **own}
            for name in parameters.keys() - defaults.keys():
                valid = ", ".join(defaults)
                raise UserError(
                    f"{path}: {name}={parameters[name]!r} is not a parameter of {notebook}; it has {valid}."
                )
            words = [f"s{value}" if name == "seed" else str(value) for name, value in own.items()]
            name = folder_name("-".join([stem, *words])).strip("-").lower()[:80]
            taken[name] += 1
            name = name if taken[name] == 1 else f"{name}-{taken[name]}"
            run_fields = {"run_name": name, "runs_dir": content["runs_dir"]}
            parameters |= {key: value for key, value in run_fields.items() if key in defaults and key not in parameters}
            jobs.append(NotebookJob(folder / name, notebook.read_text(), parameters, store))
    return jobs, engine


def retry(path: str | Path) -> list[str]:
    """Delete the results of failed jobs, so that these jobs can be executed again; return their names."""
    failed = [job for job in plan_jobs(Path(path))[0] if job.row()["state"] == "failed" and not job.is_working()]
    for job in failed:
        (job.path / RESULT).unlink(missing_ok=True)
    return [job.name for job in failed]
