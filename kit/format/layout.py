"""How a run lies on this machine and in a store: the same names in both.

<run_name>/
  config.yaml  provenance.json  status.json  metrics.jsonl     small text, replaced whole
  checkpoints/step_000100352/…  manifest.json                  the last few that were read back and found right
  replay/…                                                     shared by checkpoints
  best/step_…/…  videos/…
  latest.json    {"version", "step", "manifest_sha256", "time"}: the newest verified checkpoint; moved last
  lease.json     see kit.stores.lease
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.format.manifest import MAX_JSON_BYTES, NO_LIMIT, Refused, paths_of, read_manifest

TEXTS = ("config.yaml", "provenance.json", "metrics.jsonl", "status.json")
LATEST = "latest.json"
PASSED_OVER = ".passed-over.json"
VIDEO_SUFFIXES = (".mp4", ".webm", ".gif", ".png", ".webp")
MAX_VIDEO_BYTES = 200 * 2**20
_CHECKPOINT = re.compile(r"((?:checkpoints|best)/step_(\d{9,16}))(?=/|\Z)")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint by its manifest: `files` maps paths in the run to {"size", "sha256"}, manifest.json last."""

    step: int
    folder: str
    files: dict[str, dict[str, Any]]

    @classmethod
    def parse(cls, folder: str, raw: bytes, max_bytes: int = NO_LIMIT) -> Checkpoint:
        """From the bytes of the manifest of `folder`, "checkpoints/step_…" or "best/step_…". Raises `Refused`."""
        step = int(folder.rpartition("_")[2])
        manifest = read_manifest(raw, step, max_bytes)
        entry = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        return cls(step, folder, {**paths_of(manifest, folder), f"{folder}/manifest.json": entry})

    @property
    def manifest_sha256(self) -> str:
        return str(self.files[f"{self.folder}/manifest.json"]["sha256"])

    @property
    def size(self) -> int:
        return sum(int(entry["size"]) for entry in self.files.values())

    def lacks(self, held: dict[str, int]) -> list[str]:
        """The paths that are absent from `held`, or there with another size. A size of -1 means that nobody knows."""
        return [path for path, entry in self.files.items() if held.get(path) not in (entry["size"], -1)]


def folders_in(paths: Iterable[str], kind: str = "checkpoints") -> list[str]:
    """The checkpoint folders of which `paths` holds a manifest, newest first."""
    found = {
        match[1]: int(match[2])
        for path in paths
        if (match := _CHECKPOINT.match(path)) and path.endswith("/manifest.json")
    }
    return sorted((folder for folder in found if folder.startswith(kind)), key=lambda folder: -found[folder])


def step_in(path: str) -> int | None:
    """The step of the checkpoint that a path such as "checkpoints/step_000000100" (or of a file in it) belongs to."""
    match = _CHECKPOINT.match(path)
    return int(match[2]) if match else None


def passed_over(run_dir: Path) -> set[int]:
    """Steps whose checkpoints in the store were found damaged when this run was fetched; they do not count there."""
    try:
        return set(map(int, json.loads((run_dir / PASSED_OVER).read_bytes())))
    except (OSError, ValueError, TypeError):
        return set()


def local_folders(run_dir: Path, kind: str = "checkpoints") -> list[str]:
    """The committed checkpoint folders of a run on this machine, newest first."""
    folder = run_dir / kind
    names = [f"{kind}/{path.name}/manifest.json" for path in folder.iterdir()] if folder.is_dir() else []
    return folders_in(names, kind)


def newest_local(run_dir: Path) -> int | None:
    """The step of the newest committed checkpoint on this machine, by its name alone."""
    folders = local_folders(run_dir)
    return step_in(folders[0]) if folders else None


def read_local(run_dir: Path, folder: str) -> Checkpoint:
    """Raises `Refused` if its manifest is damaged, `FileNotFoundError` if it was retired meanwhile."""
    path = run_dir / folder / "manifest.json"
    if path.stat().st_size > MAX_JSON_BYTES:
        raise Refused(f"{folder}/manifest.json is too large.")
    return Checkpoint.parse(folder, path.read_bytes())
