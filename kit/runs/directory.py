"""The run directory on disk: names, the lock that says a process is at work in it.

runs/<name>/
  config.yaml        resolved RunConfig; written first
  status.json        what the run is doing; rewritten whole, atomically
  metrics.jsonl      one row per update and per evaluation; append-only
  provenance.json    versions, machine, git commit
  worker.log         what the training process printed
  tb/                TensorBoard events, the same numbers
  checkpoints/step_000100352/   see kit.format.checkpoint
  replay/            segments of off-policy data, shared by checkpoints
  frozen/            weights that never change, shared by checkpoints and policies
  policies/          the policy alone at each evaluation, to look back on
  videos/  best/
  control/           requests to the training process, one file each
  .lock              held (flock) by the process at work; the system frees it when that process dies
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kit.config import RunConfig
from kit.errors import UserError
from kit.format.files import sync_folder, write_atomic
from kit.format.leftovers import temporary

LOCK_PATIENCE_S = 0.5
"""Somebody who only asks whether a run is at work holds its lock for an instant (`is_locked`)."""


def create(config: RunConfig) -> Path:
    """A new run directory holding `config`'s config.yaml. A name that exists is never used again."""
    if config.run_name is None:
        raise ValueError("create() takes a resolved config")
    with contextlib.ExitStack() as stack:
        try:
            path = free(config)
            path.parent.mkdir(parents=True, exist_ok=True)
            building = stack.enter_context(temporary(path.parent))
        except OSError as error:
            why = error.strerror
            raise UserError(f"runs_dir={config.runs_dir!r} cannot be written ({why}); choose another folder.") from None
        try:
            for folder in ("checkpoints", "videos", "control"):
                (building / folder).mkdir()
            write_atomic(building / "config.yaml", config.to_yaml())
        except OSError as error:
            raise refused(path, error) from None
        try:
            building.rename(path)  # fails if another took the name meanwhile: a non-empty folder is never replaced
        except OSError:
            raise _taken(config) from None
    sync_folder(path.parent)
    return path


def free(config: RunConfig) -> Path:
    """Where a run of `config`, which has a name, will lie. Raises `UserError` if one lies there."""
    path = Path(config.runs_dir).expanduser() / str(config.run_name)
    if path.exists():
        raise _taken(config)
    return path


def _taken(config: RunConfig) -> UserError:
    return UserError(f"run_name={config.run_name!r} exists in {config.runs_dir}; resume it or choose another name.")


def find(path: str | Path) -> Path:
    """`path`, if it is a run directory. Raises `UserError` if not."""
    path = Path(path).expanduser()
    try:
        there, has_config = path.exists(), (path / "config.yaml").is_file()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); copy the run to a folder that can.") from None
    if not there:
        raise UserError(f"{path} does not exist; `kit runs` lists the runs that do.")
    if not has_config:
        raise UserError(f"{path} is not a run directory: it has no config.yaml; `kit runs {path}` lists those in it.")
    return path


def refused(path: Path, error: OSError) -> UserError:
    """What a run says whose folder takes nothing."""
    return UserError(f"{path} cannot be written ({error.strerror}); make room there, or use a folder that can.")


@contextlib.contextmanager
def lock(path: Path, handed: int | None = None) -> Iterator[IO[str]]:
    """Own the run at `path` while the block runs; the parent process may have taken the lock and `handed` on the open
    file. Raises `UserError` naming the owner if a live process has it."""
    import fcntl

    try:
        file = (path / ".lock").open("a+") if handed is None else os.fdopen(handed, "a+")
    except OSError as error:
        raise refused(path, error) from None
    with file:
        end = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < end:
                    time.sleep(0.02)
                    continue
                file.seek(0)
                owner = file.read().strip() or "another process"
                raise UserError(f"{path} is in use by {owner}; stop it first, or watch it with `kit runs`.") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield file


def is_locked(path: Path) -> bool:
    """Whether a live process is at work in the run at `path`."""
    import fcntl

    try:
        with (path / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
