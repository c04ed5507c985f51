"""Tests of the copier process under faults: failing fsync, a dead mount, SIGKILL at any system call."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from kit.stores import open_store, pull
from kit.stores.copier import Copier
from tests.stores.dead_mount import DeadMount
from tests.stores.fabricate import add_checkpoint, content, make_run, read_state

Wait = Callable[..., None]


STRACE = shutil.which("strace")


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize(
    ("inject", "words"),
    [
        ("fsync:error=ENOTCONN:when=4+", "Transport endpoint is not connected"),
        ("fsync:error=EIO:when=4+", "Input/output error"),
        ("fsync:error=ENOSPC:when=4+", "No space left on device"),
    ],
    ids=["vanishes", "breaks", "full"],
)
def test_a_real_folder_fails_in_the_middle(run: Path, tmp_path: Path, waiter: Wait, inject: str, words: str) -> None:
    """strace makes every fsync fail, from the fourth on."""
    url = str(tmp_path / "store")
    probe = subprocess.run([str(STRACE), "-f", "-o", "/dev/null", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("strace may not trace here")
    with copying(run, url, "-e", f"inject={inject}", stdin=subprocess.PIPE):
        waiter(lambda: read_state(run)["state"] == "failing")
        state = read_state(run)
    assert words in state["error"]
    assert not list((tmp_path / "store").rglob("latest.json"))
    with copying(run, url) as healthy:
        assert healthy.wait(200) == 0
    assert content(pull(open_store(url), None, tmp_path / "back")) == content(run)


PROCESS = ["-m", "kit.stores"]
PASS = [
    "-c",
    "import sys, pathlib; from kit.stores import copier, open_store; "
    "copier.Copier(pathlib.Path(sys.argv[1]), open_store(sys.argv[2], write=True), 'me').run_pass(final=True)",
]


@contextlib.contextmanager
def copying(
    run: Path, url: str, *inject: str, stdin: int = subprocess.DEVNULL, program: list[str] = PROCESS
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a copier process, under strace if `inject` is given; kill it in the end.

    With stdin=DEVNULL it copies everything and ends; with a pipe it keeps running.
    """
    prefix = [str(STRACE), "-f", "-o", "/dev/null", *inject] if inject else []
    command = [*prefix, sys.executable, *program, str(run), url, "me"]
    with subprocess.Popen(command, stdin=stdin, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_dead_mount_is_reported_until_it_answers(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiter: Wait
) -> None:
    """A process that accesses the mount blocks in the kernel, and even SIGKILL does not end it."""
    monkeypatch.setenv("KIT_STORE_PATIENCE_S", "4")
    (tmp_path / "mnt").mkdir()
    url = str(tmp_path / "mnt/store")
    with contextlib.ExitStack() as stack:
        try:
            mount = stack.enter_context(DeadMount(tmp_path / "mnt"))
        except OSError:
            pytest.skip("mounting a file system needs root")
        first = stack.enter_context(copying(run, url, stdin=subprocess.PIPE))
        stack.callback(mount.revive)
        waiter(lambda: read_state(run)["failures"] == 1)
        assert "if the store is a mount, it may be dead" in read_state(run)["error"] and mount.waited_for
        second = stack.enter_context(copying(run, url, stdin=subprocess.PIPE))
        waiter(lambda: read_state(run)["pid"] == second.pid and read_state(run)["state"] == "failing")
        words = "the copier of an earlier session is still running, perhaps blocked by a dead mount"
        assert read_state(run)["error"] == words
        mount.revive()
        waiter(lambda: "Function not implemented" in (read_state(run)["error"] or ""), why="it does not go on")
        assert first.wait(100) == 3


def killed_at(call: str, number: int, run: Path, url: str, program: list[str]) -> bool:
    """Run a copier that is killed at its `number`-th system call `call`, counted per thread.

    Return whether it was killed: False if it made fewer calls.
    """
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
    with copying(run, url, *inject, program=program) as process:
        code = process.wait(200)
    assert code in (0, -signal.SIGKILL, 128 + signal.SIGKILL), code
    return code != 0


def survives_kills_at(call: str, numbers: Iterable[int], folder: Path, program: list[str] = PROCESS) -> int:
    """Kill a copier at its n-th system call `call`, for each n in `numbers`; return the number of kills.

    The store holds step 100, and the copier uploads step 200. After the kill, a pull must get an intact checkpoint, not
    older than latest.json says, and the next copier must finish. The first n without a kill is the last.
    """
    kills = 0
    for number in numbers:
        place = folder / f"{call}-{number}"
        run, url = make_run(place, steps=(100,), replay=True), str(place / "store")
        Copier(run, open_store(url, write=True), "me").run_pass(final=True)
        add_checkpoint(run, 200, replay=True)
        killed = killed_at(call, number, run, url, program)
        back = pull(open_store(url), None, place / "after")
        newest = int(sorted((back / "checkpoints").iterdir())[-1].name.removeprefix("step_"))
        pointer = json.loads((place / "store/reach-1/latest.json").read_text())["step"]
        assert newest >= pointer and newest in (100, 200)
        texts = {"metrics.jsonl": b""}  # metrics may be ahead of the checkpoint
        assert {**content(back, newest), **texts} == {**content(run, newest), **texts}
        Copier(run, open_store(url, write=True), "me").run_pass(final=True)
        assert content(pull(open_store(url), None, place / "last")) == content(run)
        shutil.rmtree(place)
        if not killed:
            break
        kills += 1
    return kills


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
def test_a_copier_killed_in_the_middle(tmp_path: Path) -> None:
    assert survives_kills_at("rename", (4, 9), tmp_path) == 2


@pytest.mark.storm
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("program", [PROCESS, PASS], ids=["process", "pass"])
@pytest.mark.parametrize("call", ["rename", "fsync", "unlink", "mkdir", "write"])
def test_a_copier_killed_at_every_call(tmp_path: Path, call: str, program: list[str]) -> None:
    kills = survives_kills_at(call, range(1, 200), tmp_path, program)
    print(f"{call}: killed {kills} times")
    assert kills > 0
