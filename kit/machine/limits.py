"""CPU cores and memory that this process may use, within the limits of its container."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")


def usable_cores(root: Path = ROOT) -> int:
    """Return the CPU cores for this process: the minimum of affinity mask, cgroup quota and $KIT_CORES; at least 1."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroups(root, "cpu"):
        parts = _text(folder / "cpu.max").split()  # version 2: "200000 100000", or "max 100000"
        if len(parts) == 2 and parts[0].isdigit():
            cores = min(cores, int(parts[0]) / int(parts[1]))
        quota, period = _number(folder, "cpu.cfs_quota_us"), _number(folder, "cpu.cfs_period_us")  # version 1
        if 0 < quota < math.inf and period < math.inf:
            cores = min(cores, quota / period)
    with contextlib.suppress(ValueError):
        cores = min(cores, int(os.environ.get("KIT_CORES", "")))
    return max(1, math.ceil(cores))


def memory_bytes(root: Path = ROOT) -> int:
    """Return the bytes of memory this process may use: the minimum of the machine's memory and the cgroup's limit."""
    return int(min([psutil.virtual_memory().total, *(_memory_limit(folder) for folder in _cgroups(root, "memory"))]))


def memory_free_bytes(root: Path = ROOT) -> int:
    """Return the bytes of memory still free within `memory_bytes`; file cache counts as free."""
    free = psutil.virtual_memory().available
    for folder in _cgroups(root, "memory"):
        room = _memory_limit(folder) - _number(folder, "memory.current", "memory.usage_in_bytes")
        if abs(room) < math.inf:
            free = min(free, max(0, int(room + _file_cache(folder))))
    return free


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the control-group folders (versions 1 and 2) that limit this process, innermost first.

    In a container, the container's own group is mounted as the root. Paths outside it do not exist and are skipped.
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


def _memory_limit(folder: Path) -> float:
    return _number(folder, "memory.max", "memory.limit_in_bytes")


def _file_cache(folder: Path) -> int:
    """Return the bytes of page cache that the kernel can free immediately; they count as free memory."""
    rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return next((int(row[1]) for row in rows if row[0] in ("inactive_file", "total_inactive_file")), 0)


def _number(folder: Path, *names: str) -> float:
    """Return the number in the first of the files `names` that contains a number; infinity (no limit) if none does."""
    texts = (_text(folder / name) for name in names)
    return next((int(text) for text in texts if text.lstrip("-").isdigit()), math.inf)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
