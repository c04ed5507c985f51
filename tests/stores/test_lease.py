"""Tests of leases: acquire, renew, expire, release, malformed lease files, concurrent writers, owner names."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from kit.errors import UserError
from kit.stores import LeaseHeld, Store, lease, open_store
from tests.stores.conftest import KINDS, SHARED, Clock

every_store = pytest.mark.parametrize("store_url", KINDS, indirect=True)
every_shared_store = pytest.mark.parametrize("store_url", SHARED, indirect=True)


@every_store
def test_a_held_lease_names_its_owner_and_times(store: Store, clock: Clock) -> None:
    mine = lease.acquire(store, "r", "me", 600, clock)
    clock.now += 60
    with pytest.raises(
        LeaseHeld, match=rf"'r' belongs to me on {mine.host} since 2023-11-14 22:13 UTC, until 2023-11-14 22:23"
    ):
        lease.acquire(store, "r", "rival", 600, clock)
    lease.acquire(store, "another-run", "rival", 600, clock)


@every_store
def test_an_expired_lease_is_taken_over_and_cannot_be_renewed(store: Store, clock: Clock) -> None:
    lease.acquire(store, "r", "me", 600, clock)
    clock.now += 601
    taken = lease.acquire(store, "r", "rival", 600, clock)
    assert (taken.owner, taken.since) == ("rival", clock.now)
    clock.now += 601
    with pytest.raises(LeaseHeld, match="rival"):
        lease.renew(store, "r", "me", 600, clock)


def test_renewing_keeps_since_and_moves_expires(store: Store, clock: Clock) -> None:
    first = lease.acquire(store, "r", "me", 600, clock)
    clock.now += 300
    second = lease.renew(store, "r", "me", 600, clock)
    assert (second.since, second.expires) == (first.since, clock.now + 600)
    assert lease.acquire(store, "r", "me", 600, clock).since == first.since, "an owner may return after a crash"


def test_a_released_lease_is_free_at_once_and_only_the_owner_can_release(store: Store, clock: Clock) -> None:
    lease.acquire(store, "r", "me", 600, clock)
    lease.release(store, "r", "rival", clock)
    with pytest.raises(LeaseHeld):
        lease.acquire(store, "r", "rival", 600, clock)
    lease.release(store, "r", "me", clock)
    lease.acquire(store, "r", "rival", 600, clock)
    lease.release(store, "r", "me", clock)
    assert lease.read(store, "r")[1] == lease.Lease("rival", lease.read(store, "r")[1].host, clock.now, clock.now + 600)  # type: ignore[union-attr]


@pytest.mark.parametrize("expires", [1e300, float("inf"), float("nan"), -1e300])
def test_a_lease_with_an_odd_time_is_no_crash(store: Store, clock: Clock, expires: float) -> None:
    odd = json.dumps({"owner": "rival", "host": "x", "since": expires, "expires": expires})
    store.put({"r/lease.json": odd.encode()})
    if expires > clock.now:
        with pytest.raises(LeaseHeld, match="belongs to rival on x since 2096-10-02 07:06 UTC"):
            lease.acquire(store, "r", "me", 600, clock)
    else:
        lease.acquire(store, "r", "me", 600, clock)


@pytest.mark.parametrize("raw", [b"", b"{}", b"not json", b"[]", b'{"owner": 1}', b"\xff", b"[" * 5000])
def test_a_malformed_lease_is_replaced(store: Store, clock: Clock, raw: bytes) -> None:
    store.put({"r/lease.json": raw})
    lease.acquire(store, "r", "me", 600, clock)
    assert json.loads(store.read("r/lease.json"))["owner"] == "me"


def test_a_duration_that_is_no_number_is_refused_in_a_sentence() -> None:
    assert (lease.ttl_s(None), lease.ttl_s("6.5")) == (600, 6.5)
    for text in ("abc", "0", "-1", "inf", "nan"):
        with pytest.raises(UserError, match=f"KIT_LEASE_S='{text}' must be a number of seconds, such as 600"):
            lease.ttl_s(text)


@every_shared_store
def test_of_concurrent_writers_one_gets_the_lease(store_url: str, store: Store) -> None:
    """Four threads with a store object each acquire at once, three times. Not for memory://: its swap is not atomic."""
    for turn in range(3):
        stores = [open_store(store_url, write=True) for _ in range(4)]
        gate, won = threading.Barrier(4), []

        def try_it(number: int, turn: int = turn, stores: list[Store] = stores, gate: threading.Barrier = gate,
                   won: list[int] = won) -> None:  # fmt: skip
            gate.wait()
            try:
                lease.acquire(stores[number], f"r{turn}", f"machine-{number}")
                won.append(number)
            except Exception:
                pass

        threads = [threading.Thread(target=try_it, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holder = lease.read(store, f"r{turn}")[1]
        assert holder is not None and won == [int(holder.owner.removeprefix("machine-"))]


def test_a_moved_run_gets_a_new_owner_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    first = lease.owner_of(tmp_path / "a")
    assert lease.owner_of(tmp_path / "a") == first
    (tmp_path / "a").rename(tmp_path / "b")
    moved = lease.owner_of(tmp_path / "b")
    assert moved != first
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert lease.owner_of(tmp_path / "b") not in (first, moved)
