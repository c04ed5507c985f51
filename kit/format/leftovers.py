"""Temporary files and folders: create them, and remove those that killed processes left behind.

    .kit-0123abcd.4711-0123456789ab   a file or folder that process 4711 is writing or deleting; 0123abcd identifies its
                                      machine, boot and PID namespace
    .kit-old-NAME                     the previous NAME, until its replacement is in place

Files of a dead process are removed. A process on another machine or in another container may be alive; its files are
removed immediately only if the caller is the sole writer (it holds the run's lock or lease). Any temporary file is
removed once it has not changed for a day.
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
PROGRAM = secrets.token_hex(2)
"""Random id of this program, in the names of its temporary files. The process id is not enough: a program that is
started by exec has the process id of the program before it."""
_NAME = re.compile(r"\.kit-([0-9a-f]{8})(?:\.(\d+))?-([0-9a-f]{4})[0-9a-f]{8}")  # kit up to 0.2 left out the process id


@contextlib.contextmanager
def temporary(folder: Path, file_mode: int | None = None) -> Iterator[Path]:
    """Context manager: a new temporary folder in `folder`, or an empty file with `file_mode` if that is given.

    The caller renames it, or its contents, to the final name; the rest is removed at the end. Before a temporary folder
    is made, `sweep` removes the temporary files of dead processes in `folder`.
    """
    if file_mode is None:
        sweep(folder)
    path = _new_name(folder)
    path.mkdir() if file_mode is None else path.touch(file_mode, exist_ok=False)
    try:
        yield path
    finally:
        remove(path)


def hide(path: Path) -> Path:
    """Rename `path` to a temporary name, so that no reader sees it half deleted; return the new path.

    A rename works on a full disk too.
    """
    return path.rename(_new_name(path.parent))


def old(path: Path) -> Path:
    """Return the name of the old version of `path` while `path` is replaced."""
    return path.with_name(f"{OLD}{path.name}")


def sweep(folder: Path, recursive: bool = False, sole_writer: bool = False) -> None:
    """Remove the temporary files that `left` yields."""
    for path in left(folder, recursive, sole_writer):
        remove(path)


def left(folder: Path, recursive: bool = False, sole_writer: bool = False) -> Iterator[Path]:
    """Yield the temporary files in `folder` that can be removed. `sole_writer`: no other machine writes to it."""
    for path in list(_temporaries(folder, recursive)):
        with contextlib.suppress(OSError):  # the file is gone, or belongs to another user
            if _is_left(path, sole_writer):
                yield path


def size(folder: Path) -> int:
    """Return the bytes of all temporary files below `folder`; files with another hard link count as 0."""
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
    return folder / f".kit-{_system()}.{os.getpid()}-{PROGRAM}{secrets.token_hex(4)}"


@cache
def _system() -> str:
    """Return an id of machine, boot and PID namespace. Processes with the same id can see each other."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):  # not Linux
        name = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _temporaries(folder: Path, recursive: bool) -> Iterator[Path]:
    """Yield all temporary files and folders in `folder`, including those of live processes."""
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in folders + files if _NAME.fullmatch(name) or name.startswith(OLD))
        folders[:] = [name for name in folders if recursive and not name.startswith(".kit-")]


def _is_left(path: Path, sole_writer: bool) -> bool:
    """Whether `path` can be removed: its process is dead, it is unchanged for a day, or its replacement is in place."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return path.with_name(path.name.removeprefix(OLD)).exists()
    is_local = match[1] == _system() and match[2]
    if not _is_alive(int(match[2]), match[3]) if is_local else sole_writer:
        return True
    with temporary(path.parent, 0o600) as probe:  # a new file's mtime is the file system's current time
        now = probe.stat().st_mtime
    return max(each.lstat().st_mtime for each in [path, *path.rglob("*")]) < now - UNCHANGED_S


def _is_alive(pid: int, program: str) -> bool:
    import psutil

    if pid == os.getpid():
        return program == PROGRAM
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
