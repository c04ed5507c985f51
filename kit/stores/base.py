"""What every store can do: list, read, put."""

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
"""Bytes; the second is what `Store.read` accepts unless told otherwise."""
THREAD = "store"
"""Name of the threads that talk to a store."""

Files = Mapping[str, Path | bytes]
"""What is to be written, by its path in the store."""
_T = TypeVar("_T")


class StoreError(Exception):
    """A store did not do what was asked. `transient`: trying again may help, after `retry_after_s` seconds if given."""

    def __init__(self, message: str, transient: bool = True, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.transient, self.retry_after_s = transient, retry_after_s


class MissingFile(StoreError):
    """The store has no such file."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False)


class Unusable(UserError):
    """A store that cannot be used as the user named it. The message says why, and what to do."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"store={url!r} {why}")


class Store(ABC):
    """A place beyond this machine that holds files under relative POSIX paths. Three methods must be written; a new
    store appears in kit.stores.urls, and tests/stores/test_stores.py holds it to the same promises as the others."""

    url: str
    """As the user wrote it."""
    min_interval_s: float = 0.0
    """Puts should be at least so far apart: each is a commit on the Hub, and the Hub counts."""
    has_page: bool = False
    """A README.md at the top is shown to visitors."""
    keeps_history: bool = False
    """What was replaced or deleted still takes room, until `squash`."""

    @abstractmethod
    def list(self, prefix: str = "") -> dict[str, int]:
        """Every file whose path is `prefix` or below it, with its size in bytes. Nothing there: an empty dict."""

    @abstractmethod
    def chunks(self, path: str) -> Iterator[bytes]:
        """The content of a file as the store holds it now, never from a cache. Raises `MissingFile`, `StoreError`."""

    @abstractmethod
    def put(self, files: Files, delete: Sequence[str] = (), message: str = "") -> None:
        """Write `files` in their order, then remove `delete` (missing ones are fine). Each file is replaced whole; on
        the Hub all of it is one commit. `message` says why, where the store keeps a history."""

    def read(self, path: str, limit: int = SMALL) -> bytes:
        """A small file. More than `limit` bytes raise `StoreError` as soon as they are seen."""
        return self._attempt(lambda: b"".join(self._limited(path, limit)))

    def get(self, path: str, local: Path | None, limit: int | None = None) -> str:
        """Fetch a file to `local`, at most `limit` bytes; its SHA-256 in hex. With None, only that."""

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
        """Replace a small file only if it still holds `old` (None: is absent). Whether it did. Stores that can make
        this atomic do; here it is read, write, and read again."""
        if self.read_or_none(path) != old:
            return False
        self.put({path: new}, message=f"update {path}")
        return self.read_or_none(path) == new

    def sweep(self, prefix: str) -> int:
        """Remove what killed writers left below `prefix`, which is the caller's by its lease; how many there were."""
        return 0

    def whole(self) -> Store:
        """All that shares one history with this store."""
        return self

    def squash(self) -> None:
        """Forget the history of `whole()`, in which nobody else may be at work: only what is there now stays. Tried
        once. Raises `StoreError` or `UserError`; then it may have happened or not."""
        raise StoreError(f"{self.url} keeps no history", transient=False)

    def read_or_none(self, path: str) -> bytes | None:
        """`read`, or None if there is no such file."""
        try:
            return self.read(path)
        except MissingFile:
            return None

    def _limited(self, path: str, limit: int | None) -> Iterator[bytes]:
        seen = 0
        for chunk in self.chunks(path):
            seen += len(chunk)
            if limit is not None and seen > limit:
                raise StoreError(f"{path} in {self.url} is larger than {limit:,} bytes", transient=False)
            yield chunk

    def _attempt(self, call: Callable[[], _T]) -> _T:
        """How a read is tried; stores whose client does not retry do it here."""
        return call()


def size_of(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def in_thread(call: Callable[[], _T]) -> Future[_T]:
    """`call` in a thread that nobody has to wait for: a dead mount can hold one for ever."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return answer


def within(seconds: float, call: Callable[[], _T], what: str) -> _T:
    """`call()`, given up on after `seconds`. Raises `UserError` then."""
    answer = in_thread(call)
    if not wait([answer], seconds).done:
        raise UserError(f"{what} did not answer within {seconds:.0f} s; is it mounted and reachable?")
    return answer.result()
