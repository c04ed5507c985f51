"""One copier for each run: who is ended, who is waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.stores import StoreError, SyncHandle, copier_lock

Wait = Callable[..., None]


def test_two_copiers_of_one_run_become_one(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    """A session that follows another at once replaces the copier the other left behind."""
    first = started(run, str(tmp_path / "store"))
    waiter(lambda: first.state().get("pid") == first._process.pid)
    first._tries = 0  # as if its session had been killed
    first._stopping.set()
    second = started(run, str(tmp_path / "store"))
    waiter(lambda: second.state().get("pid") == second._process.pid)
    assert first._process.wait(10) == -signal.SIGKILL
    assert second.stop(20)["state"] == "ok"


COPIER_LIKE = ["-m", "kit.stores"]


@pytest.mark.parametrize(
    ("change", "words", "ended"),
    [
        ({}, COPIER_LIKE, True),
        ({}, [], False),
        ({"host": "elsewhere"}, COPIER_LIKE, False),
        ({"boot": "another"}, COPIER_LIKE, False),
        ({"started": 1.0}, COPIER_LIKE, False),
        ({"pid": 2**22}, COPIER_LIKE, False),
        (None, COPIER_LIKE, False),
    ],
    ids=["ours", "no copier", "host", "boot", "start", "gone", "bare number"],
)
def test_only_a_copier_of_this_very_machine_is_ended(
    tmp_path: Path, change: dict[str, Any] | None, words: list[str], ended: bool
) -> None:
    """On a folder shared between hosts or containers, the number in the lock may be a stranger's here."""
    lock = tmp_path / ".sync.lock"
    program = "print(flush=True); import time; time.sleep(60)"
    with (
        subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE) as stranger,
        lock.open("a+") as theirs,
        lock.open("a+") as mine,
    ):
        assert stranger.stdout and stranger.stdout.readline()
        copier_lock.take(theirs)
        holder = str(stranger.pid) if change is None else json.dumps({**copier_lock.identity(stranger.pid), **change})
        lock.write_text(holder)
        try:
            words = "an earlier session" if ended else "another machine's copier has the run"
            with pytest.raises(StoreError, match=words):  # not even a dead one's lock is taken while it is held
                copier_lock.take(mine)
            if ended:
                assert stranger.wait(10) == -signal.SIGKILL
            else:
                assert stranger.poll() is None
            theirs.close()
            copier_lock.take(mine)
            assert json.loads(lock.read_text()) == copier_lock.identity(os.getpid())
        finally:
            stranger.kill()


def test_another_machines_copier_is_named_and_waited_for(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    with (run / ".sync.lock").open("a+") as theirs:
        copier_lock.take(theirs)
        (run / ".sync.lock").write_text(json.dumps({**copier_lock.identity(os.getpid()), "host": "elsewhere"}))
        handle = started(run, str(tmp_path / "store"))
        waiter(lambda: handle.state()["state"] == "failing")
        said = f"another machine's copier has the run (process {os.getpid()} on elsewhere)"
        assert handle.state()["error"].startswith(said) and not (tmp_path / "store/reach-1/latest.json").exists()
    waiter(lambda: handle.state()["state"] == "ok")
    assert handle.stop(20) | {"step": 200, "error": None, "failures": 0} == handle.state()
