"""What tests of batches share: `kit batch` as a process of its own, and notebooks to execute."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat

import kit

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT / "tests/short_evaluations", ROOT)))


def batch(*words: str, **environment: str) -> subprocess.Popen[str]:
    """`kit batch WORDS`, which imports this kit."""
    return subprocess.Popen(
        [sys.executable, "-m", "kit", "batch", *words], env={**os.environ, "PYTHONPATH": PATHS, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_checkpoint(run: str | Path, process: subprocess.Popen[str]) -> None:
    while not (Path(run).is_dir() and kit.Run(run).checkpoints()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def write_notebook(path: str, parameters: str, *cells: str) -> None:
    made = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    made += map(nbformat.v4.new_code_cell, cells)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=kernel), path)
