"""Tests that tests/bench/gpu.py runs and writes its table, on the pretended GPU; the timings mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)  # a first launch on a machine compiles kernels
def test_the_benchmark_writes_a_row_of_results(tmp_path: Path) -> None:
    output = tmp_path / "gpu.md"
    command = [sys.executable, "tests/bench/gpu.py", "--pretend", "--only", "ReachVision", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    heads, _, row = ([cell.strip() for cell in line.strip("|").split("|")]
                     for line in output.read_text().splitlines() if line.startswith("|"))  # fmt: skip
    measured = dict(zip(heads, row, strict=True))
    assert measured["task"] == "ReachVision" and measured["repeats"] == "all", "on the CPU every field repeats"
    assert all(float(measured[name].replace(",", "")) > 0 for name in ("bare", "env", "train", "env/bare"))
    assert 1 <= float(measured["waits"]) < 10, "an image waits once per step, and reading the metrics some more"
