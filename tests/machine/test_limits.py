"""Tests of CPU and memory limits, read from fabricated /proc and /sys folders."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from kit.machine import limits


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_cgroups_affinity_decides(tmp_path: Path) -> None:
    assert limits.usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert limits.memory_bytes(tmp_path) == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", 64), ("5000 100000", 1)]
)
def test_cgroup_2_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    write(tmp_path, proc__self__cgroup="0::/\n", sys__fs__cgroup__cpu_DOT_max=quota)
    assert limits.usable_cores(tmp_path) == cores


def test_cgroup_1_quota_of_the_parent_group_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    write(tmp_path, proc__self__cgroup="3:cpu,cpuacct:/job/inner\n2:memory:/job\n")
    outer = tmp_path / "sys/fs/cgroup/cpu,cpuacct/job"
    (outer / "inner").mkdir(parents=True)
    (outer / "inner" / "cpu.cfs_quota_us").write_text("-1")
    (outer / "cpu.cfs_quota_us").write_text("400000")
    (outer / "cpu.cfs_period_us").write_text("100000")
    assert limits.usable_cores(tmp_path) == 4


def test_memory_limit_and_free_memory(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memory_DOT_max=str(10**9),
        sys__fs__cgroup__memory_DOT_current=str(7 * 10**8),
        sys__fs__cgroup__memory_DOT_stat="anon 1\ninactive_file 200000000\n",
    )
    assert limits.memory_bytes(tmp_path) == 10**9
    assert limits.memory_free_bytes(tmp_path) == 5 * 10**8
