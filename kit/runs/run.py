"""`Run`: read a run's status, metrics, checkpoints and policies, and control its training process.

Works from any process, while the run trains and afterwards.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import RunConfig
from kit.errors import UserError
from kit.format import checkpoint
from kit.format.checkpoint import Checkpoint, Damaged
from kit.format.files import read_rows, write_atomic
from kit.runs import control, directory, provenance, status
from kit.trust import permit

if TYPE_CHECKING:
    import pandas as pd

    from kit.trainers import Trainer


NOTE_CHARACTERS = 1000
"""Maximum length of a note."""


class Run:
    """The run in the directory `path`. Stores only the path and the config; every method reads from disk.

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
        """Name of the run directory."""
        return self.path.name

    @cached_property
    def config(self) -> RunConfig:
        """The resolved config, from config.yaml."""
        return RunConfig.load(self.path / "config.yaml", of_run=True)

    @property
    def requested(self) -> RunConfig:
        """The config as the user asked for it, with "auto" where kit chose; for runs of kit 0.2 the resolved config."""
        return self.config.replace(**(self._created("requested") or {}))

    @property
    def knows_request(self) -> bool:
        """Whether the run has recorded the settings that the user gave, in `requested`. Runs of kit 0.2 have not."""
        return self._created("requested") is not None

    @property
    def notebook(self) -> str | None:
        """Path of the notebook that started the run, or None if it was not a notebook or Jupyter did not say which."""
        return self._created("notebook")

    @cached_property
    def parent(self) -> tuple[str, int | None] | None:
        """Source of the warm start: a run's name and step, or a zip's name and None. None without a warm start."""
        first = self._created("parent")
        return (first["name"], first.get("step")) if first else None

    def _created(self, key: str) -> Any:
        """Return the value of `key` that was recorded when the run was created, or None."""
        return next((entry[key] for entry in provenance.read(self.path) if key in entry), None)

    # -- reading ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the current status; its keys are those of `kit.runs.status.EMPTY`."""
        now = status.read(self.path)
        return {**now, "total_steps": now["total_steps"] or self.config.total_steps}

    def metrics(self) -> pd.DataFrame:
        """Return a DataFrame with one row per update and per evaluation, NaN where a row lacks a column."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl as dicts, column -> value."""
        return read_rows(self.path / "metrics.jsonl")

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints on this machine, oldest first."""
        return checkpoint.committed(self.path / "checkpoints")

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint whose SHA-256 sums match, without those of replay data, or None."""
        for saved in reversed(self.checkpoints()):
            try:
                saved.verify(replay=False)
            except Damaged:
                continue
            return saved
        return None

    def best(self) -> Checkpoint | None:
        """Return the policy with the highest evaluation score (the task's `score` metric); the newest wins a tie."""
        saved = checkpoint.committed(self.path / "best")
        return saved[-1] if saved else None

    def policies(self) -> list[Checkpoint]:
        """Return all saved policies, oldest first: checkpoints, and policies kept at evaluations.

        Policies kept at evaluations have no optimizer or env state; only the best is copied to a store.
        """
        kept = [*checkpoint.committed(self.path / "policies"), *checkpoint.committed(self.path / "best")]
        by_step = {saved.step: saved for saved in [*kept, *self.checkpoints()]}
        return [by_step[step] for step in sorted(by_step)]

    @property
    def videos(self) -> list[Path]:
        """Paths of the videos of policies, by name."""
        return sorted((self.path / "videos").glob("step_*.mp4"))

    @property
    def log_path(self) -> Path:
        """Path of worker.log."""
        return self.path / "worker.log"

    def log(self, lines: int = 50) -> str:
        """Return the last `lines` lines that the training process printed."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    @property
    def size_bytes(self) -> int:
        """Size of the files in the run directory, in bytes."""
        size = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(OSError):  # training deletes old checkpoints meanwhile
                    file = Path(folder, name).lstat()
                    size += file.st_size if stat.S_ISREG(file.st_mode) else 0
        return size

    def copies(self) -> str:
        """Describe the copy in the store, such as "step 100,352 verified in hf://you/runs"."""
        store = self.status()["store"]
        if not store or store["step"] is None:
            return f"not yet in {store['url']}" if store else "on this machine only"
        return f"step {store['step']:,} verified in {store['url']}"

    @property
    def note(self) -> str:
        """The user's note on the run, "" without one. It is copied to the run's store while the run trains."""
        path = self.path / "note.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def write_note(self, text: str) -> None:
        """Replace the note. Raises `UserError` if `text` is longer than `NOTE_CHARACTERS`."""
        if len(text) > NOTE_CHARACTERS:
            raise UserError(f"note has {len(text):,} characters; shorten it to {NOTE_CHARACTERS:,}.")
        try:
            write_atomic(self.path / "note.txt", text)
        except OSError as error:
            raise directory.refused(self.path, error) from None

    # -- control ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause training, keeping everything in memory, until `unpause` or `stop`."""
        control.request(self.path, "pause")

    def unpause(self) -> None:
        """Continue after `pause`."""
        control.request(self.path, "unpause")

    def stop(self) -> None:
        """Write a checkpoint and end the process; `kit.resume` continues from it."""
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
        """Block until `until(status)` is true (default: until the training process has ended); return the last status.

        `on_progress(status)` is called five times a second. Raises TimeoutError after `timeout` seconds.
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
        """Whether a process is training the run or is about to. `now`: the run's status, if already read."""
        return (now or self.status())["state"] in status.WORKING or directory.is_locked(self.path)

    # -- using -----------------------------------------------------------------------------------------------------

    def policy(self, step: int | str | None = None, trust: bool = False) -> Trainer:
        """Load the Stable-Baselines3 model of a checkpoint, on the CPU, for `predict` and `save`.

        `step`: a number, "best", "latest", or None for the best policy if there is one, else the latest. `trust` as in
        `kit.resume`.
        """
        permit(self.config, trust)
        return load_policy(self.config, self.find(step))

    def find(self, step: int | str | None = None) -> Checkpoint:
        """Return the checkpoint with the policy of `step` (as in `policy`). Raises `UserError` if there is none."""
        saved: Checkpoint | None
        if step is None:
            saved = self.best() or self.latest()
        elif step in ("best", "latest"):
            saved = self.best() if step == "best" else self.latest()
        elif isinstance(step, str) and not step.isdecimal():
            raise UserError(f"step={step!r} is not a step; give a number such as 100000, best or latest.")
        else:
            saved = next((c for c in self.policies() if c.step == int(step)), None)
        if saved is None:
            available = ", ".join(f"{c.step}" for c in self.policies())
            if not available:
                remedy = "wait until it has trained for a minute" if self.is_working() else "train or resume it first"
                raise UserError(f"{self.path} has no checkpoint yet; {remedy}.")
            if step == "latest" and self.checkpoints():
                raise UserError(f"{self.path} has only damaged checkpoints; name the step of a policy: {available}.")
            raise UserError(f"step={step!r} has no checkpoint in {self.path}; there is: {available}.")
        return saved

    def find_or_new(self, step: int | str | None = None) -> Checkpoint | None:
        """Like `find`, but return None for an unsaved step 0, whose policy `load_policy(config, None)` recreates."""
        is_saved = self.parent is not None or any(saved.step == 0 for saved in self.policies())
        return self.find(step) if step != 0 or is_saved else None

    def is_untrained(self, saved: Checkpoint | None) -> bool:
        """Whether `saved` (from `find_or_new`) has random weights.

        Older versions of kit did not store this in the checkpoint of step 0; then True unless the run had a warm start.
        """
        if saved is None or saved.step > 0:
            return saved is None
        return bool(saved.numbers().get("session", {}).get("untrained", self.parent is None))

    def steps(self) -> list[int]:
        """Return the steps of all policies that can be loaded. Without a warm start, step 0 is always among them."""
        first = set() if self.parent else {0}
        return sorted(first | {saved.step for saved in self.policies()})


def opened(run: Run | str | Path, trust: bool = False) -> Run:
    """Return `run` as a `Run`. Raises `UserError` if its config names a module that may not be imported without
    `trust`."""
    run = run if isinstance(run, Run) else Run(run)
    permit(run.config, trust)
    return run


def load_policy(config: RunConfig, saved: Checkpoint | None) -> Trainer:
    """Load the policy of a checkpoint (None: a new one) into a trainer on the CPU, for `predict`, `act` and `save`.

    Raises `UserError` if the checkpoint is damaged.
    """
    from kit import envs
    from kit.trainers import make_trainer

    config = config.replace(device="cpu", n_envs=1, threads="auto")  # "auto": keep the number of threads
    with warnings.catch_warnings():  # hide SB3's warning about batches larger than one env's rollout, irrelevant here
        warnings.filterwarnings("ignore", "You have specified a mini-batch size", UserWarning)
        options = envs.without_opponents(config.env, config.env_options)
        trainer = make_trainer(config, envs.make_vec(config.env, 1, "cpu", config.seed, 1, options))
    if saved is not None:
        try:
            trainer.load_policy(saved.read(replay=False))
        except Damaged as error:
            raise UserError(f"{saved.path} is damaged ({error}); name another step, or fetch the run again.") from None
    return trainer
