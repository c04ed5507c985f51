"""provenance.json: with which versions, on which machine and from which commit each session of a run worked, and before
them, if it did not begin from nothing, whose policy it began with."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from kit.format.files import read_json, write_atomic

PACKAGES = ("kit", "torch", "stable-baselines3", "gymnasium", "mujoco", "mujoco-warp", "warp-lang", "numpy")


def write(run_path: Path, **more: Any) -> None:
    """Append this moment and what `more` there is to say. Neither the environment nor the command line is recorded."""
    write_atomic(run_path / "provenance.json", json.dumps([*read(run_path), {**here(), **more}], indent=1))


def read(run_path: Path) -> list[dict[str, Any]]:
    return list(read_json(run_path / "provenance.json", []))


def here() -> dict[str, Any]:
    from kit.machine import gpu, usable_cores
    from kit.machine.info import cpu_model

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": cpu_model(),
        "cores": usable_cores(),
        "cards": [card.name for card in gpu.gpus()],
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The git commit of kit's own source, if it runs from a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
