"""The run directory: its files, how it is created, and the lock held by the process that works on it.

runs/<name>/
  config.yaml        resolved RunConfig; written first
  status.json        state and progress; replaced atomically
  metrics.jsonl      one row per policy update and per evaluation; a resume deletes rows after its checkpoint
  provenance.json    versions, machine, git commit
  note.txt           the user's note on the run, if any
  worker.log         output of the training process
  tb/                TensorBoard events, the numbers of metrics.jsonl
  checkpoints/step_000100352/   see kit.format.checkpoint
  replay/            segments of off-policy data, shared by checkpoints
  frozen/            frozen weights (never trained) and datasets, shared by checkpoints and policies
  policies/          up to 20 policies kept from evaluations, without optimizer or env state
  best/              the policy with the best evaluation, saved like those in policies/
  videos/            mp4 files
  divergences/       recordings of diverged physics, see kit.runs.divergence
  control/           commands to the training process, one file each
  .panel             what the notebook's panel asked for that started the run, see kit.ui.panel
  .lock              held (flock) by the training process; the system frees it when that process dies
"""

from __future__ import annotations

import contextlib
import errno
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
"""Seconds to wait for the lock, because `is_locked` in another process holds it for an instant."""


def create(config: RunConfig) -> Path:
    """Create the run directory of `config`, with its config.yaml. Raises `UserError` if it exists or cannot be
    written."""
    if config.run_name is None:
        raise ValueError("create() takes a resolved config")
    with contextlib.ExitStack() as stack:
        try:
            path = free(config)
            path.parent.mkdir(parents=True, exist_ok=True)
            building = stack.enter_context(temporary(path.parent))
        except OSError as error:
            reason = f"cannot be written ({error.strerror}); choose another folder."
            raise UserError(f"runs_dir={config.runs_dir!r} {reason}") from None
        try:
            for folder in ("checkpoints", "videos", "control"):
                (building / folder).mkdir()
            write_atomic(building / "config.yaml", config.to_yaml())
        except OSError as error:
            raise refused(path, error) from None
        try:
            building.rename(path)  # fails if another process has used the name: a non-empty folder is never replaced
        except OSError:
            raise _taken(config) from None
    sync_folder(path.parent)
    return path


def with_free_name(config: RunConfig) -> RunConfig:
    """Return `config` with "-2", "-3" ... after its run_name if a run of this name exists."""
    named, count = config, 1
    with contextlib.suppress(OSError):  # a folder that cannot be read: `create` says so
        while (Path(config.runs_dir).expanduser() / str(named.run_name)).exists():
            count += 1
            named = config.replace(run_name=f"{config.run_name}-{count}")
    return named


def free(config: RunConfig) -> Path:
    """Return the path for a new run of `config`, which must have a name. Raises `UserError` if the path exists."""
    path = Path(config.runs_dir).expanduser() / str(config.run_name)
    if path.exists():
        raise _taken(config)
    return path


def _taken(config: RunConfig) -> UserError:
    return UserError(f"run_name={config.run_name!r} exists in {config.runs_dir}; resume it or choose another name.")


def find(path: str | Path) -> Path:
    """Return `path` if it is a run directory, or else `runs/path` for a name. Raises `UserError` if neither is one."""
    path = Path(path).expanduser()
    try:
        is_run = (path / "config.yaml").is_file()
        if path.name == str(path) and not is_run and ("runs" / path / "config.yaml").is_file():
            path = "runs" / path
        exists, is_file, has_config = path.exists(), path.is_file(), (path / "config.yaml").is_file()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); copy the run to a readable folder.") from None
    if not exists:
        folder = f" {path.parent}" if path.name != str(path) and path.parent.is_dir() else ""
        raise UserError(f"{path} does not exist; `kit runs{folder}` lists the runs there are.")
    if is_file:
        raise UserError(f"{path} is a file, and a run is a directory; `kit runs` lists those there are.")
    if not has_config:
        raise UserError(f"{path} is not a run directory: it has no config.yaml; `kit runs {path}` lists those in it.")
    return path


def refused(path: Path, error: OSError) -> UserError:
    """Return the `UserError` for a run directory that cannot be written."""
    return UserError(f"{path} cannot be written ({error.strerror}); free some space there, or use another folder.")


def check_output(path: Path) -> None:
    """Raise `UserError` if `path`, a file to make, is a folder or in a place that cannot be written."""
    try:
        if path.is_dir():
            raise UserError(f"{path} is a folder; name a file in it.")
        lowest = next(each for each in path.parents if each.exists())
        if not lowest.is_dir():
            raise UserError(f"{path} cannot be written, because {lowest} is a file; name another folder.")
        if not os.access(lowest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise refused(path, error) from None


@contextlib.contextmanager
def making(path: Path) -> Iterator[Path]:
    """Context manager: a new temporary folder beside `path`, in which the caller makes `path`, and then renames it.

    Raises `UserError` if `path` cannot be written, or the disk becomes full.
    """
    check_output(path)
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(temporary(path.parent))
        except OSError as error:
            raise refused(path, error) from None
        try:
            yield folder
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise refused(path, error) from None


@contextlib.contextmanager
def lock(path: Path, inherited: int | None = None) -> Iterator[IO[str]]:
    """Hold the lock of the run at `path` while the block runs.

    `inherited`: file descriptor of the lock, if the parent process took the lock already. Yields the open lock file.
    Raises `UserError`, which names the owner, if another live process holds the lock.
    """
    import fcntl

    try:
        file = (path / ".lock").open("a+") if inherited is None else os.fdopen(inherited, "a+")
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
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its owner's name
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield file


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock of the run at `path`."""
    import fcntl

    try:
        with (path / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
