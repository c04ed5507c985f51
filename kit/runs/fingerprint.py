"""Fingerprint of a checkpoint: a SHA-256 over its whole state. Runs with equal fingerprints continue identically."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.format.checkpoint import Checkpoint
from kit.format.segments import Segment
from kit.runs.metrics import CLOCK
from kit.runs.run import Run


def fingerprint(run: Run | str | Path, step: int | None = None) -> str:
    """Return the hex SHA-256 of the checkpoint at `step` (default: the latest).

    Covers every tensor's name, dtype, shape and bytes, every other value, the replay data, and the metric rows up to
    `step` without columns that depend on the machine. The split of replay data into files does not matter. Raises
    `Damaged` or `UserError`.
    """
    run = run if isinstance(run, Run) else Run(run)
    saved = run.find("latest" if step is None else step)
    state = saved.read()
    if "session" not in state:
        raise UserError(f"step={saved.step} of {run.path} is only a policy; a fingerprint needs a whole checkpoint.")
    rows = [
        {name: value for name, value in row.items() if not name.startswith(CLOCK)}
        for row in run.rows()[: state["session"]["rows"]]
    ]
    digest = hashlib.sha256()
    for component, values in sorted(state.items()):
        for name, value in sorted(values.items()):
            digest.update(f"{component}/{name}\0".encode())
            digest.update(_canonical(value))
    for name, tensor in _replay(saved, state):
        digest.update(f"replay/{name}\0".encode())
        digest.update(_canonical(tensor))
    digest.update(json.dumps(rows, sort_keys=True).encode())
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    """Encode a tensor or JSON value as bytes to hash; equal values give equal bytes."""
    import torch

    if isinstance(value, torch.Tensor):
        flat = value.contiguous().reshape(-1).view(torch.uint8) if value.numel() else value.reshape(-1)
        return f"{value.dtype}{tuple(value.shape)}".encode() + flat.numpy().tobytes()
    return json.dumps(value, sort_keys=True).encode()


def _replay(saved: Checkpoint, state: dict[str, dict[str, Any]]) -> list[tuple[str, Any]]:
    """Join all segments and return (name, tensor) of the rows that are still in the replay buffer."""
    import torch
    from safetensors.torch import load_file

    segments = saved.replay()
    if not segments:
        return []
    first, stop = int(segments[0].stem), int(state["trainer"]["replay_written"])
    parts = [load_file(path) for path in segments]
    keep = min(stop - first, int(state["session"]["replay_capacity"]))
    whole = Segment(first, {name: torch.cat([part[name] for part in parts]) for name in sorted(parts[0])})
    return list(whole.part(len(whole) - keep, len(whole)).rows.items())
