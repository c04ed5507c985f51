"""Tests of `DirectoryStore` on Google Drive: no bytes left in Drive's bin, kills at any moment, `check_drive`.

Drive moves deleted and replaced files to its bin, where they still use up the quota. `Bin` simulates it with a second
hard link to every file of the store: a file of which only this link is left would be in Drive's bin.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.machine import checks
from kit.stores import Store, open_store, pull
from kit.stores.copier import Copier
from tests.machine.test_info import machine
from tests.stores.fabricate import add_checkpoint, content, make_run, set_status, write_checkpoint

KILLED = 9


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "drive"
    place.mkdir()
    monkeypatch.setenv("KIT_DRIVE_ROOT", str(place))
    return place


class Bin:
    """Simulated bin of a Drive mount: files that `watch` saw below `mount`, deleted or replaced since."""

    def __init__(self, mount: Path) -> None:
        self.mount, self.links = mount, mount.with_name("links")
        self.links.mkdir()

    def watch(self) -> None:
        for path in self.mount.rglob("*"):
            link = self.links / str(path.stat().st_ino)
            if path.is_file() and not link.exists():
                os.link(path, link)

    def holds(self) -> list[int]:
        """Return the size in bytes of each file in the bin."""
        return [link.stat().st_size for link in self.links.iterdir() if link.stat().st_nlink == 1]


@pytest.mark.parametrize("spelled", ["drive:lab/runs", "{}/lab/runs"])
def test_deleted_and_replaced_files_leave_no_bytes_in_the_bin(tmp_path: Path, mount: Path, spelled: str) -> None:
    run, seen = make_run(tmp_path / "runs", steps=(100,), replay=True), Bin(mount)
    (mount / "lab").mkdir()
    store = open_store(spelled.format(mount), write=True)
    copier = Copier(run, store, "me")
    for step in (200, 300, 400, 500):
        write_checkpoint(run / "best", step)
        copier.run_pass(final=True)
        seen.watch()
        add_checkpoint(run, step, replay=True)
    copier.run_pass(final=True)
    held = store.list("reach-1")
    assert {path.split("/")[2] for path in held if path.startswith("reach-1/checkpoints/")} == {
        "step_000000400", "step_000000500",
    }  # fmt: skip
    found = seen.holds()
    assert len(found) > 20 and sum(found) == 0, found
    assert not [path for path in mount.rglob(".kit-*")]
    assert content(pull(store, None, tmp_path / "back")) == content(run)


def test_outside_drive_files_are_replaced_without_truncation(tmp_path: Path) -> None:
    """Without a bin, the old file is not truncated, so no reader sees an empty file."""
    (tmp_path / "store").mkdir()
    store, seen = open_store(str(tmp_path / "store"), write=True), Bin(tmp_path / "store")
    store.put({"a.json": b"old"})
    seen.watch()
    store.put({"a.json": b"new"})
    assert seen.holds() == [3] and store.read("a.json") == b"new"


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child process that exits at its `number`-th rename, truncation or removal.

    Return whether it did: False if it made fewer of these calls.
    """
    child = os.fork()
    if child == 0:
        calls = itertools.count(1)

        def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
            def guard(*args: Any, **options: Any) -> Any:
                if next(calls) == number:
                    os._exit(KILLED)
                return call(*args, **options)

            return guard

        for name in ("rename", "replace", "ftruncate", "unlink"):
            setattr(os, name, guarded(getattr(os, name)))
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED)
    return code == KILLED


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.storm)])
def test_a_kill_at_any_moment_leaves_a_verified_checkpoint(tmp_path: Path, mount: Path, every: int) -> None:
    """After the kill, a pull gets an intact checkpoint and texts; a partly deleted checkpoint has no valid manifest."""
    for number in itertools.count(1, every):
        place = tmp_path / str(number)
        run, store = make_run(place, steps=(100, 200), replay=True), open_store(f"drive:{number}", write=True)
        for step in (200, 300):
            Copier(run, store, "me").run_pass(final=True)
            add_checkpoint(run, step + 100, replay=True)
        set_status(run, step=400, state="interrupted")
        killed = killed_at(number, lambda run=run, store=store: Copier(run, store, "me").run_pass(final=True))  # type: ignore[misc]
        seen = open_store(f"drive:{number}")
        checkpoints(seen)
        back = pull(seen, None, place / "after")
        newest = int(sorted((back / "checkpoints").iterdir())[-1].name.removeprefix("step_"))
        pointer = json.loads(seen.read("reach-1/latest.json"))["step"]
        assert newest >= pointer and newest in (300, 400)
        whole = content(run, newest)
        assert {**content(back, newest), "metrics.jsonl": b""} == {**whole, "metrics.jsonl": b""}
        assert (back / "metrics.jsonl").read_bytes().count(b"\n") >= newest // 100
        Copier(run, open_store(f"drive:{number}", write=True), "me").run_pass(final=True)
        assert content(pull(seen, None, place / "last")) == content(run)
        assert not [*mount.joinpath(str(number)).rglob(".kit-*")], "temporary files of the killed copier are left"
        if not killed:
            break
    assert number > 30, "too few calls at which to kill the copier"


def checkpoints(store: Store) -> None:
    """Check that the store has all files of each checkpoint with a readable manifest, in the listed sizes."""
    held = store.list("reach-1")
    for path in [path for path in held if path.startswith("reach-1/checkpoints/") and path.endswith("manifest.json")]:
        try:
            manifest = json.loads(store.read(path))
        except ValueError:
            assert held[path] == 0, "an unreadable manifest must be a truncated one"
            continue
        for name, entry in manifest["files"].items():
            assert held.get(f"{path.rpartition('/')[0]}/{name}") == entry["size"], (path, name)


def test_check_drive_mentions_the_bin(mount: Path) -> None:
    (said,) = checks.check_drive(machine())
    assert said.state == "ok" and "files that other programs deleted" in said.message
    mount.rmdir()
    assert list(checks.check_drive(machine())) == []
