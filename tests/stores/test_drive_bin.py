"""Google Drive keeps what is deleted or replaced in its bin, where it still counts: kit leaves nothing there.

In place of the bin, every file of the store gets a hard link before each pass: whoever has only that link left is what
Drive would have put into the bin.
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
    """What Drive's bin would hold of the files that were ever seen below `mount`."""

    def __init__(self, mount: Path) -> None:
        self.mount, self.links = mount, mount.with_name("links")
        self.links.mkdir()

    def watch(self) -> None:
        for path in self.mount.rglob("*"):
            link = self.links / str(path.stat().st_ino)
            if path.is_file() and not link.exists():
                os.link(path, link)

    def holds(self) -> list[int]:
        """Sizes of what is in it."""
        return [link.stat().st_size for link in self.links.iterdir() if link.stat().st_nlink == 1]


@pytest.mark.parametrize("spelled", ["drive:lab/runs", "{}/lab/runs"])
def test_what_is_removed_or_replaced_leaves_nothing_in_the_bin(tmp_path: Path, mount: Path, spelled: str) -> None:
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


def test_elsewhere_files_are_replaced_at_once(tmp_path: Path) -> None:
    """Nobody sees a file empty where there is no bin."""
    (tmp_path / "store").mkdir()
    store, seen = open_store(str(tmp_path / "store"), write=True), Bin(tmp_path / "store")
    store.put({"a.json": b"old"})
    seen.watch()
    store.put({"a.json": b"new"})
    assert seen.holds() == [3] and store.read("a.json") == b"new"


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Whether a child process that does `work` was killed at its `number`-th rename, truncation or removal."""
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
def test_a_kill_at_any_moment_leaves_what_was_verified(tmp_path: Path, mount: Path, every: int) -> None:
    """Whatever is read afterwards is whole, the texts too, and what is left of a checkpoint does not look like one."""
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
        assert not [*mount.joinpath(str(number)).rglob(".kit-*")], "what the one before left is swept"
        if not killed:
            break
    assert number > 30, "there were many moments"


def checkpoints(store: Store) -> None:
    """Of each whose manifest is there and can be read, every file is there with its size."""
    held = store.list("reach-1")
    for path in [path for path in held if path.startswith("reach-1/checkpoints/") and path.endswith("manifest.json")]:
        try:
            manifest = json.loads(store.read(path))
        except ValueError:
            assert held[path] == 0, "it was emptied, and is no manifest any more"
            continue
        for name, entry in manifest["files"].items():
            assert held.get(f"{path.rpartition('/')[0]}/{name}") == entry["size"], (path, name)


def test_verify_says_what_the_bin_may_hold(mount: Path) -> None:
    (said,) = checks.check_drive(machine())
    assert said.state == "ok" and "files that other programs deleted" in said.message
    mount.rmdir()
    assert list(checks.check_drive(machine())) == []
