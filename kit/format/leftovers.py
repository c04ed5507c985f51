"""Temporary files and folders: create them with a lock, and remove those that killed processes left.

    .kit-0123abcd-0123456789ab   a file being written or deleted by a process on the OS kernel (boot) 0123abcd. The
                                 process holds a lock (flock) on it, which the system releases when the process dies
    .kit-old-NAME                the previous NAME, until its replacement is in place

A lock cannot be checked for a process on another machine, nor on a mount without locks. Such a file is removed once
nothing in it has changed for a day, or at once if the run's lock or lease says that no other process writes there.
Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

OLD = ".kit-old-"
UNCHANGED_S = 24 * 3600.0
_NAME = re.compile(r"\.kit-([0-9a-f]{8})-[0-9a-f]{12}")


@contextlib.contextmanager
def temporary(folder: Path, file_mode: int | None = None) -> Iterator[Path]:
    """Context manager: a new temporary folder in `folder`, or an empty file if `file_mode` is given.

    Rename it, or its contents, to the final name; the rest is removed at the end. Before a folder is made, `folder` is
    swept.
    """
    if file_mode is None:
        sweep(folder)
    path, handle = _locked(folder, file_mode)
    try:
        yield path
    finally:
        os.close(handle)
        remove(path)


def hide(path: Path) -> Path:
    """Rename `path` to a temporary name before deleting it, so that no reader sees it half deleted. Needs no space."""
    return path.rename(_new_name(path.parent))


def old(path: Path) -> Path:
    """Return the name of `path` while it is being replaced."""
    return path.with_name(f"{OLD}{path.name}")


def sweep(folder: Path, recursive: bool = False, sole_writer: bool = False) -> None:
    """Remove the files that `left` yields."""
    for path in left(folder, recursive, sole_writer):
        remove(path)


def left(folder: Path, recursive: bool = False, sole_writer: bool = False) -> Iterator[Path]:
    """Yield temporary files of killed processes in `folder`. `sole_writer`: no other machine writes there."""
    for path in list(_temporaries(folder, recursive)):
        with contextlib.suppress(OSError):  # it is gone, or belongs to another user
            handle = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))
            try:
                if _is_left(path, handle, sole_writer):
                    yield path
            finally:
                os.close(handle)


def size(folder: Path) -> int:
    """Return the bytes of all temporary files below `folder`; hard links to other files count as 0."""
    total = 0
    for each in _temporaries(folder, recursive=True):
        for path in [each, *each.rglob("*")]:
            with contextlib.suppress(OSError):
                status = path.lstat()
                total += status.st_size if status.st_nlink == 1 and not path.is_dir() else 0
    return total


def remove(path: Path) -> None:
    """Delete a file or a folder; errors are ignored."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _new_name(folder: Path) -> Path:
    return folder / f".kit-{_kernel()}-{secrets.token_hex(6)}"


@cache
def _kernel() -> str:
    """Return an id of the running OS kernel, which changes at boot: it holds this process's locks."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux
        name = socket.gethostname()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _locked(folder: Path, file_mode: int | None) -> tuple[Path, int]:
    """Create and lock a temporary; try again if another process swept it before it was locked."""
    import fcntl

    while True:
        path = _new_name(folder)
        path.mkdir() if file_mode is None else path.touch(file_mode, exist_ok=False)
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY)
            if _lock(handle, fcntl.LOCK_SH) is not False and path.exists():
                return path, handle
            os.close(handle)


def _lock(handle: int, kind: int) -> bool | None:
    """Return whether the lock was taken; None if the mount has no locks."""
    import fcntl

    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _temporaries(folder: Path, recursive: bool) -> Iterator[Path]:
    """Yield all temporary files and folders in `folder`, of live processes too."""
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in folders + files if _NAME.fullmatch(name) or name.startswith(OLD))
        folders[:] = [name for name in folders if recursive and not name.startswith(".kit-")]


def _is_left(path: Path, handle: int, sole_writer: bool) -> bool:
    """Whether the process that made `path` is dead; `handle` is its open file descriptor."""
    import fcntl

    match = _NAME.fullmatch(path.name)
    if match is None:
        return path.with_name(path.name.removeprefix(OLD)).exists()
    free = _lock(handle, fcntl.LOCK_EX) if match[1] == _kernel() else None
    if free is not None:
        return free
    if sole_writer:
        return True
    with temporary(path.parent, 0o600) as probe:  # this file system's clock
        now = probe.stat().st_mtime
    return max(each.lstat().st_mtime for each in [path, *path.rglob("*")]) < now - UNCHANGED_S
