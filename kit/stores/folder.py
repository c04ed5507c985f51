"""A folder as a store: a Google Drive mount, a RunPod or Lambda volume, NFS, a second disk.

Such mounts can disappear. A missing root folder is therefore not created again, because files would land on the disk
below the mount point. Such mounts also cache. Therefore each file is written to a temporary name, fsynced and renamed,
and before a read the system is asked to drop its cached copy.

Google Drive moves deleted files, and files replaced by a rename, to its bin, where they still take up space. Therefore
a file is truncated before it is deleted, and a file NAME is replaced in steps: it is renamed to `.kit-old-NAME`, the
new file gets its name, and the old one is deleted. If the process is killed in between, readers of NAME still get a
complete file.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from kit.format import leftovers
from kit.format.files import sync_folder
from kit.format.manifest import Refused, safe_path
from kit.machine import places
from kit.stores.base import CHUNK, Files, MissingFile, Store, StoreError, Unusable


class DirectoryStore(Store):
    """Files below one folder. `url` is a path, file://path or drive:folder."""

    def __init__(self, url: str, write: bool = False) -> None:
        self.url = url
        self.root = _locate(url, write)
        self.has_bin = _is_in_drive(self.root)
        try:
            if write:
                self.root.mkdir(exist_ok=True)
                self._sweep(self.root, owned=False)
                with leftovers.temporary(self.root, file_mode=0o666):
                    pass
            self._device = self.root.stat().st_dev
        except OSError as error:
            verb = "written" if write else "reached"
            remedy = "choose a folder that you may write to" if write else "create or mount the folder"
            raise Unusable(url, f"cannot be {verb} ({error.strerror}); {remedy}.") from None

    def list(self, prefix: str = "") -> dict[str, int]:
        top = self.root / safe_path(prefix) if prefix else self.root
        sizes: dict[str, int] = {}
        with self._translated(prefix or "the folder"):
            self._check_mounted()
            if top.is_file() and not top.is_symlink():
                return {prefix: top.stat().st_size}
            for folder, folders, names in os.walk(top, onerror=_ignore_missing):
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in names:
                    path, public = Path(folder, name), Path(folder, name.removeprefix(leftovers.OLD))
                    with contextlib.suppress(FileNotFoundError):
                        status = path.lstat()
                        replaced = path != public and public.name in names
                        if stat.S_ISREG(status.st_mode) and not public.name.startswith(".") and not replaced:
                            sizes[public.relative_to(self.root).as_posix()] = status.st_size
            self._check_mounted()  # if the mount disappeared during the walk, the list is incomplete
        return sizes

    def chunks(self, path: str) -> Iterator[bytes]:
        with self._translated(path):
            self._check_mounted()
            target = self._inside(path)
            target = target if os.path.lexists(target) or not leftovers.old(target).exists() else leftovers.old(target)
            handle = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle, "rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise StoreError(f"{path} in {self.url} is not a plain file")
                _forget_cached(handle)
                while chunk := file.read(CHUNK):
                    yield chunk

    def put(self, files: Files, delete: Sequence[str] = (), message: str = "") -> None:
        folders: dict[Path, None] = {}
        for path, content in files.items():
            # opened outside `_translated`, so that a missing local file raises FileNotFoundError, not MissingFile
            opened = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
            with opened as source, self._translated(path):
                self._check_mounted()
                target = self._inside(path)
                self._make_folder(target.parent)
                self._write(target, source)
                folders[target.parent] = None
        for folder in folders:
            with self._translated(str(folder)):
                sync_folder(folder)
        for path in delete:
            with self._translated(path):
                self._remove(self._inside(path))

    def sweep(self, prefix: str) -> None:
        with self._translated(prefix):
            self._check_mounted()
            self._sweep(self._inside(prefix), owned=True)

    def swap(self, path: str, old: bytes | None, new: bytes) -> bool:
        """Compare-and-swap under a file lock (flock), which the system frees if the process dies.

        On a Drive mount the lock excludes only processes on this machine.
        """
        import fcntl

        with self._translated(path):
            self._check_mounted()
            lock = self._inside(path).with_name(f".{Path(path).name}.lock")
            self._make_folder(lock.parent)
            with lock.open("a") as file:
                for _ in range(40):
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        time.sleep(0.05)
                    except OSError:  # this mount has no locks
                        break
                else:
                    raise StoreError(f"{path} in {self.url} is being changed by another process")
                return super().swap(path, old, new)

    def _write(self, target: Path, source: IO[bytes]) -> None:
        """Write to a temporary name, fsync, rename, and check the size that the mount reports."""
        with leftovers.temporary(target.parent, file_mode=0o666) as temporary:
            try:
                with temporary.open("wb") as file:
                    shutil.copyfileobj(source, file, CHUNK)
                    file.flush()
                    os.fsync(file.fileno())
                    size = file.tell()
                    _forget_cached(file.fileno())
                self._replace(temporary, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._discard(temporary)
                raise
        if target.stat().st_size != size:
            raise StoreError(f"{target.name} in {self.url} has {target.stat().st_size:,} bytes, {size:,} were written")

    def _replace(self, temporary: Path, target: Path) -> None:
        """Rename `temporary` to `target`. At any moment, readers get either the old or the new file."""
        if not self.has_bin:
            temporary.replace(target)
            return
        if target.exists():
            self._discard(leftovers.old(target))
            target.rename(leftovers.old(target))
        temporary.rename(target)
        self._discard(leftovers.old(target))

    def _discard(self, path: Path) -> None:
        """Delete a file, after truncating it if the mount moves deleted files to a bin."""
        if self.has_bin:
            with contextlib.suppress(OSError):  # missing, or a symlink
                handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
                try:
                    os.ftruncate(handle, 0)
                    os.fsync(handle)
                finally:
                    os.close(handle)
        path.unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """Create `folder` and its parents below the root. The root is not created: its mount may have disappeared."""
        chain = [folder, *folder.parents]
        for each in reversed(chain[: chain.index(self.root)]):
            with contextlib.suppress(FileExistsError):
                each.mkdir()

    def _sweep(self, folder: Path, owned: bool) -> None:
        """Remove temporary files of killed processes.

        `owned`: no other machine writes below `folder`, so also remove other machines' files, and those in subfolders.
        """
        for path in leftovers.left(folder, recursive=owned, sole_writer=owned):
            with contextlib.suppress(OSError):  # the next sweep tries again
                self._remove(path)

    def _remove(self, target: Path) -> None:
        """Delete a file, its old version, and the parent folders that become empty."""
        self._discard(leftovers.old(target))
        self._discard(target)
        with contextlib.suppress(OSError):  # not empty, or removed already
            for folder in target.parents:
                if folder == self.root:
                    break
                folder.rmdir()

    def _inside(self, path: str) -> Path:
        """Return the local path of `path`. Raises `Refused` if a symlink leads outside the root folder."""
        target = self.root / safe_path(path)
        real = Path(os.path.realpath(target.parent))
        if not real.is_relative_to(os.path.realpath(self.root)):
            raise Refused(f"{path!r} in {self.url} leads out of the store through a symlink.")
        return target

    def _check_mounted(self) -> None:
        """Raise `StoreError` if the root folder is missing, or on another disk because it is no longer mounted."""
        try:
            device = self.root.stat().st_dev
        except OSError as error:
            raise StoreError(f"{self.url} has disappeared ({error.strerror}); is it still mounted?") from None
        if device != self._device:
            raise StoreError(f"{self.url} is on another disk than before; is it still mounted?")

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                self._check_mounted()
                raise MissingFile(f"{name} is not in {self.url}") from None
            raise StoreError(f"{name} in {self.url}: {error.strerror or error}") from None


def _locate(url: str, write: bool) -> Path:
    """Return the folder of `url`. Raises `UserError` if it is missing and, with `write`, its parent is missing too."""
    if url.lower().startswith("drive:"):
        mount = places.drive()
        folder = url.split(":", 1)[1].strip("/")
        if not folder:
            raise Unusable(url, "names no folder; write drive:folder.")
        safe_path(folder)
        if not mount.is_dir():
            remedy = f"on Colab run `kit.ui.connect({url!r})` first, elsewhere use hf://user/repo."
            raise Unusable(url, f"needs Google Drive at {mount}; {remedy}")
        root = mount / folder
        if write:
            with contextlib.suppress(OSError):
                root.mkdir(parents=True, exist_ok=True)
    else:
        root = Path(url.removeprefix("file://")).expanduser().absolute()
    try:
        if root.exists() and not root.is_dir():
            raise Unusable(url, "is a file; give a folder.")
        if not root.exists() and not (write and root.parent.is_dir()):
            missing = root.parent if write else root
            raise Unusable(url, f"cannot be reached: {missing} does not exist; create or mount it first.")
    except OSError as error:
        raise Unusable(url, f"cannot be reached ({error.strerror}); create or mount the folder.") from None
    return root


def _is_in_drive(root: Path) -> bool:
    """Whether `root` is in a mounted Google Drive: Colab's, including shared drives, or Google's mount on a Mac."""
    real, mount = Path(os.path.realpath(root)), Path(os.path.realpath(places.drive()))
    return real.is_relative_to(mount) or "/content/drive/" in f"{real}/" or "/CloudStorage/GoogleDrive-" in str(real)


def _forget_cached(handle: int) -> None:
    """Ask the system to drop its cached copy of a file, so that the next read comes from the mount."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _ignore_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
