"""List the runs in a folder or store; find a run by path, name or store URL, or the latest unfinished run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import UserError
from kit.runs.run import Run
from kit.trust import permit

if TYPE_CHECKING:
    import pandas as pd


class StoredRuns(list[dict[str, Any]]):
    """Summaries of the runs in a store, the most recently updated first."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the summaries; keys as in `RunList.to_dicts`, "phase", and "task" ("" for runs of kit 0.2)."""
        return list(self)

    def frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per run."""
        import pandas as pd

        return pd.DataFrame(self)


class RunList(list[Run]):
    """Runs, the most recently updated first."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one {"name", "state", "step", "total_steps", "success_rate", "updated"} per run."""
        keys = ("state", "step", "total_steps", "success_rate", "updated")
        return [{"name": run.name, **{key: now[key] for key in keys}} for run in self for now in [run.status()]]

    def frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per run."""
        import pandas as pd

        return pd.DataFrame(self.to_dicts())


def list_runs(where: str | Path = "runs") -> RunList | StoredRuns:
    """List the runs in a folder (empty if the folder does not exist) or in a store."""
    if is_url(where):
        from kit import stores

        return StoredRuns(stores.list_runs(stores.open_store(where)))
    return local_runs(where)


def local_runs(where: str | Path = "runs") -> RunList:
    """List the runs in a folder; empty if the folder does not exist. Warn about runs that cannot be read."""
    runs = RunList()
    for path in run_folders(where):
        try:
            runs.append(Run(path))
        except UserError as error:
            warnings.warn(f"{path} is left out: {error}", stacklevel=2)
    runs.sort(key=lambda run: run.status()["updated"] or run.path.stat().st_mtime, reverse=True)
    return runs


def run_folders(where: str | Path) -> list[Path]:
    """List the run directories in a folder, in any order, without opening them."""
    folder = Path(where).expanduser()
    paths = folder.iterdir() if folder.is_dir() else ()
    return [path for path in paths if not path.name.startswith(".") and (path / "config.yaml").is_file()]


def is_branch(run: Run, of: Run) -> bool:
    """Whether `run` was started from a policy of the run `of`."""
    return run.parent is not None and run.parent[0] == of.name != run.name  # a parent with run's name: another folder


def family(runs: RunList) -> RunList:
    """Sort `runs` so that each run is followed by its branches (depth first)."""
    names = {run.name for run in runs}
    roots = [run for run in runs if run.parent is None or run.parent[0] not in names - {run.name}]

    def below(run: Run) -> Iterator[Run]:
        yield run
        for branch in runs:
            if is_branch(branch, run):
                yield from below(branch)

    found = [run for root in roots for run in below(root)]
    return RunList([*found, *(run for run in runs if run not in found)])  # a reused name: each other's parents


def locate(
    path_or_url: str | Path, runs_dir: str, max_gb: float = 8.0, trust: bool = False, to_resume: bool = False
) -> tuple[Run, dict[str, Any]]:
    """Find a run; if it is in a store, fetch it. Return the run, and the config fields that the fetch changes.

    These are {"runs_dir", "store"}, with their new values; {} for a run that is on this machine already. Nothing is
    fetched of a run whose modules are not trusted, nor, `to_resume`, of one that another machine is training.
    """
    if is_url(path_or_url):
        return _fetch(str(path_or_url), runs_dir, max_gb, trust, to_resume)
    path = Path(path_or_url).expanduser()
    inside = Path(runs_dir).expanduser() / path_or_url
    return Run(inside if not os.path.exists(path) and os.path.exists(inside) else path), {}  # noqa: PTH110 - never raises


def locate_step(text: str | Path, runs_dir: str, trust: bool = False) -> tuple[Run, int | str | None]:
    """Find the run of `text`, RUN or RUN@STEP, as `locate` does; return it and STEP: a number, best, latest or None.

    Folders of RUN may contain "@", too.
    """
    name, at, step = str(text).rpartition("@")
    if not at or "/" in step:
        return locate(text, runs_dir, trust=trust)[0], None
    return locate(name, runs_dir, trust=trust)[0], int(step) if step.isdecimal() else step


def locate_unfinished(
    runs_dir: str, store: str | None = None, max_gb: float = 8.0, trust: bool = False
) -> tuple[Run, dict[str, Any]]:
    """Find the latest unfinished run in `runs_dir`, or else in `store`, to resume it. Skips pruned trials."""
    for run in local_runs(runs_dir):
        now = run.status()
        if now["state"] in ("interrupted", "failed") and now["phase"] != "pruned":
            return run, {}
    if store is None:
        raise UserError(f"runs_dir={runs_dir!r} holds no unfinished run; `kit train` starts one.")
    return locate(store, runs_dir, max_gb, trust, to_resume=True)


def _fetch(url: str, runs_dir: str, max_gb: float, trust: bool, to_resume: bool) -> tuple[Run, dict[str, Any]]:
    from kit.stores import open_store, pull

    if not 0 < max_gb < 2**20:
        raise UserError(f"max_gb={max_gb!r} must be a number of GiB above 0, such as 16.")
    is_link = url.startswith("gdrive-link:")  # a shared link is read-only, so it cannot be the run's store
    limit, check, to_resume = int(max_gb * 2**30), partial(permit, trust=trust), to_resume and not is_link
    run = Run(pull(open_store(url), None, Path(runs_dir), max_bytes=limit, check=check, to_resume=to_resume))
    if is_link:
        return run, {"runs_dir": runs_dir, "store": None}
    return run, {"runs_dir": runs_dir, "store": url.rstrip("/").removesuffix(f"/{run.name}")}


def is_url(where: str | Path) -> bool:
    """Whether `where` is a store or a run in a store: a URL, or a folder with latest.json, which only stores have."""
    if "://" in str(where) or str(where).startswith(("drive:", "gdrive-link:")):
        return True
    path = Path(where).expanduser()
    try:
        return (path / "latest.json").is_file() or any(path.glob("*/latest.json"))
    except OSError:
        return False  # `Run(where)` then raises the error with its reason
