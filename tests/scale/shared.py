"""Helpers for tests of `kit.scale`: `kit batch` as a subprocess, notebook files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat

import kit

ROOT = str(Path(__file__).parents[2])


def batch(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Start `kit batch WORDS` in a subprocess that imports this checkout of kit."""
    return subprocess.Popen(
        [sys.executable, "-m", "kit", "batch", *words], env={**os.environ, "PYTHONPATH": ROOT, **environment},
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
