"""A run seen from outside: look at it, steer it, use its policy. Works while it trains and long after."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import RunConfig
from kit.errors import UserError
from kit.format import checkpoint
from kit.format.checkpoint import Checkpoint, Damaged
from kit.format.files import read_rows
from kit.runs import control, directory, provenance, status
from kit.trust import permit

if TYPE_CHECKING:
    import pandas as pd

    from kit.trainers import Trainer


class Run:
    """The run in the directory `path`. Holds nothing but the path: every answer is read from disk.

    Raises `UserError` if `path` is not a run directory or was written by a newer version of kit.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = directory.find(path).absolute()
        _ = self.config

    def __repr__(self) -> str:
        now = self.status()
        return f"Run({self.name!r}: {now['state']}, {now['step']:,} of {now['total_steps']:,} steps)"

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> RunConfig:
        return RunConfig.load(self.path / "config.yaml", of_run=True)

    @cached_property
    def parent(self) -> tuple[str, int | None] | None:
        """Name and step of the run whose policy it began with (no step: of a zip); None if it began from nothing."""
        first = next((entry["parent"] for entry in provenance.read(self.path) if "parent" in entry), None)
        return (first["name"], first.get("step")) if first else None

    # -- looking ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What it is doing: the keys of `kit.runs.status.EMPTY`."""
        now = status.read(self.path)
        return {**now, "total_steps": now["total_steps"] or self.config.total_steps}

    def metrics(self) -> pd.DataFrame:
        """One line per update and per evaluation, NaN where it has no such column."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """The same as they were written, column -> value."""
        return read_rows(self.path / "metrics.jsonl")

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints on this machine, oldest first."""
        return checkpoint.committed(self.path / "checkpoints")

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint whose every byte verifies."""
        for found in reversed(self.checkpoints()):
            try:
                found.verify()
            except Damaged:
                continue
            return found
        return None

    def best(self) -> Checkpoint | None:
        """The policy that reached most in an evaluation, by the task's own score; of equals the newest."""
        found = checkpoint.committed(self.path / "best")
        return found[-1] if found else None

    def policies(self) -> list[Checkpoint]:
        """Every policy there is to look at, oldest first: of checkpoints, and of evaluations in between, which hold
        the policy alone and stay on the machine that made them."""
        kept = [*checkpoint.committed(self.path / "policies"), *checkpoint.committed(self.path / "best")]
        by_step = {found.step: found for found in [*kept, *self.checkpoints()]}
        return [by_step[step] for step in sorted(by_step)]

    @property
    def videos(self) -> list[Path]:
        return sorted((self.path / "videos").glob("[!.]*.mp4"))

    @property
    def log_path(self) -> Path:
        return self.path / "worker.log"

    def log(self, lines: int = 50) -> str:
        """The end of what the training process printed."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    @property
    def size_bytes(self) -> int:
        """On this machine's disk."""
        return sum(file.lstat().st_size for file in self.path.rglob("*") if not file.is_symlink() and file.is_file())

    def copies(self) -> str:
        """Where else it is, such as "step 100,352 verified in hf://you/runs"."""
        store = self.status()["store"]
        if not store or store["step"] is None:
            return f"not yet in {store['url']}" if store else "on this machine only"
        return f"step {store['step']:,} verified in {store['url']}"

    # -- steering --------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stand still, keeping everything in memory, until `unpause` or `stop`."""
        control.request(self.path, "pause")

    def unpause(self) -> None:
        control.request(self.path, "unpause")

    def stop(self) -> None:
        """Write a checkpoint and end the process; `kit.resume` goes on from there."""
        control.request(self.path, "stop")

    def checkpoint(self) -> None:
        """Write a checkpoint at the end of the iteration in progress."""
        control.request(self.path, "checkpoint")

    def wait(
        self,
        timeout: float | None = None,
        until: Callable[[dict[str, Any]], bool] | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Block until no process works on it (or `until(status)` holds), at most `timeout` seconds; the status then.

        `on_progress(status)` is called five times a second. Raises TimeoutError.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            now = self.status()
            if on_progress is not None:
                on_progress(now)
            if until(now) if until is not None else not self.is_working(now):
                return now
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{self.name} is still {now['state']} after {timeout:g} s")
            time.sleep(0.2)

    def is_working(self, now: dict[str, Any] | None = None) -> bool:
        """Whether a process is at work on it, or about to be."""
        return (now or self.status())["state"] in status.WORKING or directory.is_locked(self.path)

    # -- using -----------------------------------------------------------------------------------------------------

    def policy(self, step: int | str | None = None, trust: bool = False) -> Trainer:
        """The Stable-Baselines3 model of a checkpoint, on the CPU, for `predict` and `save`.

        `step` is a step, "best", "latest", or None: the best there is, else the latest. `trust` as in `kit.resume`.
        """
        from kit.runs.policies import load_policy

        permit(self.config, trust)
        return load_policy(self.config, self.find(step))

    def find(self, step: int | str | None = None) -> Checkpoint:
        """What holds the policy of `step`, as in `policy`. Raises `UserError` if there is none."""
        found: Checkpoint | None
        if step is None:
            found = self.best() or self.latest()
        elif step in ("best", "latest"):
            found = self.best() if step == "best" else self.latest()
        else:
            found = next((c for c in self.policies() if c.step == int(step)), None)
        if found is None:
            have = ", ".join(f"{c.step}" for c in self.policies()) or "none yet"
            raise UserError(f"step={step!r} has no checkpoint in {self.path}; there is: {have}.")
        return found

    def find_or_new(self, step: int | str | None = None) -> Checkpoint | None:
        """As `find`; None, a new policy with random weights, for step 0 of a run that began with one and did not save
        it."""
        there = self.parent is not None or any(found.step == 0 for found in self.policies())
        return self.find(step) if step != 0 or there else None

    def is_untrained(self, found: Checkpoint | None) -> bool:
        """Whether what `find_or_new` found has random weights. A checkpoint of step 0 says so itself; one that an older
        version wrote does not, and has them unless the run began with another's policy."""
        if found is None or found.step > 0:
            return found is None
        return bool(found.numbers().get("session", {}).get("untrained", self.parent is None))

    def steps(self) -> list[int]:
        """Of every policy there is to look at, the one that training began with among them where it can be had."""
        first = set() if self.parent else {0}
        return sorted(first | {found.step for found in self.policies()})


def opened(run: Run | str | Path, trust: bool = False) -> Run:
    """`run`, whose config names only what may be imported, or what the user says to `trust`. Raises `UserError`."""
    run = run if isinstance(run, Run) else Run(run)
    permit(run.config, trust)
    return run
