"""Dispatch of `kit batch` on a YAML file's kind: runs, a notebook with parameters, or a hyperparameter search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.config import folder_name, read_yaml
from kit.errors import UserError
from kit.scale import batch, notebooks, sweep
from kit.scale.work import Notes, Results, StoredWork

KINDS = ("sweep", "notebook")


def kind(path: str | Path) -> str:
    """Return "sweep", "notebook", or "jobs"."""
    content = read_yaml(path)
    return next((kind for kind in KINDS if isinstance(content, dict) and kind in content), "jobs")


def do(path: str | Path, seeds: int | None = None, trust: bool = False, **where: Any) -> Results | sweep.Sweep:
    """Run the file's jobs; `trust` and `where` as for `kit.batch`. Raises `UserError`."""
    file_kind = kind(path)
    if file_kind != "jobs" and seeds is not None:
        raise UserError(f"--seeds={seeds} is for runs; write the seed, or a grid of seeds, into {path}.")
    if file_kind == "notebook":
        return notebooks.notebooks(path, **where)
    if file_kind == "sweep":
        return sweep.sweep(path, trust=trust, **where)
    return batch.batch(path, seeds=seeds, trust=trust, **where)


def standing(path: str | Path, fetch: bool = False) -> Results | sweep.Sweep:
    """Return the state of all jobs, here and in their store; `fetch` downloads them first. Starts nothing."""
    batch.runs_in_store.cache_clear()
    file_kind = kind(path)
    if file_kind == "sweep":
        plan, _ = sweep.plan(path)
        search = sweep.Sweep(plan)
        if not search.study.trials and not plan.folder.is_dir():
            raise UserError(f"{path}: no trial has started yet in {plan.folder}; start it with `kit batch {path}`.")
        for trial in sweep.trials(search) if fetch else []:
            trial.fetch()
        return search
    planned = batch.read_jobs(path) if file_kind == "jobs" else notebooks.plan_jobs(Path(path))
    jobs: list[StoredWork] = list(planned[0])
    for job in jobs if fetch else []:
        job.fetch()
    notes = Notes.beside(jobs, folder_name(Path(path).stem)).read()
    return Results(jobs, [_row(job, notes.get(job.path.name)) for job in jobs])


def _row(job: StoredWork, note: str | None) -> dict[str, Any]:
    """Return a job's state; `note` is what another process waits for before it starts the job."""
    return job.look() if note is None else {**job.row(), "state": "waiting", "message": note}


def forget_failures(path: str | Path) -> None:
    """Delete the results of failed notebooks, so that they start again; failed runs are always resumed."""
    if kind(path) == "notebook":
        notebooks.retry(path)
