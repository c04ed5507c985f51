"""What a notebook user calls: train, launch, resume, list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig
from kit.errors import UserError
from kit.runs import directory, status
from kit.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[dict[str, Any]], None]


def train(config: RunConfig | None = None, *, on_progress: Progress | None = None, **fields: Any) -> Run:
    """Train in the foreground until done, stopped or failed; `fields` are RunConfig's. Look at the run's `status()`.

    Raises `UserError` for a request that cannot be met; nothing is created then.
    """
    return _foreground(_create(config, fields), on_progress)


def launch(config: RunConfig | None = None, **fields: Any) -> Run:
    """Start a training process of its own and return at once. The run has `pause`, `stop`, `checkpoint`, `wait`."""
    return _background(_create(config, fields))


def resume(
    path_or_url: str | Path | None = None,
    *,
    runs_dir: str = "runs",
    background: bool = False,
    trust: bool = False,
    on_progress: Progress | None = None,
    **changes: Any,
) -> Run:
    """Go on with a run: a directory, a store's URL with the run's name, or by default the latest unfinished one in
    `runs_dir`. `changes` are fields that may differ from the run's config (total_steps, store, ...).

    From a store, the run is first copied into `runs_dir`. Raises `UserError`.
    """
    run = _locate(path_or_url, runs_dir)
    if directory.is_locked(run.path):
        raise UserError(f"{run.path} is in use by a live process; stop it first, or watch it with `kit runs`.")
    if changes:
        _change(run, changes)
    return _background(run) if background else _foreground(run, on_progress)


class RunList(list[Run]):
    """Runs, the most recently updated first."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """One {"name", "state", "step", "total_steps", "success_rate", "updated"} per run."""
        keys = ("state", "step", "total_steps", "success_rate", "updated")
        return [{"name": run.name, **{key: now[key] for key in keys}} for run in self for now in [run.status()]]

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.to_dicts())


def list_runs(where: str | Path = "runs") -> RunList:
    """The runs in a folder; empty if there is no such folder."""
    folder = Path(where).expanduser()
    found = RunList()
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.name.startswith(".") and (path / "config.yaml").is_file():
            found.append(Run(path))
    found.sort(key=lambda run: run.status()["updated"] or run.path.stat().st_mtime, reverse=True)
    return found


def latest_unfinished(runs_dir: str | Path = "runs") -> Run:
    """The most recently updated run that is neither finished nor at work. Raises `UserError` if there is none."""
    for run in list_runs(runs_dir):
        if run.status()["state"] in ("interrupted", "failed"):
            return run
    raise UserError(f"runs_dir={str(runs_dir)!r} holds no unfinished run; `kit train` starts one.")


def _create(config: RunConfig | None, fields: dict[str, Any]) -> Run:
    config = (config or RunConfig()).replace(**fields) if fields else config or RunConfig()
    resolved = config.resolve()
    if resolved.store:
        from kit.stores import open_store

        open_store(resolved.store)  # a store that cannot be written is said now, not after an hour
    path = directory.create(resolved)
    status.Status.create(path, resolved.total_steps)
    return Run(path)


def _foreground(run: Run, on_progress: Progress | None) -> Run:
    from kit.runs.session import Session

    Session(run.path, on_progress)()
    return run


def _background(run: Run) -> Run:
    from kit.runs import worker

    status.Status.create(run.path, run.config.total_steps)
    worker.start(run)
    return run


def _locate(path_or_url: str | Path | None, runs_dir: str) -> Run:
    if path_or_url is None:
        return latest_unfinished(runs_dir)
    text = str(path_or_url)
    if "://" in text or text.startswith(("drive:", "gdrive-link:")):
        from kit.stores.pull import pull_url

        return Run(pull_url(text, Path(runs_dir)))
    if not Path(text).exists() and (Path(runs_dir) / text).exists():
        return Run(Path(runs_dir) / text)
    return Run(text)


def _change(run: Run, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if name not in MAY_CHANGE_ON_RESUME and value != getattr(run.config, name, None):
            had = getattr(run.config, name, None)
            may = ", ".join(MAY_CHANGE_ON_RESUME)
            raise UserError(f"{name}={value!r} differs from the run's {had!r}; on resume only {may} may change.")
    config = run.config.replace(**changes)
    if "device" in changes or config.store != run.config.store:
        config = config.replace(device=config.resolve().device)
    with directory.lock(run.path):
        directory.write_atomic(run.path / "config.yaml", config.to_yaml())
    run.__dict__.pop("config", None)
