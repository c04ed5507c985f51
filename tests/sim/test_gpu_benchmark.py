"""Tests of tests/bench/gpu.py on Warp's CPU device: the script runs and writes its table; the timings mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)  # a first launch on a machine compiles kernels
def test_the_benchmark_writes_a_row_of_results(tmp_path: Path) -> None:
    output = tmp_path / "gpu.md"
    command = [sys.executable, "tests/bench/gpu.py", "--device", "cpu", "--task", "Ant", "--seconds", "0.1"]
    done = subprocess.run([*command, "--output", str(output)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    row = [cell.strip() for cell in output.read_text().splitlines()[-1].strip("|").split("|")]
    assert row[:2] == ["Ant", "8"] and row[-1] == "all", "on the CPU every field repeats bit for bit"
    assert all(float(cell.replace(",", "")) > 0 for cell in row[2:9])
