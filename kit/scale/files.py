"""What a YAML file asks for, whatever it is: runs, a notebook with parameters, or a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.config import folder_name, read_yaml
from kit.errors import UserError
from kit.scale import batch, notebooks, sweep
from kit.scale.work import Kept, Notes, Results

KINDS = ("sweep", "notebook")


def kind(path: str | Path) -> str:
    """ "sweep", "notebook", or "jobs"."""
    content = read_yaml(path)
    return next((kind for kind in KINDS if isinstance(content, dict) and kind in content), "jobs")


def do(path: str | Path, seeds: int | None = None, trust: bool = False, **where: Any) -> Results | sweep.Sweep:
    """Do what the file says; `trust` and `where` as for `kit.batch`. Raises `UserError`."""
    asked = kind(path)
    if asked != "jobs" and seeds is not None:
        raise UserError(f"--seeds={seeds} is for runs; write the seed, or a grid of seeds, into {path}.")
    if asked == "notebook":
        return notebooks.notebooks(path, **where)
    return (
        sweep.sweep(path, trust=trust, **where)
        if asked == "sweep"
        else batch.batch(path, seeds=seeds, trust=trust, **where)
    )


def standing(path: str | Path, fetch: bool = False) -> Results | sweep.Sweep:
    """How all stand, here and in their store; with `fetch` everything is brought here first. Nothing is begun."""
    batch.stored.cache_clear()
    asked = kind(path)
    if asked == "sweep":
        plan, _ = sweep.plan(path)
        found = sweep.Sweep(plan)
        if not found.study.trials and not plan.folder.is_dir():
            raise UserError(f"{path}: no trial was begun yet in {plan.folder}; `kit batch {path}` begins.")
        for trial in sweep.trials(found) if fetch else []:
            trial.fetch()
        return found
    jobs: list[Kept] = [*(notebooks.planned(Path(path))[0] if asked == "notebook" else batch.of_file(path)[0])]
    for job in jobs if fetch else []:
        job.fetch()
    notes = Notes.beside(jobs, folder_name(Path(path).stem)).read()
    return Results(jobs, [_row(job, notes.get(job.path.name)) for job in jobs])


def _row(job: Kept, note: str | None) -> dict[str, Any]:
    """How a job stands; `note`: what another process waits for in order to begin it."""
    return job.look() if note is None else {**job.row(), "state": "waiting", "message": note}


def forget_failures(path: str | Path) -> None:
    """So that what failed is begun again. Of runs nothing is to be forgotten: one that failed goes on in any case."""
    if kind(path) == "notebook":
        notebooks.retry(path)
