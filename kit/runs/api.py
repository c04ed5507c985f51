"""What a notebook user calls: train, launch, resume, list."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig
from kit.errors import UserError
from kit.format.files import write_atomic
from kit.runs import control, directory, importing, status
from kit.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

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

    `start_from` is a Stable-Baselines3 zip whose policy the run begins with; opening one can run code, so it needs
    `trust=True`. Raises `UserError` for a request that cannot be met; nothing is created then.
    """
    return _foreground(_create(config, fields, start_from, trust), on_progress)


def launch(
    config: RunConfig | None = None, *, start_from: str | Path | None = None, trust: bool = False, **fields: Any
) -> Run:
    """As `train`, in a process of its own; returns at once. The run has `pause`, `stop`, `checkpoint`, `wait`."""
    from kit import envs

    config = (config or RunConfig()).replace(**fields)
    envs.carry(config.env)  # an env that no other process can make is refused here
    return _background(_create(config, {}, start_from, trust))


def resume(
    path_or_url: str | Path | None = None,
    *,
    runs_dir: str = "runs",
    background: bool = False,
    on_progress: Progress | None = None,
    max_gb: float = 8.0,
    **changes: Any,
) -> Run:
    """Go on with a run: a directory, a store's URL with the run's name, or by default the latest unfinished one in
    `runs_dir`. `changes` are fields that may differ from the run's config (total_steps, store, ...).

    From a store, the run is first copied into `runs_dir`, at most `max_gb` GiB of it. Raises `UserError`.
    """
    run, moved = _locate(path_or_url, runs_dir, changes.get("store"), max_gb)
    changes = {**moved, **changes}
    if directory.is_locked(run.path):
        raise UserError(f"{run.path} is in use by a live process; stop it first, or watch it with `kit runs`.")
    if changes:
        _change(run, changes)
    return _background(run) if background else _foreground(run, on_progress)


class StoredRuns(list[dict[str, Any]]):
    """What a store says of its runs, the most recently updated first."""

    def to_dicts(self) -> list[dict[str, Any]]:
        return list(self)

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self)


class RunList(list[Run]):
    """Runs, the most recently updated first."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """One {"name", "state", "step", "total_steps", "success_rate", "updated"} per run."""
        keys = ("state", "step", "total_steps", "success_rate", "updated")
        return [{"name": run.name, **{key: now[key] for key in keys}} for run in self for now in [run.status()]]

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.to_dicts())


def list_runs(where: str | Path = "runs") -> RunList | StoredRuns:
    """The runs in a folder (none if there is no such folder) or in a store."""
    if _is_url(where):
        from kit import stores

        return StoredRuns(stores.list_runs(stores.open_store(where)))
    return local_runs(where)


def local_runs(where: str | Path = "runs") -> RunList:
    """The runs in a folder; none if there is no such folder."""
    folder = Path(where).expanduser()
    found = RunList()
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.name.startswith(".") and (path / "config.yaml").is_file():
            try:
                found.append(Run(path))
            except UserError as error:
                warnings.warn(f"{path} is left out: {error}", stacklevel=2)
    found.sort(key=lambda run: run.status()["updated"] or run.path.stat().st_mtime, reverse=True)
    return found


def latest_unfinished(runs_dir: str | Path = "runs") -> Run:
    """The most recently updated run that is neither finished nor at work. Raises `UserError` if there is none."""
    for run in local_runs(runs_dir):
        if run.status()["state"] in ("interrupted", "failed"):
            return run
    raise UserError(f"runs_dir={str(runs_dir)!r} holds no unfinished run; `kit train` starts one.")


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
    with directory.lock(run.path):
        trash = run.path.with_name(f".removed-{run.name}-{os.getpid()}")
        run.path.rename(trash)
    shutil.rmtree(trash)


def _create(
    config: RunConfig | None, fields: dict[str, Any], start_from: str | Path | None = None, trust: bool = False
) -> Run:
    from kit.measure.auto import resolve, sentence

    config = (config or RunConfig()).replace(**fields)
    model = None
    if start_from is not None:
        config, model = importing.config_of(importing.check(start_from, trust), config)
    resolved = resolve(config)
    if resolved.store:
        from kit.stores import open_store

        open_store(resolved.store, write=True)  # a store that cannot be written is said now, not after an hour
    path = directory.create(resolved)
    status.Status.create(path, resolved.total_steps, plan=sentence(config, resolved))
    if model is not None:
        try:
            importing.first_checkpoint(Run(path), model)
        except BaseException:
            shutil.rmtree(path)
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


def _locate(
    path_or_url: str | Path | None, runs_dir: str, store: str | None, max_gb: float = 8.0
) -> tuple[Run, dict[str, Any]]:
    """The run on this machine, fetched from a store if need be, and what changed about where it lives."""
    if path_or_url is None:
        try:
            return latest_unfinished(runs_dir), {}
        except UserError:
            if store is None:
                raise
            path_or_url = store
    if _is_url(path_or_url):
        return _fetch(str(path_or_url), runs_dir, max_gb)
    path = Path(path_or_url).expanduser()
    inside = Path(runs_dir).expanduser() / path_or_url
    return Run(inside if not os.path.exists(path) and os.path.exists(inside) else path), {}  # noqa: PTH110 - never raises


def _fetch(url: str, runs_dir: str, max_gb: float) -> tuple[Run, dict[str, Any]]:
    from kit.stores import open_store, pull

    if not 0 < max_gb < 2**20:
        raise UserError(f"max_gb={max_gb!r} must be a number of GiB above 0, such as 16.")
    run = Run(pull(open_store(url), None, Path(runs_dir), max_bytes=int(max_gb * 2**30)))
    if url.startswith("gdrive-link:"):  # read only; the run stays on this machine unless it is given a store
        return run, {"runs_dir": runs_dir, "store": None}
    return run, {"runs_dir": runs_dir, "store": url.rstrip("/").removesuffix(f"/{run.name}")}


def _is_url(where: str | Path) -> bool:
    """Whether it names a store, or a run in one: a URL, or a folder that the copier has written to."""
    if "://" in str(where) or str(where).startswith(("drive:", "gdrive-link:")):
        return True
    path = Path(where).expanduser()
    try:
        return (path / "latest.json").is_file() or any(path.glob("*/latest.json"))
    except OSError:
        return False  # whoever opens it says why it cannot be read


def _change(run: Run, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if name not in MAY_CHANGE_ON_RESUME and value != getattr(run.config, name, None):
            had = getattr(run.config, name, None)
            may = ", ".join(MAY_CHANGE_ON_RESUME)
            raise UserError(f"{name}={value!r} differs from the run's {had!r}; on resume only {may} may change.")
    config = run.config.replace(**changes)
    if "device" in changes or config.store != run.config.store:
        from kit.measure.auto import resolve

        config = config.replace(device=resolve(config).device)
    with directory.lock(run.path):
        write_atomic(run.path / "config.yaml", config.to_yaml())
    run.__dict__.pop("config", None)
