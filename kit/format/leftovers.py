"""Temporary files and folders: one name for all, a lock that says that their maker lives, and sweeping after a kill.

    .kit-0123abcd-0123456789ab   what is being made, or deleted, by a process of the kernel 0123abcd. Its maker holds a
                                 lock (flock) on it, which the system frees when that process dies
    .kit-old-NAME                what NAME was, until what replaces it is there

Of what another machine makes nobody here can tell whether its maker lives; nor where a mount knows no locks. That goes
once nothing in it has changed for a day, or at once where the run's lock or lease says that no other writes there.
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
    """A new folder in `folder`, which is swept first, or an empty file with `file_mode`. Rename it, or what is in it,
    to where it belongs; what is left is removed."""
    if file_mode is None:
        sweep(folder)
    path, handle = _locked(folder, file_mode)
    try:
        yield path
    finally:
        os.close(handle)
        remove(path)


def hide(path: Path) -> Path:
    """Rename `path`, which is to be deleted, so that no reader sees a part of it. Also a full disk allows that."""
    return path.rename(_new_name(path.parent))


def old(path: Path) -> Path:
    """What `path` is called while another takes its place."""
    return path.with_name(f"{OLD}{path.name}")


def sweep(folder: Path, below: bool = False, alone: bool = False) -> None:
    """Remove what `left` finds."""
    for path in left(folder, below, alone):
        remove(path)


def left(folder: Path, below: bool = False, alone: bool = False) -> Iterator[Path]:
    """What killed processes left in `folder`, or also `below` it. `alone`: nobody on other machines writes there."""
    for path in list(_found(folder, below)):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            handle = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))
            try:
                if _is_left(path, handle, alone):
                    yield path
            finally:
                os.close(handle)


def size(folder: Path) -> int:
    """Bytes of everything temporary below `folder`, whoever makes it; links to files that lie elsewhere take none."""
    total = 0
    for each in _found(folder, below=True):
        for path in [each, *each.rglob("*")]:
            with contextlib.suppress(OSError):
                status = path.lstat()
                total += status.st_size if status.st_nlink == 1 and not path.is_dir() else 0
    return total


def remove(path: Path) -> None:
    """Delete a file or a folder, as far as that is possible."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _new_name(folder: Path) -> Path:
    return folder / f".kit-{_kernel()}-{secrets.token_hex(6)}"


@cache
def _kernel() -> str:
    """The kernel that keeps this process's locks, from its start to its end."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not Linux
        name = socket.gethostname()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _locked(folder: Path, file_mode: int | None) -> tuple[Path, int]:
    """A new temporary and its lock; another one if somebody has swept it before it was locked."""
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
    """Whether it could be had; None where there are no locks."""
    import fcntl

    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _found(folder: Path, below: bool) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in folders + files if _NAME.fullmatch(name) or name.startswith(OLD))
        folders[:] = [name for name in folders if below and not name.startswith(".kit-")]


def _is_left(path: Path, handle: int, alone: bool) -> bool:
    import fcntl

    match = _NAME.fullmatch(path.name)
    if match is None:
        return path.with_name(path.name.removeprefix(OLD)).exists()
    free = _lock(handle, fcntl.LOCK_EX) if match[1] == _kernel() else None
    if free is not None:
        return free
    if alone:
        return True
    with temporary(path.parent, 0o600) as probe:  # this file system's clock
        now = probe.stat().st_mtime
    return max(each.lstat().st_mtime for each in [path, *path.rglob("*")]) < now - UNCHANGED_S
