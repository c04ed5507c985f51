"""Tests of the Docker images, without building them: what repo2docker (Binder) makes of environment.yml; our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_our_dockerfile_passes_hadolint_and_installs_the_checkout() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("could not find 'hadolint'")
    dockerfile = ROOT / ".devcontainer/Dockerfile"
    done = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    steps = [line.split(maxsplit=1) for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    assert [step for step, _ in steps] == ["FROM", "WORKDIR", "COPY", "RUN", "EXPOSE", "CMD"]
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["build"] == {"dockerfile": "Dockerfile", "context": ".."}


def test_repo2docker_uses_conda_and_copies_the_checkout_before_the_install(tmp_path: Path) -> None:
    pytest.importorskip("repo2docker", reason="could not import 'repo2docker'")
    for name in ("environment.yml", "requirements-gpu.txt", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    asked = ["--no-build", "--debug", "--user-id", "1000", "--user-name", "me", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "repo2docker", *asked], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "conda environment for python=3.12" in said
    copied, installed = said.index("COPY --chown=1000:1000 src/"), said.index('--file "environment.yml"')
    assert copied < installed, "requirements-gpu.txt installs the checkout, so it must be there"
