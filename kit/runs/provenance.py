"""Write and read provenance.json: where each session ran, with which versions, and what the user asked for."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from kit import trust
from kit.format.files import read_json, write_atomic

PACKAGES = ("kit", "torch", "stable-baselines3", "gymnasium", "mujoco", "mujoco-warp", "warp-lang", "numpy")


def write(run_path: Path, config: trust.Config, **extra: Any) -> None:
    """Append an entry for this process, with `extra` keys. Environment variables and arguments are not recorded.

    The entry of the process that created the run has the keys "requested" (fields that kit changed, as the user set
    them), "notebook" (the notebook's path, or None) and, after a warm start, "parent" (name and step).
    """
    modules = {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in trust.named_files(config).items()
    }
    entry = {**current(), "modules": modules, **extra}
    write_atomic(run_path / "provenance.json", json.dumps([*read(run_path), entry], indent=1))


def changes(run_path: Path) -> list[str]:
    """Return what changed between the last two entries: packages' versions, and edited modules of the user."""
    before, now = [{}, {}, *read(run_path)][-2:]

    def changed(key: str) -> dict[str, tuple[str, str]]:
        old, new = before.get(key, {}), now.get(key, {})
        return {name: (old[name], new[name]) for name in old if name in new and new[name] != old[name]}

    versions = [f"{name} was {old} and is {new}" for name, (old, new) in changed("versions").items()]
    return [f"{module}.py was edited" for module in changed("modules")] + versions


def read(run_path: Path) -> list[dict[str, Any]]:
    """Return the entries, oldest first."""
    return list(read_json(run_path / "provenance.json", []))


def current() -> dict[str, Any]:
    """Return time, package versions, Python, system, processor, cores, GPUs and commit of this process."""
    from kit.machine import gpu, usable_cores
    from kit.machine.info import cpu_model, version

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {name: installed for name in PACKAGES if (installed := version(name))},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": cpu_model(),
        "cores": usable_cores(),
        "cards": [device.name for device in gpu.gpus()],
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the git commit of kit's source, or None if kit does not run from a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed, perhaps inside another repository
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
