"""What this process may really use: a container on a 64-core host with a quota of 2 cores has 2."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")


def usable_cores(root: Path = ROOT) -> int:
    """CPU cores this process may use: the least of affinity mask and cgroup quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(root)
    return max(1, min(affinity, math.ceil(quota) if quota < math.inf else affinity))


def memory_bytes(root: Path = ROOT) -> int:
    """Memory this process may use: the least of the machine's and the cgroup's limit."""
    return int(min(psutil.virtual_memory().total, _memory_limit(root)))


def memory_free_bytes(root: Path = ROOT) -> int:
    """Memory that is still free within `memory_bytes`, counting file cache as free."""
    free = psutil.virtual_memory().available
    for folder in _cgroups(root, "memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit < math.inf and used < math.inf:
            free = min(free, max(0, int(limit - used + _file_cache(folder))))
    return free


def _cpu_quota(root: Path) -> float:
    """Cores' worth of CPU time that the cgroups grant, infinite where they set no limit."""
    quota = math.inf
    for folder in _cgroups(root, "cpu"):
        parts = _text(folder / "cpu.max").split()  # version 2: "200000 100000", or "max 100000"
        if len(parts) == 2 and parts[0].isdigit():
            quota = min(quota, int(parts[0]) / int(parts[1]))
        limit, period = _number(folder, "cpu.cfs_quota_us"), _number(folder, "cpu.cfs_period_us")  # version 1
        if 0 < limit < math.inf and period < math.inf:
            quota = min(quota, limit / period)
    return quota


def _memory_limit(root: Path) -> float:
    return min((_number(f, "memory.max", "memory.limit_in_bytes") for f in _cgroups(root, "memory")), default=math.inf)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The control-group folders that bind this process, innermost first, of versions 1 and 2.

    Inside a container the own group is mounted as the root, so paths that do not exist are skipped.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers  # version 1 has a mount for each set of controllers
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_dir():
                yield folder
            if folder == base:
                break


def _file_cache(folder: Path) -> int:
    """Bytes of page cache that the kernel would give back at once."""
    for line in _text(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(folder: Path, *names: str) -> float:
    for name in names:
        text = _text(folder / name)
        if text.lstrip("-").isdigit():
            return int(text)
    return math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
