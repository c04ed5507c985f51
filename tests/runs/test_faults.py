"""The disk or the power fails at the k-th system call of a save: what was safe before stays safe and readable."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kit.format import checkpoint
from kit.runs.run import Run
from tests.runs.crash import Forked, create

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
    """How many such calls one save makes, in its process or its thread."""
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
        assert each.read()  # verified, every byte
    checkpoint.sweep(folder / "checkpoints")
    assert not [p for p in (folder / "checkpoints").iterdir() if p.name.startswith(".")]


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
@pytest.mark.parametrize("call", CALLS)
def test_power_lost_at_a_system_call(tmp_path, call):
    assert sweep(tmp_path, call, "signal=KILL", {137, -9}, at=[1, 4]) >= 1


@strace
@pytest.mark.storm
@pytest.mark.parametrize("fault", ["signal=KILL", "error=EIO", "error=ENOSPC"])
@pytest.mark.parametrize("call", CALLS)
def test_every_system_call_of_a_save_fails_once(tmp_path, call, fault):
    swept = sweep(tmp_path, call, fault, {137, -9} if "KILL" in fault else {3}, at=None)
    print(f"{call} {fault}: {swept} moments")


def test_full_disk_with_room_for_one_and_a_half_checkpoints(tmp_path):
    """Training goes on, says so, and the checkpoint that fitted stays."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        big = {"policy_kwargs": {"net_arch": [128, 128]}}  # about 0.9 MB a checkpoint
        run = create(disk, "run", total_steps=640, checkpoint_every=32, overrides=big)
        session = Forked(run)
        session.until(lambda: "could not be written" in run.status()["message"])
        code = session.wait()
        assert code == 1 and run.status()["state"] == "failed"  # the last one could not be written either
        assert "No space left" in run.status()["message"]
        assert isinstance(run, Run) and run.latest() is not None and run.latest().read()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
