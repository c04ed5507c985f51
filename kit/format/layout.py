"""Layout of a run in a store. Only a store has latest.json and lease.json.

<run_name>/
  config.yaml  provenance.json  status.json  metrics.jsonl  note.txt     text files, replaced atomically
  checkpoints/step_000100352/…  manifest.json                  the two newest, verified by reading back
  replay/…  frozen/…                                           shared by checkpoints, see kit.format.checkpoint
  best/step_…/…  videos/…  divergences/…
  latest.json    {"version", "step", "manifest_sha256", "time"}: the newest verified checkpoint; written last. On
                 the Hugging Face Hub, which keeps old versions of files, also "put_bytes": bytes uploaded since
                 the history was last squashed
  lease.json     see kit.stores.lease
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kit.format.files import read_json

TEXTS = {
    "config.yaml": 2**20, "provenance.json": 2**20, "metrics.jsonl": 512 * 2**20, "status.json": 2**20,
    "note.txt": 2**14,
}  # fmt: skip
"""Text files of a run -> largest accepted size in bytes."""
LATEST = "latest.json"
PASSED_OVER = ".passed-over.json"
"""File of a fetched run; see `passed_over`."""
VIDEO_SUFFIXES = (".mp4", ".webm", ".gif", ".png", ".webp")
MAX_VIDEO_BYTES = 200 * 2**20
DIVERGENCES = "divergences"
"""Folder of a run; see `kit.runs.divergence`."""
FILMS = {"videos": VIDEO_SUFFIXES, DIVERGENCES: (".safetensors",)}
"""Folder -> suffixes of its files that are copied to the store."""
_MANIFEST = re.compile(r"((?:checkpoints|best)/step_(\d{9,16}))/manifest\.json")


def folders_in(paths: Iterable[str], kind: str = "checkpoints") -> dict[str, int]:
    """Return folder -> step, newest first, of the checkpoints whose manifest is in `paths` (relative to the run)."""
    matches = [match for path in paths if path.startswith(kind) and (match := _MANIFEST.fullmatch(path))]
    return {match[1]: int(match[2]) for match in sorted(matches, key=lambda match: -int(match[2]))}


def passed_over(run_dir: Path) -> set[int]:
    """Return the steps whose checkpoints in the store were damaged when this run was fetched."""
    return set(read_json(run_dir / PASSED_OVER, []))
