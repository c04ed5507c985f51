"""`kit batch` on a YAML file, which holds runs, notebooks with parameters, or a hyperparameter search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kit.config import read_yaml
from kit.errors import UserError
from kit.scale import batch, notebooks, study, sweep
from kit.scale.background import JobRow, job_rows
from kit.scale.work import HELD, UNANSWERED, Results, StoredWork, until
from kit.stores.base import StoreError, Unusable

KINDS = ("sweep", "notebook")


def kind(path: str | Path) -> str:
    """Return the kind of the file's content: "sweep", "notebook" or "jobs"."""
    content = read_yaml(path)
    return next((kind for kind in KINDS if isinstance(content, dict) and kind in content), "jobs")


def do(path: str | Path, seeds: int | None = None, trust: bool = False, **where: Any) -> Results | study.Sweep:
    """Run the jobs of a file; arguments as in `kit.batch` (`where`: at_once, on, cpus, gpus). Raises `UserError`."""
    file_kind = kind(path)
    if file_kind != "jobs" and seeds is not None:
        raise UserError(f"--seeds={seeds} is for runs; write the seed, or a grid of seeds, into {path}.")
    if file_kind == "notebook":
        return notebooks.notebooks(path, **where)
    if file_kind == "sweep":
        return sweep.sweep(path, trust=trust, **where)
    return batch.batch(path, seeds=seeds, trust=trust, **where)


def standing(path: str | Path, fetch: bool = False, seeds: int | None = None) -> Results | study.Sweep:
    """Return the state of all jobs, from this machine and the store; start none. `fetch`: download results first."""
    batch.runs_in_store.cache_clear()
    file_kind = kind(path)
    if file_kind == "sweep":
        plan, _ = study.plan(path)
        search = study.Sweep(plan)
        if not search.study.trials and not plan.folder.is_dir():
            raise UserError(f"{path}: no trial has started yet in {plan.folder}; start it with `kit batch {path}`.")
        for trial in study.trials(search) if fetch else []:
            if problem := _fetch(trial):
                print(f"{trial.path.name}: {problem['message']}", file=sys.stderr)
        return search
    jobs = _jobs(path, seeds)
    problems = [_fetch(job) if fetch else {} for job in jobs]
    return Results(jobs, [_row(job) | problem for job, problem in zip(jobs, problems, strict=True)])


def _fetch(job: StoredWork) -> dict[str, Any]:
    """Download a job's results. Return {}, or, if that fails, the entries of the job's row that tell why."""
    try:
        job.fetch()
    except (StoreError, UserError) as error:
        return {"state": "failed", "message": f"its results cannot be fetched: {error}"}
    return {}


def _jobs(path: str | Path, seeds: int | None = None) -> list[StoredWork]:
    """Return the runs or notebooks of a file."""
    planned = batch.read_jobs(path, seeds) if kind(path) == "jobs" else notebooks.plan_jobs(Path(path))
    return list(planned[0])


class FileJobs:
    """The jobs of a YAML file as rows for `kit.ui.runs`, whichever process runs them."""

    def __init__(self, path: str | Path) -> None:
        self.title = str(path)
        self._path, self._journal_size = path, -1
        self.look()

    def look(self) -> None:
        """Read the file again. For jobs that another machine runs, read their state from the store."""
        batch.runs_in_store.cache_clear()
        self._plan = study.plan(self._path)[0] if kind(self._path) == "sweep" else None
        if self._plan is not None:
            self._search = study.Sweep(self._plan)
        else:
            self._jobs = _jobs(self._path)
            self._looked = [_row(job) for job in self._jobs]

    def rows(self) -> list[JobRow]:
        if self._plan is None:
            return job_rows(self._jobs, [self._row(*pair) for pair in zip(self._jobs, self._looked, strict=True)])
        journal = self._plan.folder / study.JOURNAL
        size = journal.stat().st_size if journal.exists() else 0
        if size != self._journal_size:  # another process, which runs the search, has written to the journal
            self._search, self._journal_size = study.Sweep(self._plan), size
        return study.trial_rows(self._search)

    def _row(self, job: StoredWork, looked: dict[str, Any]) -> dict[str, Any]:
        row = job.row()
        return looked if row["state"] == "waiting" and job.run_path is None else row


def _row(job: StoredWork) -> dict[str, Any]:
    """Return a job's row of the results. If the job waits for another machine or its store, "message" is the reason."""
    try:
        row = job.look()
        held_s = job.held_for() if row["state"] == "waiting" else 0.0
    except (StoreError, Unusable) as error:
        return {**job.row(), "message": f"{UNANSWERED} ({error})"}
    except UserError as error:  # such as a damaged file in the store
        return {**job.row(), "message": str(error)}
    return {**row, "message": f"{HELD} ({until(held_s)})"} if held_s > 0 else row


def forget_failures(path: str | Path) -> None:
    """Delete the results of failed notebooks, so that they are executed again. (Failed runs are always resumed.)"""
    if kind(path) == "notebook":
        notebooks.retry(path)
