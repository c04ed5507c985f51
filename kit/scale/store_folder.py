"""A folder in a store for the files of one notebook or hyperparameter search; a lease admits a single writer."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path

from kit.errors import UserError
from kit.scale.work import AGAIN_S, PATIENCE_S
from kit.stores import LeaseHeld, Store, StoreError, lease, open_store
from kit.stores.redact import redact_bytes


class StoreFolder:
    """Copies files of `folder` to the path `at` of the store at `url`. `message`: commit message of every write."""

    def __init__(self, url: str, folder: Path, at: str, message: str) -> None:
        self._url, self._folder, self._at, self._message = url, folder, at, message
        self._next = self._renew = 0.0
        """Monotonic times: earliest next copy; next renewal of the lease, 0 before the lease is acquired."""
        self._seen: int | None = None
        """Modification time, ns, of the file at its last copy."""

    @cached_property
    def _store(self) -> Store:
        """The store, opened on first use, so that a store that does not answer raises only when it is used.

        Without `write=True`, `open_store` does not create the store: if a mount is missing, files would otherwise go to
        a local folder.
        """
        return open_store(self._url)

    def put(self, name: str, now: bool = False) -> bool:
        """Copy the file `name` of the folder if it has changed, and renew the lease before it ends.

        Return whether the store has the file's present content.

        Unless `now`, copies are at least `AGAIN_S`, and the store's `min_interval_s`, apart. After a failure, a later
        call tries again. Raises `LeaseHeld` if another process has taken the lease.
        """
        path, moment = self._folder / name, time.monotonic()
        changed = path.stat().st_mtime_ns if path.exists() else None
        if (changed == self._seen and moment < self._renew) or (moment < self._next and not now):
            return changed == self._seen
        self._next = moment + AGAIN_S
        try:
            self._next = moment + max(AGAIN_S, self._store.min_interval_s)
            # {} only renews the lease
            self._write({f"{self._at}/{name}": path.read_bytes()} if changed != self._seen else {})
            self._seen = changed
        except LeaseHeld:
            raise
        except (StoreError, UserError, OSError) as error:
            print(f"{name} was not copied: {error}", flush=True)
            return False
        return True

    def finish(self, files: dict[str, bytes]) -> str:
        """Write `files` in their order and release the lease.

        Return "" on success, else an error message. Failures are retried for `PATIENCE_S`, except if another process
        has taken the lease.
        """
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._write({f"{self._at}/{name}": content for name, content in files.items()})
                lease.release(self._store, self._at, lease.owner_of(self._folder))
                return ""
            except LeaseHeld as error:  # another process has taken the lease; keep its files
                return str(error)
            except (StoreError, UserError, OSError) as error:
                if time.monotonic() > end:
                    return f"done, but it could not be copied: {error}"
                time.sleep(AGAIN_S)

    def _write(self, files: dict[str, bytes]) -> None:
        if time.monotonic() > self._renew:
            take_lease = lease.renew if self._renew else lease.acquire  # `renew` fails if the lease was taken over
            take_lease(self._store, self._at, lease.owner_of(self._folder))
            self._store.sweep(self._at)
            self._renew = time.monotonic() + lease.TTL_S / 2
        if files:
            self._store.put({path: redact_bytes(content) for path, content in files.items()}, message=self._message)
