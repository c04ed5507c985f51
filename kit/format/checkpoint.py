"""One checkpoint on disk: written so that it is whole or absent, read only after every byte is verified.

    checkpoints/step_000100352/
      policy.safetensors  optimizer.safetensors  env.safetensors ...   one file of tensors per component
      state.json         every number that is not a tensor, by component
      manifest.json      size and SHA-256 of each file here, and of the replay segments it needs; written last

Order of writing: replay segments, then the files under a temporary name, each fsynced; the manifest; fsync of the
folder; rename to the final name; fsync of `checkpoints/`. So a folder with a final name is complete, whenever the
power went. (The same order as restic's local backend and orbax.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.format.manifest import (
    MAX_JSON_BYTES,
    NO_LIMIT,
    VERSION,
    Refused,
    check_tensors,
    digest,
    paths_of,
    read_manifest,
)
from kit.runs.directory import step_of, sync_folder, write_atomic

if TYPE_CHECKING:
    import torch

State = Mapping[str, Mapping[str, Any]]
"""Component name to its values: tensors and JSON values."""


class Damaged(Exception):
    """A checkpoint that is not what its manifest says. The message says which file and how."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: its `step` and folder `path`."""

    step: int
    path: Path

    @property
    def run_path(self) -> Path:
        return self.path.parent.parent

    def manifest(self) -> dict[str, Any]:
        """The manifest: whole, of this step, every name and size in it plausible. Raises `Damaged`."""
        path = self.path / "manifest.json"
        try:
            manifest = read_manifest(_read(path), self.step, NO_LIMIT)
        except Refused as refusal:
            raise Damaged(str(refusal)) from None
        if manifest.get("digest") != digest(manifest):
            raise Damaged(f"manifest.json of {self.path.name} does not have its own SHA-256")
        return manifest

    def files(self) -> dict[str, dict[str, Any]]:
        """Every file the checkpoint needs, by its path relative to the run: {"size", "sha256"}."""
        return paths_of(self.manifest(), f"{self.path.parent.name}/{self.path.name}")

    def verify(self) -> None:
        """Compare every byte with the manifest. Raises `Damaged`."""
        files = self.files()
        for name, entry in files.items():  # sizes first: a claim of 10 GB is refused before anything is read
            path = self.run_path / name
            if path.is_symlink() or not path.is_file():
                raise Damaged(f"{name} is missing")
            if path.stat().st_size != entry["size"]:
                raise Damaged(f"{name} has {path.stat().st_size} bytes, not {entry['size']}")
        for name, entry in files.items():
            if sha256(self.run_path / name) != entry.get("sha256"):
                raise Damaged(f"{name} does not have the SHA-256 of its manifest")
        extra = {p.name for p in self.path.iterdir()} - {Path(name).name for name in files} - {"manifest.json"}
        if extra:
            raise Damaged(f"{self.path.name} holds {min(extra)}, which its manifest does not name")

    def read(self) -> dict[str, dict[str, Any]]:
        """Its state, verified first. Raises `Damaged`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        self.verify()
        state = json.loads(_read(self.path / "state.json"))
        if not isinstance(state, dict) or not all(isinstance(values, dict) for values in state.values()):
            raise Damaged(f"state.json of {self.path.name} is not a mapping of mappings")
        for path in sorted(self.path.glob("*.safetensors")):
            try:
                check_tensors(path)
                state.setdefault(path.stem, {}).update(load_file(path))
            except (SafetensorError, Refused) as error:
                raise Damaged(f"{path.name} of {self.path.name} is not a safetensors file ({error})") from None
        return state

    def replay(self) -> list[Path]:
        """The replay segments it needs, oldest first."""
        return sorted(self.run_path / name for name in self.manifest().get("shared", {}))


def write(folder: Path, step: int, state: State, shared: Mapping[str, Mapping[str, Any]] | None = None) -> Checkpoint:
    """Commit `state` as `folder`/step_<step>. `shared` are the manifest entries of files the run already holds."""
    folder.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
    building.chmod(0o755)
    try:
        files = {name: write_file(building / name, data) for name, data in _encode(state).items()}
        manifest = {"version": VERSION, "step": step, "files": files, "shared": dict(shared or {})}
        manifest["digest"] = digest(manifest)
        write_file(building / "manifest.json", json.dumps(manifest, indent=1).encode())
        sync_folder(building)
        final = folder / f"step_{step:09d}"
        if final.exists():  # the same step again, after a resume from an older checkpoint
            discard(final)
        building.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return Checkpoint(step, final)


def committed(folder: Path) -> list[Checkpoint]:
    """The checkpoints in `folder`, oldest first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        found = [Checkpoint(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def discard(folder: Path) -> None:
    """Delete a checkpoint so that no reader ever sees a part of it: rename first, then remove."""
    trash = Path(tempfile.mkdtemp(prefix=".trash-", dir=folder.parent))
    folder.rename(trash / folder.name)
    shutil.rmtree(trash, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what a killed process left behind under temporary names."""
    for path in folder.glob(".building-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".trash-*"):
        shutil.rmtree(path, ignore_errors=True)


def write_file(path: Path, data: bytes) -> dict[str, Any]:
    """Write and fsync; the manifest entry {"size", "sha256"}."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_shared(run_path: Path, name: str, data: bytes) -> dict[str, Any]:
    """Write a file that several checkpoints share, atomically; its manifest entry."""
    (run_path / name).parent.mkdir(parents=True, exist_ok=True)
    write_atomic(run_path / name, data)
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The bytes of a safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())})


def _encode(state: State) -> dict[str, bytes]:
    import torch

    files, numbers = {}, {}
    for component, values in state.items():
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        numbers[component] = {name: value for name, value in values.items() if name not in tensors}
        if tensors:
            files[f"{component}.safetensors"] = encode_tensors(tensors)
    files["state.json"] = json.dumps(numbers, indent=1, allow_nan=True).encode()
    return files


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink() or path.stat().st_size > MAX_JSON_BYTES:
            raise Damaged(f"{path.name} of {path.parent.name} is no plain file under {MAX_JSON_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name} of {path.parent.name} cannot be read ({error.strerror})") from None
