"""Temporary files and folders: create them with a lock, and remove those that killed processes left behind.

    .kit-0123abcd-0123456789ab   a file or folder that a process is writing or deleting; 0123abcd identifies the machine
                                 and its boot. The process holds a lock (flock) on it, which the system releases when
                                 the process dies
    .kit-old-NAME                the previous NAME, until its replacement is in place

If another machine made a temporary file, or the mount has no locks, the lock cannot be checked. Such a file is removed
once nothing in it has changed for a day, or at once if the caller knows that no other process writes there, because it
holds the run's lock or lease. Standard library only.
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
    """Context manager: a new temporary folder in `folder`, or an empty file with `file_mode` if that is given.

    Rename it, or its contents, to the final name. What is left of it is removed at the end. Before a folder is made,
    `sweep` removes those of dead processes in `folder`.
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
    """Rename `path` to a temporary name and return that. Do it before deleting, so that no reader sees half of it.

    It works on a full disk too.
    """
    return path.rename(_new_name(path.parent))


def old(path: Path) -> Path:
    """Return the name that the previous `path` has while it is replaced."""
    return path.with_name(f"{OLD}{path.name}")


def sweep(folder: Path, recursive: bool = False, sole_writer: bool = False) -> None:
    """Remove the temporary files that `left` yields."""
    for path in left(folder, recursive, sole_writer):
        remove(path)


def left(folder: Path, recursive: bool = False, sole_writer: bool = False) -> Iterator[Path]:
    """Yield the temporary files in `folder` whose process is dead. `sole_writer`: no other machine writes there."""
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
    """Return an id of the running OS kernel, which changes at every boot. Locks can be checked on this kernel only."""
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
    """Try to lock the open file `handle`. Return True if it is locked now, False if another process has locked it, and
    None if the mount has no locks."""
    import fcntl

    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _temporaries(folder: Path, recursive: bool) -> Iterator[Path]:
    """Yield all temporary files and folders in `folder`, including those of live processes."""
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in folders + files if _NAME.fullmatch(name) or name.startswith(OLD))
        folders[:] = [name for name in folders if recursive and not name.startswith(".kit-")]


def _is_left(path: Path, handle: int, sole_writer: bool) -> bool:
    """Return whether `path` may be removed: its process is dead, or it is an old version whose successor is in place.

    `handle` is the file descriptor of `path`.
    """
    import fcntl

    match = _NAME.fullmatch(path.name)
    if match is None:
        return path.with_name(path.name.removeprefix(OLD)).exists()
    free = _lock(handle, fcntl.LOCK_EX) if match[1] == _kernel() else None
    if free is not None:
        return free
    if sole_writer:
        return True
    with temporary(path.parent, 0o600) as probe:  # a new file tells the time by the file system's clock
        now = probe.stat().st_mtime
    return max(each.lstat().st_mtime for each in [path, *path.rglob("*")]) < now - UNCHANGED_S
