"""Lease of a run in a store: only the machine that holds the lease may write; it must renew the lease.

<run_name>/lease.json   {"version": 1, "owner", "host", "since", "expires"}    unix seconds
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.format.files import read_json, write_atomic
from kit.stores.base import Store, StoreError
from kit.stores.urls import open_store


def ttl_s(text: str | None) -> float:
    """Parse the value of KIT_LEASE_S, the duration of a lease in seconds; default: 600. Raises `UserError`."""
    try:
        if 0 < (seconds := float(text or 600)) < float("inf"):
            return seconds
    except ValueError:
        pass
    raise UserError(f"KIT_LEASE_S={text!r} must be a number of seconds, such as 600.")


TTL_S = ttl_s(os.environ.get("KIT_LEASE_S"))
"""Duration of a lease, s; a run stays locked that long after its machine dies. Renewed when half of it is over."""
FILE = "lease.json"


class LeaseHeld(UserError):
    """`UserError` for a run whose `lease` another machine holds."""

    def __init__(self, run_name: str, lease: Lease) -> None:
        owner = f"{lease.owner} on {lease.host} since {_time(lease.since)}, until {_time(lease.expires)}"
        super().__init__(f"run {run_name!r} belongs to {owner} unless it renews; stop it there, or wait until then.")
        self.lease = lease


@dataclass(frozen=True)
class Lease:
    """One owner's right to write a run, from `since` until `expires` (unix seconds)."""

    owner: str
    host: str
    since: float
    expires: float
    version: int = 1

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), indent=1).encode()


Clock = Callable[[], float]


def acquire(store: Store, run_name: str, owner: str, ttl_s: float = TTL_S, clock: Clock = time.time) -> Lease:
    """Acquire or extend the lease for `owner`. Raises `LeaseHeld` if another owner's lease has not expired."""
    for _ in range(3):
        (raw, stored), now = read(store, run_name), clock()
        current = stored if stored is not None and stored.expires > now else None
        if current is not None and current.owner != owner:
            raise LeaseHeld(run_name, current)
        lease = Lease(owner, socket.gethostname(), current.since if current else now, now + ttl_s)
        if store.swap(_path(run_name), raw, lease.to_bytes()):
            return lease
    raise StoreError(f"other machines change the lease of run {run_name!r} in {store.url} just now; try again")


def held_for(url: str | None, run_name: str, run_dir: Path, clock: Clock = time.time) -> float:
    """Return the seconds until another machine's lease of the run ends; 0 without such a lease.

    `url`: of the store. `run_dir`: this machine's copy of the run; its own lease does not count.
    """
    if url is None:
        return 0.0
    lease = _of_another(open_store(url), run_name, run_dir)
    return 0.0 if lease is None else max(0.0, lease.expires - clock())


def check_free(store: Store, run_name: str, run_dir: Path, clock: Clock = time.time) -> None:
    """Raise `LeaseHeld` if another machine's lease of the run has not expired. `run_dir` as in `held_for`."""
    lease = _of_another(store, run_name, run_dir)
    if lease is not None and lease.expires > clock():
        raise LeaseHeld(run_dir.name, lease)


def _of_another(store: Store, run_name: str, run_dir: Path) -> Lease | None:
    """Return the run's lease, perhaps expired, if another machine than that with `run_dir` took it; else None."""
    _, lease = read(store, run_name)
    return None if lease is None or lease.owner == known_owner(run_dir) else lease


def renew(store: Store, run_name: str, owner: str, ttl_s: float = TTL_S, clock: Clock = time.time) -> Lease:
    """Extend a lease. Raises `LeaseHeld` if another machine has taken it, even if that lease has expired."""
    _, lease = read(store, run_name)
    if lease is not None and lease.owner != owner:
        raise LeaseHeld(run_name, lease)
    return acquire(store, run_name, owner, ttl_s, clock)


def release(store: Store, run_name: str, owner: str, clock: Clock = time.time) -> None:
    """Expire the lease now, so that another machine need not wait. Does nothing if another machine owns it."""
    raw, lease = read(store, run_name)
    if lease is not None and lease.owner == owner and lease.expires > clock():
        store.swap(_path(run_name), raw, dataclasses.replace(lease, expires=clock()).to_bytes())


def read(store: Store, run_name: str) -> tuple[bytes | None, Lease | None]:
    """Return the lease file's bytes and the lease: (None, None) if missing, (bytes, None) if it cannot be parsed."""
    raw = store.read_or_none(_path(run_name))
    if raw is None:
        return None, None
    try:
        values: dict[str, Any] = json.loads(raw)
        owner, host = (str(values[name])[:100] for name in ("owner", "host"))
        return raw, Lease(owner, host, since=float(values["since"]), expires=float(values["expires"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return raw, None


def owner_of(run_dir: Path) -> str:
    """Return the name under which this copy of the run holds leases; create it in the file `.owner` if needed.

    The name stays the same after a crash. A copy moved to another machine or folder gets a new name.
    """
    if (known := known_owner(run_dir)) is not None:
        return known
    location = _location(run_dir)
    owner = f"{location['host'][:40]}-{secrets.token_hex(3)}"
    write_atomic(run_dir / ".owner", json.dumps({"owner": owner, **location}), durable=False)
    return owner


def known_owner(run_dir: Path) -> str | None:
    """Like `owner_of`, but return None instead of creating a name."""
    record = read_json(run_dir / ".owner")
    is_valid = isinstance(record, dict) and _location(run_dir).items() <= record.items() and "owner" in record
    return str(record["owner"]) if is_valid else None


def _location(run_dir: Path) -> dict[str, str]:
    return {"host": socket.gethostname(), "folder": str(run_dir.resolve())}


def _path(run_name: str) -> str:
    return f"{run_name}/{FILE}" if run_name else FILE


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(max(0.0, seconds), 4e9)))
