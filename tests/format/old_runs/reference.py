"""Helpers of make.py and tests/runs/test_old_runs.py: fixed observations, and a description of the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces


def fixed(space: Space, n: int = 3) -> Any:
    """Return a fixed batch of `n` observations of `space`: numbers from -1 to 1, pixels from 0 to 255."""
    if isinstance(space, spaces.Dict):
        return {name: fixed(entry, n) for name, entry in space.items()}
    assert isinstance(space, spaces.Box)
    numbers = np.arange(n * np.prod(space.shape), dtype=np.int64) * 37 % 256
    values = numbers if space.dtype == np.uint8 else numbers / 127.5 - 1
    return values.astype(space.dtype).reshape(n, *space.shape)


def processor() -> dict[str, str]:
    """Return what determines rounding errors: the processor model, and torch's instruction set on it."""
    keys = ("vendor_id", "cpu family", "model", "model name", "stepping")
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {**{key: fields.get(key, "") for key in keys}, "torch": torch.backends.cpu.get_cpu_capability()}
