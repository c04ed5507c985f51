"""The interface of all stores: list, read and put files."""

from __future__ import annotations

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from kit.errors import UserError

CHUNK = SMALL = 2**20
"""Bytes per read of a local file, and the default limit of `Store.read`."""

Files = Mapping[str, Path | bytes]
"""Path in the store -> content to write, as bytes or as the path of a local file."""
_T = TypeVar("_T")


class StoreError(Exception):
    """A request to a store failed. `transient`: a retry may succeed. `retry_after_s`: pause that the store asks for."""

    def __init__(self, message: str, transient: bool = True, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.transient, self.retry_after_s = transient, retry_after_s


class MissingFile(StoreError):
    """The store has no such file."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False)


class Unusable(UserError):
    """`UserError` for a store that cannot be used. Message: "store=URL REASON"; the reason includes a remedy."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"store={url!r} {reason}")


class Store(ABC):
    """Remote storage of files under relative POSIX paths. Subclasses implement `list`, `chunks` and `put`."""

    url: str
    """The URL as the user wrote it."""
    min_interval_s: float = 0.0
    """Minimum seconds between two puts. On the Hub each put is a commit, and commits are rate-limited."""
    has_page: bool = False
    """Whether the store has a web page that shows its README.md."""
    keeps_history: bool = False
    """Whether replaced and deleted files take up space until `squash` is called."""

    @abstractmethod
    def list(self, prefix: str = "") -> dict[str, int]:
        """Return path -> bytes (-1: unknown) of the file `prefix`, or of all files in the folder `prefix`."""

    @abstractmethod
    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield the file's content in pieces, never from a cache. Raises `MissingFile`, `StoreError`."""

    @abstractmethod
    def put(self, files: Files, delete: Sequence[str] = (), message: str = "") -> None:
        """Write `files` in order, then delete the paths in `delete` (missing files are no error).

        Each file is replaced as a whole; on the Hub one put is one commit, with the commit message `message`.
        """

    def read(self, path: str, limit: int = SMALL) -> bytes:
        """Return a small file's content. Raises `StoreError` as soon as it exceeds `limit` bytes."""
        return self._attempt(lambda: b"".join(self._limited(path, limit)))

    def get(self, path: str, local: Path | None, limit: int | None = None) -> str:
        """Download a file of at most `limit` bytes to `local` (None: discard it). Return its SHA-256 in hex."""

        def fetch() -> str:
            digest = hashlib.sha256()
            with (local or Path(os.devnull)).open("wb") as file:
                for chunk in self._limited(path, limit):
                    digest.update(chunk)
                    file.write(chunk)
                if local:
                    file.flush()
                    os.fsync(file.fileno())
            return digest.hexdigest()

        return self._attempt(fetch)

    def swap(self, path: str, old: bytes | None, new: bytes) -> bool:
        """Compare-and-swap: replace a small file if its content is `old` (None: no file). Return whether it succeeded.

        This default reads, writes and reads again, which is not atomic; subclasses make it atomic where they can.
        """
        if self.read_or_none(path) != old:
            return False
        self.put({path: new}, message=f"update {path}")
        return self.read_or_none(path) == new

    def sweep(self, prefix: str) -> None:  # noqa: B027 - most stores write no temporary files
        """Remove temporary files of killed processes in the run's folder `prefix`. The caller must hold the lease."""

    def whole(self) -> Store:
        """Return the store of all files that share this store's history: for a Hub folder, the whole repository."""
        return self

    def squash(self) -> None:
        """Delete the history of `whole()` but not its files. The caller must exclude other writers. Does not retry."""
        raise StoreError(f"{self.url} keeps no history")

    def read_or_none(self, path: str) -> bytes | None:
        """Like `read`, but return None if the file does not exist."""
        try:
            return self.read(path)
        except MissingFile:
            return None

    def _limited(self, path: str, limit: int | None) -> Iterator[bytes]:
        """Like `chunks`, but raise `StoreError` after more than `limit` bytes."""
        received = 0
        for chunk in self.chunks(path):
            received += len(chunk)
            if limit is not None and received > limit:
                raise StoreError(f"{path} in {self.url} is larger than {limit:,} bytes", transient=False)
            yield chunk

    def _attempt(self, call: Callable[[], _T]) -> _T:
        """Return the result of `call`, a request to the store. Stores whose client does not retry override this."""
        return call()


def size_of(content: Path | bytes) -> int:
    """Return the size of a file or of bytes."""
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def within(seconds: float, call: Callable[[], _T], url: str) -> _T:
    """Return the result of `call` to the store `url`. Raises `Unusable` if the call takes longer than `seconds`.

    The call runs in a daemon thread: if it blocks forever (a dead mount), the process can still exit.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="store", daemon=True).start()
    if not wait([future], seconds).done:
        raise Unusable(url, f"did not answer within {seconds:.0f} s; is it mounted and reachable?")
    return future.result()
