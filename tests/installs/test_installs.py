"""Tests of the notebooks' install cell: it changes no package of a rented machine.

uv resolves kit together with the packages of each machine. If there is a solution, pip need not change any package.
Nothing is installed. Versions: googlecolab/backend-info (a724079, and the pinned runtimes) and runpod/containers
(6990d37), 2026.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_CELL = "kit[notebook,video,stores]"
COLAB = """
    torch==2.11.0 torchvision==0.26.0 pandas==2.2.3 scipy==1.16.3 gymnasium==1.3.0 tensorboard==2.20.0
    protobuf==5.29.6 ipywidgets==7.7.1 ipykernel==6.17.1 ipython==7.34.0 notebook==6.5.7 matplotlib==3.10.0
    psutil==5.9.5 fsspec==2025.3.0 gcsfs==2025.3.0 datasets==4.0.0 gdown==5.2.2 jsonschema==4.26.0
    transformers==5.15.0 huggingface_hub==1.27.0 safetensors==0.8.0"""
MACHINES = {
    "Colab, August 2026": ("3.13", f"{COLAB} numpy==2.1.3"),
    "Colab 2026.07": ("3.12", f"{COLAB} numpy==2.0.2"),
    "RunPod, PyTorch 2.8": ("3.12", "torch==2.8.0 torchvision==0.23.0"),
    "RunPod, PyTorch 2.9": ("3.12", "torch==2.9.1 torchvision==0.24.1"),
    "a machine without PyTorch": ("3.11", ""),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_first_cell_changes_no_package(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("uv") is None:
        pytest.skip("could not import 'uv'")
    python, freeze = MACHINES[name]
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("\n".join([f"{FIRST_CELL} @ {ROOT.as_uri()}", *freeze.split()]))
    command = [sys.executable, "-m", "uv", "pip", "compile", str(wanted), "--no-header", "--no-annotate", "--quiet"]
    command += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28", "--no-python-downloads"]
    resolved = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if any(words in resolved.stderr for words in ("error sending request", "dns error", "Failed to fetch")):
        pytest.skip("no package index can be reached")
    assert resolved.returncode == 0, resolved.stderr
    lines = resolved.stdout.splitlines()
    assert {pin.replace("_", "-") for pin in freeze.split()} <= set(lines)
    assert not [line for line in lines if line.startswith(("jupyterlab==", "s3fs=="))]
