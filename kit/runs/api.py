"""The functions that a notebook user calls: train, launch, branch, resume, rename, remove."""

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
from kit.format.layout import LATEST
from kit.machine import host
from kit.runs import control, directory, notify, opponents, provenance, status, tracking
from kit.runs.finding import is_branch, local_runs, locate, locate_unfinished
from kit.runs.run import Run, opened
from kit.runs.warm_start import first_checkpoint, warm_start
from kit.trust import permit, refresh

Progress = Callable[[dict[str, Any]], None]


def train(
    config: RunConfig | None = None,
    *,
    start_from: str | Path | None = None,
    trust: bool = False,
    on_progress: Progress | None = None,
    **fields: Any,
) -> Run:
    """Train in this process until the run is finished, stopped or failed; `status()["state"]` tells which.

    `fields` are fields of RunConfig. `start_from` names a pretrained policy: RUN or RUN@STEP of another run (see
    `branch`), or a Stable-Baselines3 MODEL.zip. Opening a zip can run code, and so can importing a module named in a
    config file or in another run: both need `trust=True`. Raises `UserError` for settings that cannot work,
    before any file is written.
    """
    return _foreground(create(config, fields, start_from, trust), on_progress)


def launch(
    config: RunConfig | None = None, *, start_from: str | Path | None = None, trust: bool = False, **fields: Any
) -> Run:
    """Train in a separate process; return at once. Arguments as in `train`.

    Control it with the methods `pause`, `stop`, `checkpoint` and `wait` of the returned run.
    """
    return _background(create(config, fields, start_from, trust, other_process=True))


def branch(run: Run | str | Path, step: int | str | None = None, **changes: Any) -> Run:
    """Launch a new run from the policy and config of another run.

    `step`: a number, "best" or "latest"; default: the best. `changes` are config fields that differ:
    env_options={"level": "hard"}, overrides={"learning_rate": 1e-4}, ... The normaliser's statistics are copied too
    and, if the step has a full checkpoint (not only a policy) and the algorithm is the same, the optimizer's state.
    Counters, envs and replay data start fresh. Raises `UserError`, before any file is written, if the policy does not
    fit.
    """
    path = run.path if isinstance(run, Run) else run
    return launch(start_from=path if step is None else f"{path}@{step}", **changes)


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
    """Resume a run from its latest checkpoint.

    `path_or_url`: a run directory, or a store's URL with the run's name. None resumes the latest unfinished run in
    `runs_dir` or, if there is none, in the store given as `store=`. `changes` are fields that may differ from the run's
    config (total_steps, store and others).

    A run in a store is first copied into `runs_dir`; a checkpoint larger than `max_gb` GiB is reported, and an older
    one is used. If the config names a module (module:Class), pass `trust=True`, unless the module is imported already,
    or was trusted or named by you on this machine before. Secrets in env_options are not written to the store: pass
    them again. Raises `UserError` if the run cannot be resumed.
    """
    from kit.stores.redact import HIDDEN

    if path_or_url is None:
        run, new_location = locate_unfinished(runs_dir, changes.get("store"), max_gb, trust)
    else:
        stays = "store" not in changes  # else it may go on as a copy of its own
        run, new_location = locate(path_or_url, runs_dir, max_gb, trust, to_resume=stays)
    changes = {**new_location, **changes}
    opened(run, trust)
    if run.config.teacher is not None:
        from kit.runs import teacher

        teacher.check_trust(run, changes.get("runs_dir", run.config.runs_dir), trust)
    if directory.is_locked(run.path):
        raise UserError(f"{run.path} is in use by a live process; stop it first, or watch it with `kit runs`.")
    if changes:
        _change(run, changes)
    if HIDDEN in json.dumps(options := run.config.env_options):
        raise UserError(
            f"env_options={options!r} of {run.path} lack secrets, which are not copied to stores; resume with the "
            "original env_options={...} (--env-options)."
        )
    return _background(run) if background else _foreground(run, on_progress)


def existing_run(config: RunConfig) -> Run | None:
    """Return the run named `config.run_name`, or None if it does not exist here or in `config.store`.

    Checkpoints in the store that are newer than the local ones are fetched first. Raises `UserError` if
    that fails, or if a module that `config` names is not trusted.
    """
    permit(config)
    if config.run_name is None:
        return None
    path = Path(config.runs_dir).expanduser() / config.run_name
    is_local = (path / "config.yaml").is_file()
    if config.store and not (is_local and (Run(path).is_working() or Run(path).status()["state"] == "finished")):
        from kit.stores import holds, open_store, pull

        if holds(store := open_store(config.store), config.run_name):
            pull(store, config.run_name, Path(config.runs_dir))
            is_local = True
    return Run(path) if is_local else None


def resume_existing(config: RunConfig) -> Run | None:
    """Return `existing_run(config)`; if that run is unfinished, resume it in a separate process."""
    run = existing_run(config)
    if run is None or run.is_working() or run.status()["state"] == "finished":
        return run
    return resume(run.path, background=True)


def rename(run: Run, name: str) -> Run:
    """Rename the directory of `run`, and return the run under its new name.

    Raises `UserError` if a process is training the run, if `name` exists or cannot name a folder, and if a store
    or a run that branched from this one refers to the old name.
    """
    if name == run.name:
        return run
    instead = f'keep the name, and write a note instead: kit.Run("{run.path}").write_note("...").'
    if run.config.store:
        raise UserError(f"{run.name} is copied to {run.config.store} under this name; {instead}")
    if branches := [other.name for other in local_runs(run.path.parent) if is_branch(other, run)]:
        raise UserError(f"{run.name} is where {branches[0]} started from; {instead}")
    config = run.config.replace(run_name=name)
    if (path := run.path.with_name(name)).exists():
        raise UserError(f"run_name={name!r} exists in {run.path.parent}; choose another name.")
    with directory.lock(run.path):
        try:
            write_atomic(run.path / "config.yaml", config.to_yaml())
            run.path.rename(path)
        except OSError as error:
            raise directory.refused(path, error) from None
    return Run(path)


def remove(run: Run, sure: bool = False) -> None:
    """Delete the directory of `run`, but not its copy in a store.

    Raises `UserError` for a run in a folder that is a store, if a process is training the run, or if the run is
    unfinished and its newest checkpoint is in no store; `sure=True` skips the last check.
    """
    if any((run.path / name).exists() for name in (LATEST, "lease.json")):
        raise UserError(
            f"{run.path} is a store's copy of a run, and removing a run leaves its copies; name the run in runs_dir, "
            "or delete this folder yourself."
        )
    if run.is_working():
        raise UserError(f"{run.path} is at work; stop it first (kit stop {run.path}).")
    now, newest = run.status(), run.checkpoints()[-1:]
    stored_step = (now["store"] or {}).get("step")
    if not sure and now["state"] != "finished" and newest and (stored_step is None or stored_step < newest[0].step):
        raise UserError(
            f"{run.path} is unfinished, and no store has its step {newest[0].step:,}; to delete it anyway, "
            "pass --yes (sure=True)."
        )
    leftovers.sweep(run.path.parent)
    with directory.lock(run.path):
        trash = leftovers.hide(run.path)
    with contextlib.suppress(FileNotFoundError):  # another process removed it first
        shutil.rmtree(trash)


def create(
    config: RunConfig | None,
    changes: dict[str, Any],
    start_from: str | Path | None = None,
    trust: bool = False,
    other_process: bool = False,
) -> Run:
    """Check everything that could prevent training, then create the directory of a new run.

    With a pretrained policy, a checkpoint at step 0 is written. `changes` are fields of `config` that differ;
    `start_from` and `trust` as in `train`. `other_process`: whether another process will train the run. Raises
    `UserError`, and then leaves no file.
    """
    from kit import envs
    from kit.stores import absolute, check_new, open_store

    if config is not None and not isinstance(config, RunConfig):
        raise UserError(f"config={config!r} is not a RunConfig; name fields instead, such as kit.train(env='Reach').")
    user_config, warm = config, None
    config = asked = (user_config or RunConfig()).replace(**changes)
    if start_from is not None:
        warm = warm_start(start_from, trust, config.runs_dir, config.algo)
        config, asked = warm.make_config(user_config, changes), warm.requested(user_config, changes)
    if config.store:
        config, asked = (each.replace(store=absolute(config.store)) for each in (config, asked))
    permit(config, trust)
    refresh(config)
    envs.find(config.env)

    from kit.envs import check  # imports torch, which takes seconds: a misspelt name is refused before
    from kit.runs import demonstrations, teacher
    from kit.trainers.planning import plan

    if other_process or config.processes > 1:
        envs.child_environ(config)  # raises if another process cannot make the env
    opponents.check(config)
    tracking.check(config.tracker)
    notify.check()
    requested, planned = asked.to_dict(), plan(config)
    config = planned.config
    env = envs.describe(config.env, config.env_options)
    if ":" in config.env and env.batched:
        check.check_one_step(config.env, config.env_options)
    teacher.check(config, env, trust)
    demonstrations.check(config, env)
    if requested["run_name"] is None:  # two runs may start in one second
        config = directory.with_free_name(config)
    if config.store:
        store = open_store(config.store, write=True)  # raises now, not after an hour, if the store cannot be written
        with contextlib.suppress(OSError):  # a folder that cannot be read: `directory.create` says so
            directory.free(config)
        check_new(store, Path(config.runs_dir).expanduser() / str(config.run_name))
    path = directory.create(config)
    try:
        status.Status.create(path, config.total_steps, plan=planned.sentence)
        resolved = config.to_dict()
        del resolved["env_options"]  # may contain secrets, which stores must not get
        changed = {name: requested[name] for name, value in resolved.items() if value != requested[name]}
        extra = {"parent": warm.parent} if warm is not None else {}
        provenance.write(path, config, requested=changed, notebook=host.notebook(), **extra)
        if warm is not None:
            first_checkpoint(Run(path), warm)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise directory.refused(path, error) from None
        raise
    return Run(path)


def _foreground(run: Run, on_progress: Progress | None) -> Run:
    from kit.runs.session import Session

    control.take(run.path)  # discard commands sent before this session
    Session(run.path, on_progress)()
    return run


def _background(run: Run) -> Run:
    from kit.runs import worker

    worker.start(run)
    return run


def _change(run: Run, changes: dict[str, Any]) -> None:
    """Write `changes` into config.yaml. Raises `UserError` for a field that may not change on resume."""
    from kit.stores import absolute
    from kit.stores.redact import may_be_unredacted

    for name, value in changes.items():
        if name == "env_options" and may_be_unredacted(value, run.config.env_options):
            continue
        current = getattr(run.config, name, None)
        if name not in MAY_CHANGE_ON_RESUME and value != current:
            allowed = f"only {', '.join(MAY_CHANGE_ON_RESUME)} may change"
            raise UserError(f"{name}={value!r} differs from the run's {current!r}; on resume {allowed}.")
    config = run.config.replace(**changes)
    if changes.get("store"):
        config = config.replace(store=absolute(str(config.store)))
    step = run.status()["step"]
    if config.total_steps < min(step, run.config.total_steps):
        raise UserError(f"total_steps={config.total_steps:,} is less than the {step:,} steps of {run.path}; give more.")
    tracking.check(config.tracker)
    if config.eval_every == "auto":
        config = config.replace(eval_every=max(1, config.total_steps // 10))
    if config.processes > 1:
        from kit.trainers.planning import config_of_rank

        config_of_rank(config)  # raises if the config cannot be divided
    if "device" in changes or config.store != run.config.store:
        from kit.trainers.planning import plan

        config = config.replace(device=plan(config, new=False).config.device)
    with directory.lock(run.path):
        try:
            write_atomic(run.path / "config.yaml", config.to_yaml())
        except OSError as error:
            raise directory.refused(run.path, error) from None
    run.__dict__.pop("config", None)  # a cached property: read it again
