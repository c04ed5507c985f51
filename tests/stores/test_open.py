"""Tests of `open_store`: a bad URL raises a one-sentence error; S3; folders on Drive, dead mounts, symlinks."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from kit.errors import UserError
from kit.stores import StoreError, bucket, check_new, open_store
from kit.stores.folder import DirectoryStore


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty"),
        ("a\nb", "not one line"),
        ("ftpx://host/x", "unknown scheme"),
        ("drives:runs", "unknown scheme"),
        ("drive:", "names no folder"),
        ("drive:../x", "refused as a name"),
        ("drive:runs", "kit.ui.connect"),
        ("/no/such/place", "does not exist"),
        ("file:///no/such/place", "does not exist"),
        ("hf://me", "cannot be parsed"),
        ("hf://", "cannot be parsed"),
        ("s3://key:secret@bucket/x", "leave them out"),
        ("s3://", "names no bucket"),
    ],
)
@pytest.mark.parametrize("write", [True, False])
def test_a_bad_url_raises_one_sentence(url: str, words: str, write: bool) -> None:
    with pytest.raises(UserError, match=words) as caught:
        open_store(url, write)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and "secret" not in message


def test_a_missing_s3_bucket_is_named(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for write in (True, False):
        with pytest.raises(UserError, match="no-such-bucket"):
            open_store("s3://no-such-bucket/x", write)


def test_s3_without_credentials(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match="redentials"):
        open_store(s3, write=True)
    s3fs.S3FileSystem.clear_instance_cache()


def test_s3_server_that_does_not_answer(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match="cannot be written"):
        open_store(s3, write=True)
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_drive_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = tmp_path / "MyDrive"
    monkeypatch.setenv("KIT_DRIVE_ROOT", str(mount))
    with pytest.raises(UserError, match=r"kit\.ui\.connect"):
        open_store("drive:robots/runs", write=True)
    mount.mkdir()
    store = open_store("drive:robots/runs", write=True)
    store.put({"a.json": b"{}"})
    assert (mount / "robots/runs/a.json").read_bytes() == b"{}"
    with pytest.raises(UserError, match="does not exist"):
        open_store("drive:other")


def test_a_parent_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="create or mount it first"):
        open_store(tmp_path / "volume/store", write=True)
    assert not (tmp_path / "volume").exists()


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        open_store(tmp_path / "file", write=True)


def test_a_read_only_folder_says_so() -> None:
    with pytest.raises(UserError, match=r"cannot be (written|reached)"):
        open_store("/proc/self", write=True)


def test_a_mount_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.stores.urls.OPEN_S", 0.05)
    stuck = threading.Event()
    monkeypatch.setattr("kit.stores.folder._locate", lambda url, write: stuck.wait(20))
    with pytest.raises(UserError, match=r"did not answer within 0 s; is it mounted"):
        open_store(tmp_path, write=True)
    stuck.set()


def test_a_mount_that_dies_before_the_look_for_a_run_of_this_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stuck = open_store(tmp_path), threading.Event()
    monkeypatch.setattr("kit.stores.urls.OPEN_S", 0.05)
    monkeypatch.setattr(store, "list", lambda *_: stuck.wait(20) and {})
    with pytest.raises(UserError, match=r"did not answer within 0 s; is it mounted"):
        check_new(store, tmp_path / "run")
    stuck.set()


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", write=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_bytes(b"secret")
    (tmp_path / "store/link.json").symlink_to(outside / "secret.json")
    (tmp_path / "store/folder").symlink_to(outside)
    os.mkfifo(tmp_path / "store/pipe.json")
    assert store.list() == {}
    for path in ("link.json", "folder/secret.json", "pipe.json"):
        with pytest.raises((StoreError, UserError)):
            store.read(path)
    with pytest.raises(UserError, match="symlink"):
        store.put({"folder/new.json": b"x"})
    assert [p.name for p in outside.iterdir()] == ["secret.json"]


def test_a_put_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "store", write=True)
    store.put({"a.json": b"old"})

    def refuse(handle: int) -> None:
        raise OSError(107, "Transport endpoint is not connected")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreError, match="not connected"):
            store.put({"a.json": b"new"})
    assert [p.name for p in (tmp_path / "store").iterdir()] == ["a.json"] and store.read("a.json") == b"old"


def test_swap_waits_for_the_lock_then_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    store = DirectoryStore(str(tmp_path / "store"), write=True)
    store.put({"a.json": b"old"})
    with (tmp_path / "store/.a.json.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="being changed by another process"):
            store.swap("a.json", b"old", b"new")
    assert len(waited) >= 10
    assert store.swap("a.json", b"old", b"new"), "a released lock must not block the next swap"


def test_without_s3fs_the_version_that_fits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "find_spec", lambda name: None)
    monkeypatch.setattr("fsspec.__version__", "2025.3.0")
    with pytest.raises(UserError, match=r"store='s3://robots/runs' needs s3fs; pip install 's3fs==2025.3.0'"):
        open_store("s3://robots/runs")
