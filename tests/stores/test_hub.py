"""Tests of `HubStore` with the real client: access, retries, lost responses, rate limits, concurrent commits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kit.errors import UserError
from kit.stores import StoreError, open_store
from kit.stores.hub import PAUSES_S, HubStore
from tests.stores.hub_server import OTHER_TOKEN, READ_TOKEN, WRITE_TOKEN, Fault, HubServer

URL = "hf://me/runs/lab"
BIG = bytes(range(256)) * 200


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def store(hub: HubServer, pauses: list[float]) -> HubStore:
    return HubStore(URL, write=True, sleep=pauses.append)


def test_new_repositories_are_private(store: HubStore, hub: HubServer) -> None:
    assert hub.repos["me/runs"].private


def test_a_repository_that_came_out_public_is_refused_before_any_upload(hub: HubServer) -> None:
    hub.make_public = True
    with pytest.raises(UserError, match="did not make it private"):
        open_store(URL, write=True)
    assert hub.repos["me/runs"].log == []


def test_one_put_is_one_commit_below_the_prefix(store: HubStore, hub: HubServer) -> None:
    store.put({f"r/{n}.safetensors": BIG + bytes([n]) for n in range(30)} | {"r/a.json": b"{}"}, message="hello")
    store.put({"r/a.json": b"[]"}, delete=["r/0.safetensors", "r/absent"])
    log = hub.repos["me/runs"].log
    assert len(log) == 2 and log[0][0] == "hello" and len(log[0][1]) == 31
    assert log[1][1:] == (["lab/r/a.json"], ["lab/r/0.safetensors"])


def test_nothing_new_is_no_commit(store: HubStore, hub: HubServer) -> None:
    for _ in range(2):
        store.put({"a.json": b"{}", "b.safetensors": BIG})
    assert len(hub.repos["me/runs"].log) == 1


@pytest.mark.parametrize(
    ("token", "url", "words"),
    [
        (None, URL, "needs a Hugging Face token"),
        ("hf_nonsense000000", URL, "does not accept this token"),
        (READ_TOKEN, URL, "read-only"),
        (OTHER_TOKEN, URL, "may not be written"),
        (WRITE_TOKEN, "hf://me", "cannot be parsed"),
        (WRITE_TOKEN, "hf://me/runs/../x", "refused as a name"),
    ],
)
def test_bad_access_is_one_sentence(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, token: str | None, url: str, words: str
) -> None:
    open_store(URL, write=True)
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    if token == OTHER_TOKEN:
        hub.repos["me/runs"].private = False
        store = open_store(url, write=True)
        with pytest.raises(UserError, match=words) as caught:
            store.put({"a.json": b"{}"})
    else:
        with pytest.raises(UserError, match=words) as caught:
            open_store(url, write=True)
    message = str(caught.value)
    assert "\n" not in message and "hf_" not in message and len(message) < 300


def test_reading_what_is_not_there_or_not_shared(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_store("hf://me/absent")
    open_store(URL, write=True)
    monkeypatch.setenv("HF_TOKEN", OTHER_TOKEN)
    with pytest.raises(UserError, match="does not exist, or"):
        open_store(URL)


@pytest.mark.parametrize("what", ["commit", "preupload", "batch", "upload", "tree", "resolve", "info"])
@pytest.mark.parametrize("fault", [Fault(status=500, times=2), Fault(cut=True)], ids=["500", "cut"])
def test_transient_errors_are_retried(store: HubStore, hub: HubServer, what: str, fault: Fault) -> None:
    store.put({"old.json": b"{}"})
    hub.fault(what, Fault(fault.status, cut=fault.cut, times=fault.times))
    store.put({"a.safetensors": BIG}, delete=["old.json"])
    assert store.read("a.safetensors") == BIG
    assert store.swap("lease.json", None, b"mine")
    assert list(store.list()) == ["a.safetensors", "lease.json"]
    assert hub.take(what) is None, "the fault never happened"
    assert len(hub.repos["me/runs"].log) == 3


def test_a_lasting_503_raises_a_transient_store_error(store: HubStore, hub: HubServer, pauses: list[float]) -> None:
    hub.fault("commit", Fault(status=503, times=99))
    with pytest.raises(StoreError, match="the Hub answered 503") as caught:
        store.put({"a.json": b"{}"})
    assert caught.value.transient and pauses == list(PAUSES_S)


@pytest.mark.parametrize("status", [504, 500])
def test_a_commit_whose_answer_was_lost_is_not_repeated(store: HubStore, hub: HubServer, status: int) -> None:
    store.put({"old.json": b"{}"})
    hub.fault("commit", Fault(status=status, after=True))
    store.put({"a.safetensors": BIG, "b.json": b"[]"}, delete=["old.json"])
    assert len(hub.repos["me/runs"].log) == 2
    assert hub.count("commit") == 2
    assert store.list() == {"a.safetensors": len(BIG), "b.json": 2}


def test_a_swap_whose_answer_was_lost_succeeds(store: HubStore, hub: HubServer) -> None:
    hub.fault("commit", Fault(status=504, after=True))
    assert store.swap("lease.json", None, b"mine")
    assert store.read("lease.json") == b"mine"


@pytest.mark.parametrize("what", ["commit", "preupload", "tree"])
def test_too_many_requests(store: HubStore, hub: HubServer, pauses: list[float], what: str) -> None:
    store.put({"old.json": b"{}"})
    hub.fault(what, Fault(status=429, headers={"Retry-After": "7"}))
    store.put({"a.json": b"{}"}, delete=["old.json"])
    assert pauses == [7.0]
    hub.fault(what, Fault(status=429, headers={"Retry-After": "1800"}))
    with pytest.raises(StoreError, match="too many requests") as caught:
        store.put({"b.json": b"{}"}, delete=["a.json"])
    assert caught.value.retry_after_s == 1800 and pauses == [7.0], "a long wait must be left to the caller"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", ["commit", "info", "tree", "upload", "whoami"])
def test_a_silent_hub_is_given_up_on(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, pauses: list[float], what: str
) -> None:
    monkeypatch.setenv("KIT_HUB_TIMEOUT_S", "0.1")
    store = HubStore(URL, write=True, sleep=pauses.append)
    store.put({"old.safetensors": BIG})
    hub.fault(what, Fault(stall=True, times=999))
    with pytest.raises((StoreError, UserError), match="does not answer"):
        if what in ("whoami", "create"):
            HubStore("hf://me/more", write=True, sleep=pauses.append)
        store.put({"a.safetensors": BIG[1:]}, delete=["old.safetensors"])
        store.swap("a.json", None, b"{}")


@pytest.fixture
def rival(store: HubStore, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """rival(path): another machine commits `path` once, between the read and the commit of the next `swap`."""

    def interfere(path: str) -> None:
        store.put({"lease.json": b"old"})
        read, rivals = HubStore.read_or_none, iter([path])

        def late(self: HubStore, name: str) -> bytes | None:
            found = read(self, name)
            if next(rivals, None):
                hub.repos["me/runs"].files[f"lab/{path}"] = b"theirs"
                hub.repos["me/runs"].log.append(("rival", [path], []))
            return found

        monkeypatch.setattr(HubStore, "read_or_none", late)

    return interfere


def test_swap_loses_to_a_commit_in_between(store: HubStore, rival: Callable[[str], None]) -> None:
    rival("lease.json")
    assert not store.swap("lease.json", b"old", b"mine")
    assert store.read("lease.json") == b"theirs"


def test_swap_survives_commits_to_other_files(store: HubStore, rival: Callable[[str], None]) -> None:
    rival("other.json")
    assert store.swap("lease.json", b"old", b"mine")
    assert store.read("lease.json") == b"mine"


def test_a_parallel_delete_is_no_trouble(store: HubStore, hub: HubServer) -> None:
    """Another process deletes the file between the listing and the commit of `put`."""
    store.put({"old.json": b"{}"})
    hub.fault("preupload", Fault(before=lambda: hub.repos["me/runs"].files.pop("lab/old.json")))
    store.put({"a.json": b"{}"}, delete=["old.json"])
    assert list(hub.repos["me/runs"].files) == ["lab/a.json"]


def test_the_default_interval_keeps_commits_below_64_an_hour(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIT_HUB_INTERVAL_S")
    assert 3600 / open_store(URL, write=True).min_interval_s < 64
