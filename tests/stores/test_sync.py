"""Tests of `start_sync` and the copier process: kills, signals, a hung request, leases, damaged checkpoints."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kit.errors import UserError
from kit.stores import SyncHandle, lease, open_store, pull, start_sync
from tests.stores.conftest import SHARED
from tests.stores.fabricate import add_checkpoint, content, make_run, read_state, set_status
from tests.stores.hub_server import Fault, HubServer

Wait = Callable[..., None]


@pytest.fixture
def by_hand(run: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """by_hand(): start a copier as from the command line; it is not restarted, and killed at teardown."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kit.stores", str(run), str(tmp_path / "store")]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return processes[-1]

    (tmp_path / "store").mkdir()
    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("store_url", SHARED, indirect=True)
def test_the_local_folder_is_deleted_and_comes_back_identical(
    store_url: str, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    run = make_run(tmp_path / "runs", steps=(100,), replay=True)
    handle = started(run, store_url)
    waiter(lambda: handle.state()["step"] == 100, 30)
    add_checkpoint(run, 200, replay=True)
    waiter(lambda: handle.state()["step"] == 200, 30)
    state = handle.stop(30)
    assert state["state"] == "ok" and state["error"] is None and handle.is_done() and not _alive(state["pid"])
    before = content(run)
    shutil.rmtree(run)
    back = pull(open_store(store_url), None, tmp_path / "runs")
    assert back == run and content(back) == before
    lease.acquire(open_store(store_url, write=True), run.name, "another machine")


def test_it_ends_when_training_dies_and_everything_has_arrived(run: Path, tmp_path: Path, waiter: Wait) -> None:
    """Training is killed by SIGKILL just after it commits a checkpoint."""
    store = tmp_path / "store"
    begin = f"from kit.stores import start_sync; h = start_sync({str(run)!r}, {str(store)!r})"
    program = f"{begin}; print('begun', flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as training:
        assert training.stdout and training.stdout.readline() == b"begun\n"
        (pid,) = [child.pid for child in psutil.Process(training.pid).children()]
        add_checkpoint(run, 300)
        training.kill()
    waiter(lambda: not _alive(pid), 30, "the copier outlives its work")
    assert read_state(run)["state"] == "ok" and read_state(run)["step"] == 300
    assert content(pull(open_store(str(store)), None, tmp_path / "back")) == content(run)


def test_on_sigterm_the_copier_copies_the_rest_and_ends(
    run: Path, by_hand: Callable[[], subprocess.Popen[bytes]], waiter: Wait
) -> None:
    copier = by_hand()
    waiter(lambda: read_state(run).get("pid") == copier.pid, 20)
    add_checkpoint(run, 300)
    copier.send_signal(signal.SIGTERM)
    assert copier.wait(200) == 0
    assert read_state(run)["step"] == 300


def test_a_killed_copier_is_started_again(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    handle = started(run, str(tmp_path / "store"))
    waiter(lambda: handle.state()["step"] == 200)
    first = handle.state()["pid"]
    os.kill(first, signal.SIGKILL)
    waiter(lambda: handle.state()["state"] == "failing", why="nobody said so")
    add_checkpoint(run, 300)
    waiter(lambda: handle.state()["step"] == 300)
    assert handle.state()["pid"] != first


def test_a_copier_killed_while_training_ends_copies_the_last_step_all_the_same(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    """The copier is killed just before `stop`; in a second session, just after it."""
    handle = started(run, str(tmp_path / "store"))
    waiter(lambda: handle.state()["step"] == 200)
    first = handle.state()["pid"]
    add_checkpoint(run, 300)
    os.kill(first, signal.SIGKILL)
    assert handle.stop(20)["step"] == 300 and handle.is_done()
    last = handle.state()["pid"]
    again = started(run, str(tmp_path / "store"))
    waiter(lambda: again.state()["pid"] != last)
    second = again.state()["pid"]
    add_checkpoint(run, 400)
    os.kill(second, signal.SIGSTOP)
    again.stop(0.0)
    os.kill(second, signal.SIGKILL)
    assert again.stop(20)["step"] == 400 and again.is_done()


def test_a_second_copier_of_a_run_replaces_the_first(
    run: Path,
    tmp_path: Path,
    started: Callable[..., SyncHandle],
    by_hand: Callable[[], subprocess.Popen[bytes]],
    waiter: Wait,
) -> None:
    """A new session's copier replaces the one that the session before left behind."""
    first = by_hand()
    waiter(lambda: read_state(run).get("pid") == first.pid)
    second = started(run, str(tmp_path / "store"))
    waiter(lambda: second.state()["pid"] != first.pid)
    assert first.wait(100) == 3
    assert second.stop(20)["state"] == "ok"


def test_a_copier_that_does_not_end_is_reported_and_waited_for(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    with (run / ".sync.lock").open("a+") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        handle = started(run, str(tmp_path / "store"))
        waiter(lambda: handle.state()["state"] == "failing")
        assert handle.state()["error"].startswith("the copier of an earlier session is still running")
        assert not (tmp_path / "store/reach-1/latest.json").exists()
    waiter(lambda: handle.state()["state"] == "ok")
    assert handle.stop(20) | {"step": 200, "error": None, "failures": 0} == handle.state()


def test_a_hung_commit_restarts_the_copier(
    run: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    """A commit hangs: .sync.json reports it, the process restarts itself and the copy catches up.

    The second commit hangs after `stop`; the copier still ends and releases the lease.
    """
    monkeypatch.setenv("KIT_STORE_PATIENCE_S", "3")
    handle = started(run, "hf://me/runs")
    waiter(lambda: handle.state()["step"] == 200)
    pid = handle.state()["pid"]
    for step in (300, 400):
        hub.fault("commit", Fault(stall=True, times=1))
        add_checkpoint(run, step)
        if step == 400:
            handle.stop(0.0)
        waiter(lambda: handle.state()["state"] == "failing")
        assert "no answer from the store" in handle.state()["error"] and handle.state()["failures"] == 1
        waiter(lambda step=step: handle.state()["step"] == step)
    waiter(handle.is_done)
    assert handle.state()["state"] == "ok" and handle.state()["pid"] == pid, "the restart must keep the process id"
    lease.acquire(open_store("hf://me/runs", write=True), run.name, "another machine")


def test_start_sync_names_the_owner_of_another_machines_run(run: Path, store_url: str) -> None:
    store = open_store(store_url, write=True)
    lease.acquire(store, run.name, "rival")
    with pytest.raises(UserError, match=r"belongs to rival on .* since 20.* until 20"):
        start_sync(run, store_url)


def test_start_sync_refuses_a_store_with_a_newer_checkpoint(
    run: Path, store_url: str, tmp_path: Path, started: Callable[..., SyncHandle]
) -> None:
    started(run, store_url).stop(20)
    fresh = make_run(tmp_path / "elsewhere", steps=())
    with pytest.raises(UserError, match=r"holds step 200 of run 'reach-1', and this machine nothing; run `kit resume"):
        start_sync(fresh, store_url)
    older = make_run(tmp_path / "older", steps=(100,))
    with pytest.raises(UserError, match="this machine step 100"):
        start_sync(older, store_url)


@pytest.mark.parametrize("how", ["flip", "missing"])
def test_after_a_damaged_checkpoint_in_the_store_the_run_goes_on(
    run: Path, store_url: str, tmp_path: Path, started: Callable[..., SyncHandle], how: str
) -> None:
    """A damaged checkpoint does not count as newer; it is overwritten when training reaches its step again."""
    started(run, store_url).stop(20)
    policy = Path(store_url) / "reach-1/checkpoints/step_000000200/policy.safetensors"
    policy.unlink() if how == "missing" else policy.write_bytes(policy.read_bytes()[:-1] + b"!")
    make_run(tmp_path / "x", steps=(100,)).joinpath("checkpoints/step_000000100").rename(
        policy.parent.parent / "step_000000100"
    )
    back = pull(open_store(store_url), None, tmp_path / "there", notify=lambda text: None)
    add_checkpoint(back, 150)
    assert started(back, store_url).stop(20)["step"] == 150
    add_checkpoint(back, 200)
    assert started(back, store_url).stop(20)["step"] == 200
    assert content(pull(open_store(store_url), None, tmp_path / "last")) == content(back)


def test_an_unusable_store_raises_at_once(run: Path) -> None:
    with pytest.raises(UserError, match="cannot be reached"):
        start_sync(run, "/nowhere/at/all")
    assert not (run / ".sync.json").exists()


def test_the_copier_from_the_command_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    set_status(run, state="finished")
    command = [sys.executable, "-m", "kit.stores", str(run), str(tmp_path / "store")]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=200).returncode == 0
    assert (tmp_path / "store/reach-1/latest.json").exists()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    except FileNotFoundError:
        return False
