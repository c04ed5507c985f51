"""Tests of the `Store` interface on each kind of store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kit.errors import UserError
from kit.format.manifest import Refused
from kit.stores import MissingFile, Store, StoreError, open_store
from tests.stores.conftest import KINDS

pytestmark = pytest.mark.parametrize("store_url", KINDS, indirect=True)


def test_put_list_read_delete(store: Store, tmp_path: Path) -> None:
    big = bytes(range(256)) * 5000
    (tmp_path / "big").write_bytes(big)
    store.put({"a/one.json": b"{}", "a/b/big.safetensors": tmp_path / "big", "empty.json": b""}, message="first")
    assert store.list() == {"a/one.json": 2, "a/b/big.safetensors": len(big), "empty.json": 0}
    assert store.list("a/b") == {"a/b/big.safetensors": len(big)}
    assert store.list("nothing") == {}
    assert store.read("a/one.json") == b"{}"
    assert store.read("empty.json") == b""
    assert store.get("a/b/big.safetensors", tmp_path / "back") == hashlib.sha256(big).hexdigest()
    assert (tmp_path / "back").read_bytes() == big
    assert store.get("a/b/big.safetensors", None) == hashlib.sha256(big).hexdigest()
    store.put({"a/one.json": b"[1]"}, delete=["a/b/big.safetensors", "never/was"])
    assert store.list() == {"a/one.json": 3, "empty.json": 0}
    assert store.read("a/one.json") == b"[1]"
    store.put({}, delete=["a/one.json", "a/one.json", "empty.json"])
    assert store.list() == {}


def test_prefixes_do_not_leak(store: Store) -> None:
    store.put({"run/a.json": b"1", "run-2/a.json": b"2"})
    assert store.list("run") == {"run/a.json": 1}


def test_missing_and_too_large(store: Store, tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        store.read("absent.json")
    store.put({"long.json": b"x" * 5000})
    with pytest.raises(StoreError, match=r"larger than 4,999 bytes"):
        store.read("long.json", 4999)
    with pytest.raises(StoreError, match="larger"):
        store.get("long.json", tmp_path / "local", 100)
    assert len(store.read("long.json", 5000)) == 5000


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../out", "a\\b", "", ".hidden", "a//b", "c:d"])
def test_unsafe_paths_are_refused(store: Store, path: str) -> None:
    with pytest.raises((Refused, UserError)):
        store.put({path: b"x"})
    with pytest.raises((Refused, UserError)):
        store.read(path)


def test_swap_takes_only_what_it_expects(store: Store) -> None:
    assert store.swap("lease.json", None, b"first")
    assert not store.swap("lease.json", None, b"second")
    assert not store.swap("lease.json", b"other", b"second")
    assert store.read("lease.json") == b"first"
    assert store.swap("lease.json", b"first", b"second")
    assert store.read("lease.json") == b"second"


def test_reading_needs_no_writing(store: Store, store_url: str) -> None:
    store.put({"a.json": b"1"})
    before = store.list()
    assert open_store(store_url).list() == before
