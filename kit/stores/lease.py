"""Who may write a run: one machine at a time, by a lease in the store that must be renewed.

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

TTL_S = float(os.environ.get("KIT_LEASE_S", 600.0))
"""How long a machine that vanished still holds its run. Renewed when half of it is over."""
FILE = "lease.json"


class LeaseHeld(UserError):
    """Another machine owns the run. `lease` says who, since when and until when."""

    def __init__(self, run_name: str, lease: Lease) -> None:
        who = f"{lease.owner} on {lease.host} since {_time(lease.since)}, until {_time(lease.expires)}"
        super().__init__(f"run {run_name!r} belongs to {who} unless it renews; stop it there, or wait until then.")
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
    """Take the run, or keep it if it is `owner`'s already. Raises `LeaseHeld` if another's lease has not expired."""
    for _ in range(3):
        (raw, found), now = read(store, run_name), clock()
        held = found if found is not None and found.expires > now else None
        if held is not None and held.owner != owner:
            raise LeaseHeld(run_name, held)
        lease = Lease(owner, socket.gethostname(), held.since if held else now, now + ttl_s)
        if store.swap(_path(run_name), raw, lease.to_bytes()):
            return lease
    raise StoreError(f"the lease of run {run_name!r} in {store.url} changes while it is being taken")


def held_for(url: str | None, run_name: str, run_dir: Path, clock: Clock = time.time) -> float:
    """For how many seconds another machine than that of `run_dir` still has the run in the store at `url`."""
    if url is None:
        return 0.0
    _, found = read(open_store(url), run_name)
    return 0.0 if found is None or found.owner == known_owner(run_dir) else max(0.0, found.expires - clock())


def renew(store: Store, run_name: str, owner: str, ttl_s: float = TTL_S, clock: Clock = time.time) -> Lease:
    """Extend a lease. Raises `LeaseHeld` if another took it meanwhile, expired again or not: the run has moved on."""
    _, found = read(store, run_name)
    if found is not None and found.owner != owner:
        raise LeaseHeld(run_name, found)
    return acquire(store, run_name, owner, ttl_s, clock)


def release(store: Store, run_name: str, owner: str, clock: Clock = time.time) -> None:
    """Let go of the run, so that another machine need not wait. Does nothing if it is another's by now."""
    raw, found = read(store, run_name)
    if found is not None and found.owner == owner and found.expires > clock():
        store.swap(_path(run_name), raw, dataclasses.replace(found, expires=clock()).to_bytes())


def read(store: Store, run_name: str) -> tuple[bytes | None, Lease | None]:
    """The lease file and what it says: (None, None) if there is none, (bytes, None) if it says nothing sensible."""
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
    """This copy of the run on this machine, by name: the same after a crash, another after a move. Kept in `.owner`."""
    if (known := known_owner(run_dir)) is not None:
        return known
    here = _here(run_dir)
    owner = f"{here['host'][:40]}-{secrets.token_hex(3)}"
    write_atomic(run_dir / ".owner", json.dumps({"owner": owner, **here}), durable=False)
    return owner


def known_owner(run_dir: Path) -> str | None:
    """The same for who only looks; None of a copy that never had a name."""
    kept = read_json(run_dir / ".owner")
    named = isinstance(kept, dict) and _here(run_dir).items() <= kept.items() and "owner" in kept
    return str(kept["owner"]) if named else None


def _here(run_dir: Path) -> dict[str, str]:
    return {"host": socket.gethostname(), "folder": str(run_dir.resolve())}


def _path(run_name: str) -> str:
    return f"{run_name}/{FILE}" if run_name else FILE


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(max(0.0, seconds), 4e9)))
