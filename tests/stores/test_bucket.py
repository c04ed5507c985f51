"""Object stores: what the server refuses, what it takes only in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.stores import StoreError, open_store
from kit.stores.bucket import BucketStore


@pytest.fixture
def bucket(s3: str) -> BucketStore:
    store = open_store(s3, write=True)
    assert isinstance(store, BucketStore)
    return store


@pytest.mark.parametrize("old", [None, b"old"])
def test_swap_loses_to_a_write_in_between(
    bucket: BucketStore, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    """The rival comes after our last look: only the server's own condition can refuse ours."""
    if old is not None:
        bucket.put({"lease.json": old})
    write = bucket._fs.pipe_file

    def late(path: str, data: bytes, **options: Any) -> None:
        monkeypatch.undo()
        write(path, b"theirs")
        write(path, data, **options)

    monkeypatch.setattr(bucket._fs, "pipe_file", late)
    assert not bucket.swap("lease.json", old, b"mine")
    assert bucket.read("lease.json") == b"theirs"


def test_a_swap_whose_answer_was_lost_counts(bucket: BucketStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = bucket._fs.pipe_file

    def silent(path: str, data: bytes, **options: Any) -> None:
        write(path, data, **options)
        raise TimeoutError("no answer")

    monkeypatch.setattr(bucket._fs, "pipe_file", silent)
    assert bucket.swap("lease.json", None, b"mine")


def test_a_short_write_is_noticed(bucket: BucketStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write = bucket._fs.pipe_file
    monkeypatch.setattr(bucket._fs, "pipe_file", lambda path, data: write(path, data[:-1]))
    with pytest.raises(StoreError, match=r"has 2 bytes, 3 were written"):
        bucket.put({"a.json": b"[1]"})


def test_any_file_system_of_fsspec_will_do(tmp_path: Path) -> None:
    """A scheme with folders, which must be made first."""
    store = open_store(f"local://{tmp_path}/deep/store", write=True)
    assert isinstance(store, BucketStore)
    store.put({"r/a/b.json": b"{}"})
    assert store.list() == {"r/a/b.json": 2} and (tmp_path / "deep/store/r/a/b.json").read_bytes() == b"{}"
    assert store.swap("r/lease.json", None, b"1") and not store.swap("r/lease.json", None, b"2")
