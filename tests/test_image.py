"""What Binder and repo2docker make of environment.yml, without building it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("repo2docker", reason="could not import 'repo2docker'")


def test_the_image_is_conda_s_with_the_checkout_there_before_it_is_installed(tmp_path: Path) -> None:
    for name in ("environment.yml", "requirements-gpu.txt", "pyproject.toml", "README.md"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path)
    asked = ["--no-build", "--debug", "--user-id", "1000", "--user-name", "me", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "repo2docker", *asked], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "conda environment for python=3.12" in said
    copied, installed = said.index("COPY --chown=1000:1000 src/"), said.index('--file "environment.yml"')
    assert copied < installed, "requirements-gpu.txt names the checkout itself"
