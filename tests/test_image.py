"""Test of environment.yml: the Dockerfile that repo2docker, and thus Binder, makes from it, without building it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("repo2docker", reason="could not import 'repo2docker'")


def test_repo2docker_uses_conda_and_copies_the_checkout_before_the_install(tmp_path: Path) -> None:
    for name in ("environment.yml", "requirements-gpu.txt", "pyproject.toml", "README.md"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path)
    asked = ["--no-build", "--debug", "--user-id", "1000", "--user-name", "me", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "repo2docker", *asked], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "conda environment for python=3.12" in said
    copied, installed = said.index("COPY --chown=1000:1000 src/"), said.index('--file "environment.yml"')
    assert copied < installed, "requirements-gpu.txt installs the checkout, so it must be there"
