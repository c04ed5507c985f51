"""Runs the tests that need a GPU on the pretended GPU (tests/card.py), in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU; the tests run on it themselves")
@pytest.mark.timeout(1800)  # a first launch on a machine compiles kernels
def test_the_cuda_code_runs_on_a_pretended_gpu() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "tests.card", "-p", "no:cacheprovider"]
    files = ["tests/sim/test_cuda.py", "tests/sim/test_waits.py"]
    few = {**os.environ, "KIT_EVAL_EPISODES": "2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *files], cwd=ROOT, env=few, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) >= 25, "robot models may be missing, no more"
