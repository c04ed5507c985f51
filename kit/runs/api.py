"""What a notebook user calls: train, launch, branch, resume, remove."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig
from kit.errors import UserError
from kit.format import leftovers
from kit.format.files import write_atomic
from kit.runs import control, directory, provenance, status, tracking
from kit.runs.finding import locate, locate_unfinished
from kit.runs.prepare import PreparedRun, prepare_run
from kit.runs.run import Run, opened
from kit.runs.warm_start import first_checkpoint
from kit.trust import permit

Progress = Callable[[dict[str, Any]], None]


def train(
    config: RunConfig | None = None,
    *,
    start_from: str | Path | None = None,
    trust: bool = False,
    on_progress: Progress | None = None,
    **fields: Any,
) -> Run:
    """Train in the foreground until done, stopped or failed; `fields` are RunConfig's. Look at the run's `status()`.

    `start_from` names the policy that the run starts with: of another run, as RUN or RUN@STEP (`branch` says what comes
    along), or a Stable-Baselines3 MODEL.zip. To open a zip, or what names a module and came with a run or beside a
    file, can run code and needs `trust=True`. Raises `UserError` for a request that cannot be met; nothing is created
    then.
    """
    run = create(prepare_run(config, fields, start_from, trust))
    return _foreground(run, on_progress)


def launch(
    config: RunConfig | None = None, *, start_from: str | Path | None = None, trust: bool = False, **fields: Any
) -> Run:
    """As `train`, in a process of its own; returns at once. The run has `pause`, `stop`, `checkpoint`, `wait`."""
    run = create(prepare_run(config, fields, start_from, trust, other_process=True))
    return _background(run)


def branch(run: Run | str | Path, step: int | str | None = None, **changes: Any) -> Run:
    """Launch a new run that starts with the policy of another's `step` (a number, "best", "latest"; default: the best)
    and with its config, but for `changes`: env_options={"level": "hard"}, overrides={"learning_rate": 1e-4}, ...

    What the normaliser knows comes along and, from a whole checkpoint of the same algorithm, the optimizer; counters,
    worlds and replay data begin anew. Raises `UserError` if the policy does not fit; nothing is created then.
    """
    name = run.path if isinstance(run, Run) else run
    return launch(start_from=name if step is None else f"{name}@{step}", **changes)


def resume(
    path_or_url: str | Path | None = None,
    *,
    runs_dir: str = "runs",
    background: bool = False,
    on_progress: Progress | None = None,
    max_gb: float = 8.0,
    trust: bool = False,
    **changes: Any,
) -> Run:
    """Go on with a run: a directory, a store's URL with the run's name, or by default the latest unfinished one in
    `runs_dir`. `changes` are fields that may differ from the run's config (total_steps, store, ...).

    From a store, the run is first copied into `runs_dir`, at most `max_gb` GiB of it. A run whose config names a module
    (module:Class) is opened with `trust=True`, unless the module is imported already, or trusted on this machine: you
    typed its name here before. A secret among its env_options is not in the store: give them again. Raises `UserError`.
    """
    from kit.stores.redact import HIDDEN

    if path_or_url is None:
        run, moved = locate_unfinished(runs_dir, changes.get("store"), max_gb)
    else:
        run, moved = locate(path_or_url, runs_dir, max_gb)
    changes = {**moved, **changes}
    opened(run, trust)
    if directory.is_locked(run.path):
        raise UserError(f"{run.path} is in use by a live process; stop it first, or watch it with `kit runs`.")
    if changes:
        _change(run, changes)
    if HIDDEN in json.dumps(options := run.config.env_options):
        raise UserError(
            f"env_options={options!r} of {run.path} lack what a store is not shown; resume with env_options={{...}} "
            "(--env-options) as they were."
        )
    return _background(run) if background else _foreground(run, on_progress)


def existing_run(config: RunConfig) -> Run | None:
    """The run that `config` names: as it is in its folder, brought from its store where that has more of it, or None.
    Raises `UserError`."""
    permit(config)
    if config.run_name is None:
        return None
    path = Path(config.runs_dir).expanduser() / config.run_name
    is_here = (path / "config.yaml").is_file()
    if config.store and not (is_here and (Run(path).is_working() or Run(path).status()["state"] == "finished")):
        from kit.stores import holds, open_store, pull

        if holds(store := open_store(config.store), config.run_name):
            pull(store, config.run_name, Path(config.runs_dir))
            is_here = True
    return Run(path) if is_here else None


def resume_existing(config: RunConfig) -> Run | None:
    """The same, going on if it is unfinished."""
    run = existing_run(config)
    unfinished = run is not None and not run.is_working() and run.status()["state"] != "finished"
    return resume(run.path, background=True) if run is not None and unfinished else run


def remove(run: Run, sure: bool = False) -> None:
    """Delete `run` from this machine; what is in a store stays. Raises `UserError` while it is at work, and, unless
    `sure`, if it is unfinished and no store holds its newest checkpoint."""
    if run.is_working():
        raise UserError(f"{run.path} is at work; stop it first (kit stop {run.path}).")
    now, newest = run.status(), run.checkpoints()[-1:]
    held = (now["store"] or {}).get("step")
    if not sure and now["state"] != "finished" and newest and (held is None or held < newest[0].step):
        raise UserError(
            f"{run.path} is unfinished and its step {newest[0].step:,} is {run.copies()}; say --yes (sure=True) if you "
            "want to lose it."
        )
    leftovers.sweep(run.path.parent)
    with directory.lock(run.path):
        trash = leftovers.hide(run.path)
    with contextlib.suppress(FileNotFoundError):  # another sweeps it
        shutil.rmtree(trash)


def create(prepared: PreparedRun) -> Run:
    """The directory of a new run, with its first checkpoint if it starts with a pretrained policy."""
    config, warm = prepared.plan.config, prepared.warm_start
    path = directory.create(config)
    try:
        status.Status.create(path, config.total_steps, plan=prepared.plan.sentence)
        if warm is not None:
            provenance.write(path, parent=warm.parent)
            first_checkpoint(Run(path), warm)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise directory.refused(path, error) from None
        raise
    return Run(path)


def _foreground(run: Run, on_progress: Progress | None) -> Run:
    from kit.runs.session import Session

    control.take(run.path)  # what was asked of an earlier session
    Session(run.path, on_progress)()
    return run


def _background(run: Run) -> Run:
    from kit.runs import worker

    worker.start(run)
    return run


def _change(run: Run, changes: dict[str, Any]) -> None:
    from kit.stores.redact import restores

    for name, value in changes.items():
        if name == "env_options" and restores(value, run.config.env_options):
            continue
        if name not in MAY_CHANGE_ON_RESUME and value != getattr(run.config, name, None):
            had = getattr(run.config, name, None)
            may = ", ".join(MAY_CHANGE_ON_RESUME)
            raise UserError(f"{name}={value!r} differs from the run's {had!r}; on resume only {may} may change.")
    config = run.config.replace(**changes)
    tracking.check(config.tracker)
    if "device" in changes or config.store != run.config.store:
        from kit.measure.auto import resolve

        config = config.replace(device=resolve(config).device)
    with directory.lock(run.path):
        write_atomic(run.path / "config.yaml", config.to_yaml())
    run.__dict__.pop("config", None)
