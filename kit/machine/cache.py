"""What was found out on this computer and need not be found out again.

    $XDG_CACHE_HOME, or else .cache on a rented machine's volume, or else ~/.cache
      kit/speed.json   key -> reading, and until when it counts; the key names machine, versions and the question
      warp/VERSION/    the simulator's kernels, compiled for this machine

$KIT_CACHE names a folder for both: speed.json and warp/ are in it then, on a Drive mount for example.
It may be deleted at any time; the next question then takes a few seconds again, the first launch up to minutes.
A reading made while other programs used the cores says little about this computer, so it is soon forgotten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.machine import places
from kit.machine.info import describe, version

DOUBTFUL_S = 600.0
"""For so long a reading made on a busy machine spares its user the next probe."""
VERSIONS = ("kit", "torch", "mujoco", "mujoco-warp", "stable-baselines3")


def folder() -> Path:
    """Where it is kept; it need not exist yet."""
    if own := os.environ.get("KIT_CACHE"):
        return Path(own)
    return _caches() / "kit"


def kernels() -> Path:
    """Where Warp keeps the kernels it has compiled."""
    if own := os.environ.get("WARP_CACHE_PATH"):  # Warp's own variable
        return Path(own) / version("warp-lang")
    return (folder() if os.environ.get("KIT_CACHE") else _caches()) / "warp" / version("warp-lang")


def _caches() -> Path:
    """The user's folder of caches, on a disk that stays if there is one."""
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared)
    volume = places.volume()
    return (Path.home() if volume is None else volume) / ".cache"


def key(kind: str, question: Any) -> str:
    """Names `question` (JSON), of one `kind` of measurement, on this machine with these versions."""
    machine = describe()
    hardware = [machine.cpu, machine.cores, [gpu.name for gpu in machine.gpus]]
    everything = [kind, question, [version(name) for name in VERSIONS], hardware]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:16]


def read(name: str, clock: Callable[[], float] = time.time) -> Any:
    """What was written under `name` (from `key`), or None."""
    try:
        entry = json.loads(_file().read_text())[name]
        return entry["reading"] if entry["until"] is None or clock() < entry["until"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(name: str, reading: Any, *, doubtful: bool = False, clock: Callable[[], float] = time.time) -> None:
    """Keep `reading`, for `DOUBTFUL_S` only if it is doubtful. Best effort: a cache that cannot be written costs a few
    seconds next time and nothing else."""
    path, until = _file(), clock() + DOUBTFUL_S if doubtful else None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):
            known = {}
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({**known, name: {"reading": reading, "until": until}}, indent=1))
        temporary.replace(path)


def _file() -> Path:
    return folder() / "speed.json"
