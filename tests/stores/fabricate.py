"""Fabricated run directories for store tests: valid checkpoints with random weights, written without training."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from kit.format.manifest import digest
from kit.stores import Store


def make_run(
    folder: Path, name: str = "reach-1", steps: Iterable[int] = (100, 200), replay: bool = False, frozen: int = 0
) -> Path:
    """Create a run at `folder`/`name`: config, video, and for each step a checkpoint, a metrics row and the status."""
    run = folder / name
    for part in ("checkpoints", "videos"):
        (run / part).mkdir(parents=True)
    config = ["version: 1", "env: Reach", "algo: PPO", "encoder: mlp", "seed: 0", "n_envs: 8", f"run_name: {name}"]
    (run / "config.yaml").write_text("\n".join(config) + "\n")
    (run / "provenance.json").write_text(json.dumps({"kit": "0.1.0", "python": "3.11"}))
    (run / "videos" / "step_000000100.mp4").write_bytes(_noise(0, 3000))
    (run / "metrics.jsonl").write_text("")
    for step in steps:
        add_checkpoint(run, step, replay, frozen)
    return run


def add_checkpoint(run: Path, step: int, replay: bool = False, frozen: int = 0) -> Path:
    """Commit a checkpoint of `step`, append its metrics row and set the status; return the checkpoint's folder.

    `replay`: add a replay segment to those of the previous checkpoint. `frozen`: seed of the frozen weights (0: none).
    """
    row = {"step": step, "rollout/ep_rew_mean": step / 10, "rollout/success_rate": 0.5, "train/loss": 0.1}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    shared = {}
    if replay:
        previous = sorted((run / "checkpoints").glob("step_*/manifest.json"))
        shared = json.loads(previous[-1].read_bytes())["shared"] if previous else {}
        shared = {path: entry for path, entry in shared.items() if path.startswith("replay/")}
        path = f"replay/{step:012d}.safetensors"
        data = save({"observations": _array(step, 100), "rewards": _array(step + 1, 10)})
        (run / "replay").mkdir(exist_ok=True)
        (run / path).write_bytes(data)
        shared = {**shared, path: {**_entry(data), "rows": 10}}
    if frozen:
        shared |= add_frozen(run, frozen)
    folder = write_checkpoint(run / "checkpoints", step, shared)
    set_status(run, step=step, state="running")
    return folder


def add_frozen(run: Path, seed: int) -> dict[str, Any]:
    """Write random frozen weights; return their entry for the manifest's "shared"."""
    data = save({"encoder": _array(seed, 3000)})
    path = f"frozen/{_entry(data)['sha256'][:16]}.safetensors"
    (run / "frozen").mkdir(exist_ok=True)
    (run / path).write_bytes(data)
    return {path: _entry(data)}


def write_checkpoint(folder: Path, step: int, shared: dict[str, Any] | None = None) -> Path:
    files = {
        "policy.safetensors": save({"weight": _array(step, 5000), "bias": _array(step + 1, 7)}),
        "optimizer.safetensors": save({"exp_avg": _array(step + 2, 900)}),
        "state.json": json.dumps({"trainer": {"steps": step}}).encode(),
    }
    manifest = {"version": 1, "step": step, "files": {n: _entry(d) for n, d in files.items()}, "shared": shared or {}}
    manifest["digest"] = digest(manifest)
    building = folder / f".building-{step}"
    building.mkdir(parents=True)
    for name, data in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
        (building / name).write_bytes(data)
    final = folder / f"step_{step:09d}"
    building.rename(final)
    return final


def set_status(run: Path, **values: Any) -> None:
    path = run / "status.json"
    old = json.loads(path.read_text()) if path.exists() else {"version": 1, "total_steps": 1000, "success_rate": 0.5}
    new = {**old, **values}
    path.write_text(json.dumps({**new, "updated": 1_700_000_000.0 + new["step"]}))


def content(run: Path, step: int | None = None) -> dict[str, bytes]:
    """Return path -> bytes of the files that a resume needs.

    These are the checkpoint of `step` (default: the newest), its shared files, config and metrics.
    """
    folder = sorted((run / "checkpoints").glob("step_*"))[-1] if step is None else run / f"checkpoints/step_{step:09d}"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    paths = [folder / name for name in [*manifest["files"], "manifest.json"]]
    paths += [run / name for name in [*manifest["shared"], "config.yaml", "metrics.jsonl"]]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


def read_state(run: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((run / ".sync.json").read_text()))
    return {"state": None, "step": None, "error": None, "failures": 0}


def _array(seed: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def _noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def _entry(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def latest(store: Store, name: str = "reach-1") -> int | None:
    files = store.list(name)
    return json.loads(store.read(f"{name}/latest.json"))["step"] if f"{name}/latest.json" in files else None


def steps(store: Store) -> set[int]:
    return {int(p.split("step_")[1][:9]) for p in store.list("reach-1/checkpoints") if p.endswith("manifest.json")}
