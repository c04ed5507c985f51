"""Tests of disk and power failures: at each system call of a save (by strace), full disks, disk budgets."""

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import kit
from kit.errors import UserError
from kit.format import checkpoint
from kit.runs import session, training
from kit.runs.fingerprint import fingerprint
from tests.runs.crash import Forked, complete, create

strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
CALLS = {"write": "write", "fsync": "fsync", "rename": "rename,renameat,renameat2"}
ROOT = Path(__file__).parents[2]


def run_with_one_checkpoint(folder: Path) -> Path:
    segment = checkpoint.write_shared(
        folder, "replay/000000000000.safetensors", checkpoint.encode_tensors({"rewards": torch.zeros(10, 1)})
    )
    checkpoint.write(
        folder / "checkpoints",
        100,
        {"policy": {"weight": torch.ones(3)}},
        {"replay/000000000000.safetensors": {**segment, "rows": 10}},
    )
    return folder


def traced(folder: Path, *options: str) -> int:
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(folder.parent / "trace"),
        *options,
        sys.executable,
        "-m",
        "tests.runs.one_save",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, str(folder)], env=environment, cwd=ROOT, check=False, timeout=120).returncode


def count(folder: Path, call: str) -> int:
    """Return how many system calls `call` one save makes: the maximum over its processes and threads."""
    assert traced(folder, "-e", f"trace={CALLS[call]}") == 0
    lines = (folder.parent / "trace").read_text().splitlines()
    by_task: dict[str, int] = {}
    for line in lines:
        task = line.split()[0]
        by_task[task] = by_task.get(task, 0) + bool(re.search(rf"\b({CALLS[call].replace(',', '|')})\(", line))
    return max(by_task.values())


def assert_nothing_lost(folder: Path) -> None:
    found = checkpoint.committed(folder / "checkpoints")
    assert found and found[0].step == 100
    for each in found:
        assert each.read()  # verifies every file
    checkpoint.sweep(folder)
    assert not [*folder.rglob(".*")]


def sweep(tmp_path: Path, call: str, fault: str, codes: set[int], at: list[int] | None) -> int:
    total = count(run_with_one_checkpoint(tmp_path / "count"), call)
    moments = [k for k in (at or range(1, total + 1)) if k <= total]
    for k in moments:
        folder = run_with_one_checkpoint(tmp_path / f"{k}" / "run")
        code = traced(folder, "-e", f"inject={CALLS[call]}:{fault}:when={k}")
        assert code in codes, (k, code)
        assert_nothing_lost(folder)
    return len(moments)


@strace
@pytest.mark.parametrize("call", ["fsync"])
def test_power_lost_at_a_system_call(tmp_path, call):
    assert sweep(tmp_path, call, "signal=KILL", {137, -9}, at=[1, 4]) >= 1


@strace
@pytest.mark.storm
@pytest.mark.parametrize("fault", ["signal=KILL", "error=EIO", "error=ENOSPC"])
@pytest.mark.parametrize("call", CALLS)
def test_every_system_call_of_a_save_fails_once(tmp_path, call, fault):
    swept = sweep(tmp_path, call, fault, {137, -9} if "KILL" in fault else {3}, at=None)
    print(f"{call} {fault}: {swept} moments")


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a tmpfs of `kilobytes` and returns its folder."""
    disks = []

    def mount(kilobytes: int) -> Path:
        disk = tmp_path / f"disk{len(disks)}"
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small disk needs root")
        disks.append(disk)
        return disk

    yield mount
    for disk in disks:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_with_room_for_one_and_a_half_checkpoints(small_disk, monkeypatch):
    """Training continues and reports failed saves; the checkpoint that fitted is kept."""
    monkeypatch.setattr(training, "PATIENCE_S", 1.0)
    big = {"policy_kwargs": {"net_arch": [128, 128]}}  # 0.52 MB a checkpoint
    run = create(small_disk(850), "run", total_steps=640, checkpoint_every=32, overrides=big)
    session = Forked(run)
    session.until(lambda: "could not be written" in run.status()["message"])
    assert session.wait() == 75 and run.status()["state"] == "interrupted"
    message = run.status()["message"]
    assert "trained to the end, but the last checkpoint could not be written (No space left" in message
    assert "resume goes on from step" in message
    assert run.latest() is not None and run.latest().read()


def test_a_best_policy_for_which_the_disk_has_no_room_is_tested_all_the_same(tmp_path, monkeypatch):
    """The disk is full from the last evaluation, the best one, until the test; then there is room again."""
    fields = {"total_steps": 640, "eval_every": 320, "overrides": {"n_steps": 16, "batch_size": 16}}
    quiet, full = create(tmp_path, "quiet", **fields), create(tmp_path, "full", **fields)
    write, refused = checkpoint.write, []
    assert complete(quiet) == 0 and quiet.best().step == 640, "or the test shows nothing"

    def until_tested(folder, step, *rest):
        if folder.name == "best" and step == 640 and len(refused) < 2:
            refused.append(step)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "write", until_tested)
    assert complete(full) == 0 and "a policy could not be kept (No space left" in full.log()
    assert full.rows()[-1]["test/step"] == 640
    assert fingerprint(full) == fingerprint(quiet)


def test_on_a_disk_with_room_for_two_and_a_half_checkpoints_older_ones_are_deleted(small_disk):
    """Retention by age would keep three checkpoints, more than fit on this disk."""
    big = {"policy_kwargs": {"net_arch": [128, 128]}}  # 0.52 MB a checkpoint
    run = create(small_disk(1350), "run", total_steps=640, checkpoint_every=32, overrides=big)
    assert Forked(run).wait() == 0
    assert "could not be written" not in run.log() and "cannot be saved" not in run.log()
    assert run.latest().step == 640 and len(run.checkpoints()) == 2


def test_a_budget_below_one_checkpoint_is_reported_and_the_newest_is_kept(tmp_path):
    run = create(tmp_path, "run", total_steps=640, checkpoint_every=64, disk_budget="0.01MB")
    assert complete(run) == 0
    assert "more than disk_budget=0.01MB: only the newest is kept" in run.log()
    assert [found.step for found in run.checkpoints()] == [640] and run.latest().step == 640


@pytest.mark.storm
@pytest.mark.parametrize("algo", ["PPO", "SAC"])
def test_a_disk_that_is_full_for_a_while(small_disk, tmp_path, algo):
    """A run that is paused on a full disk ends like one that always had space."""
    fields = {"total_steps": 2000, "checkpoint_every": 200}
    quiet = create(tmp_path, "run", algo, **fields)
    assert complete(quiet) == 0
    disk = small_disk(6000)
    run = create(disk, "run", algo, **fields)
    session = Forked(run)
    assert session.until(lambda: run.status()["step"] > 300 and len(run.checkpoints()) > 0), run.log()
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    freed = time.monotonic() + 4.0
    run.pause()
    paused = session.until(lambda: run.status()["step"] and time.monotonic() > freed)
    assert paused, "the pause must work on a full disk; without it, the run would have ended"
    ballast.unlink()
    assert session.until(lambda: run.status()["state"] == "paused"), "the status must be written once there is space"
    run.unpause()
    assert session.wait() == 0, run.log()
    assert run.status()["state"] == "finished"
    assert fingerprint(run) == fingerprint(quiet)
    assert len(list((run.path / "tb").iterdir())) >= 1


def test_the_end_on_a_full_disk_is_told_and_a_change_is_refused(small_disk, monkeypatch):
    monkeypatch.setattr(training, "PATIENCE_S", 0.1)
    monkeypatch.setattr(session, "FINAL_STATUS_S", 0.1)
    disk = small_disk(4000)
    run = create(disk, "run", total_steps=10**6, checkpoint_every=64)
    forked = Forked(run)
    assert forked.until(lambda: len(run.checkpoints()) > 0), run.log()
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    forked.kill(signal.SIGTERM)
    assert forked.wait() == 75
    assert "ended from outside (SIGTERM)" in run.status()["message"], run.status()
    with pytest.raises(UserError, match=r"run cannot be written \(No space left on device\); free some space"):
        kit.resume(run.path, total_steps=2 * 10**6)


def test_a_launch_on_a_full_disk_is_refused_in_a_sentence_and_leaves_nothing(small_disk):
    disk = small_disk(64)
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(UserError, match="No space left on device"):
        kit.launch(env="Reach", runs_dir=str(disk / "runs"), run_name="one")
    (disk / "ballast").unlink()
    assert not [path for path in disk.rglob("*") if path.name not in ("runs", ".runs")]
