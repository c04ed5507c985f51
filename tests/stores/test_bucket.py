"""Tests of `BucketStore`: conditional writes, lost responses, short writes, file systems with folders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.stores import StoreError, open_store
from kit.stores.bucket import BucketStore

Write = Callable[..., Awaitable[Any]]
"""write(path, data, **options): the method `_pipe_file` of s3fs."""
Meddle = Callable[[Write, str, bytes, dict[str, Any]], Awaitable[None]]
"""meddle(write, path, data, options): replaces a write, and may call the original `write`."""


@pytest.fixture
def bucket(s3: str) -> Iterator[Callable[[Meddle], BucketStore]]:
    """bucket(meddle): a store whose file system, a subclass of s3fs, calls `meddle` to write a .json file."""
    fsspec, s3fs = pytest.importorskip("fsspec"), pytest.importorskip("s3fs")

    def opened(meddle: Meddle) -> BucketStore:
        class Meddled(s3fs.S3FileSystem):  # type: ignore[misc]
            async def _pipe_file(self, path: str, data: bytes, *args: Any, **options: Any) -> None:
                write = super()._pipe_file
                if path.endswith(".json"):
                    await meddle(write, path, data, options)
                else:
                    await write(path, data, *args, **options)

        fsspec.register_implementation("s3a", Meddled, clobber=True)
        store = open_store(s3.replace("s3://", "s3a://"), write=True)
        assert isinstance(store, BucketStore)
        return store

    yield opened
    fsspec.register_implementation("s3a", s3fs.S3FileSystem, clobber=True)


@pytest.mark.parametrize("old", [None, b"old"])
def test_swap_loses_to_a_write_in_between(
    bucket: Callable[[Meddle], BucketStore], s3: str, old: bytes | None
) -> None:
    """Another client writes after the last read of `swap`, so only the server's conditional write can refuse."""

    async def late(write: Write, path: str, data: bytes, options: dict[str, Any]) -> None:
        await write(path, b"theirs")
        await write(path, data, **options)

    store = bucket(late)
    if old is not None:
        open_store(s3, write=True).put({"lease.json": old})
    assert not store.swap("lease.json", old, b"mine")
    assert store.read("lease.json") == b"theirs"


def test_a_swap_whose_answer_was_lost_succeeds(bucket: Callable[[Meddle], BucketStore]) -> None:
    async def silent(write: Write, path: str, data: bytes, options: dict[str, Any]) -> None:
        await write(path, data, **options)
        raise TimeoutError("no answer")

    assert bucket(silent).swap("lease.json", None, b"mine")


def test_a_short_write_is_noticed(bucket: Callable[[Meddle], BucketStore]) -> None:
    async def short(write: Write, path: str, data: bytes, options: dict[str, Any]) -> None:
        await write(path, data[:-1], **options)

    store = bucket(short)
    with pytest.raises(StoreError, match=r"has 2 bytes, 3 were written"):
        store.put({"a.json": b"[1]"})


def test_an_fsspec_file_system_with_folders(tmp_path: Path) -> None:
    """With local://, missing folders are created before a file is written."""
    store = open_store(f"local://{tmp_path}/deep/store", write=True)
    assert isinstance(store, BucketStore)
    store.put({"r/a/b.json": b"{}"})
    assert store.list() == {"r/a/b.json": 2} and (tmp_path / "deep/store/r/a/b.json").read_bytes() == b"{}"
    assert store.swap("r/lease.json", None, b"1") and not store.swap("r/lease.json", None, b"2")
