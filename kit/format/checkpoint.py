"""One checkpoint: written so that it is whole or absent, read only after every byte is verified.

    checkpoints/step_000100352/
      policy.safetensors  optimizer.safetensors  env.safetensors ...   one file of tensors per part of the state
      state.json         every number that is not a tensor, by part
      manifest.json      size and SHA-256 of each file here, and of each it shares with others; written last
    replay/000000000000.safetensors    rows of off-policy data, by the number of the first
    frozen/0123456789abcdef.safetensors   the part "frozen", weights that never change, by the SHA-256 of the file

Order of writing: shared files, then the others under a temporary name, each fsynced; the manifest; fsync of the
folder; rename to the final name; fsync of `checkpoints/`. So a folder with a final name is complete, whenever the
power went. (The same order as restic's local backend and orbax.)
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.format import leftovers
from kit.format.files import entry_of, sha256, step_of, sync_folder, write_atomic, write_file
from kit.format.manifest import FROZEN, MAX_JSON_BYTES, NO_LIMIT, REPLAY, Refused, check_tensors, read_manifest, sealed

if TYPE_CHECKING:
    import torch

KINDS = ("checkpoints", "best", "policies")
"""Folders of them in a run."""
State = Mapping[str, Mapping[str, Any]]
"""Part -> its values: tensors and JSON values."""


class Damaged(Exception):
    """A checkpoint that is not what its manifest says. The message says which file and how."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: its `step` and folder `path`. Of one in a store only the manifest's bytes, `raw`, are
    here: see `of`."""

    step: int
    path: Path
    raw: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, folder: str, raw: bytes, max_bytes: int = NO_LIMIT) -> Checkpoint:
        """Of a run's `folder`, "checkpoints/step_…" or "best/step_…", whose manifest is `raw`. Raises `Refused`."""
        return cls(read_manifest(raw, step_of(folder), max_bytes)["step"], Path(folder), raw)

    @property
    def run_path(self) -> Path:
        return self.path.parent.parent

    @property
    def folder(self) -> str:
        """Its path in the run."""
        return f"{self.path.parent.name}/{self.path.name}"

    def loaded(self) -> Checkpoint:
        """The same with its manifest, checked, in memory: it stays known when others discard it. Raises `Damaged`."""
        found = replace(self, raw=self._manifest_bytes())
        found.manifest()
        return found

    def manifest(self) -> dict[str, Any]:
        """The manifest: whole, of this step, every name and size in it plausible. Raises `Damaged`."""
        try:
            return read_manifest(self._manifest_bytes(), self.step, NO_LIMIT)
        except Refused as refusal:
            raise Damaged(str(refusal)) from None

    def files(self) -> dict[str, dict[str, Any]]:
        """Every file it needs, by its path in the run: {"size", "sha256"}; the manifest last. Raises `Damaged`."""
        raw = self._manifest_bytes()
        manifest = replace(self, raw=raw).manifest()
        files = {**manifest["files"], "manifest.json": entry_of(raw)}
        return {**manifest.get("shared", {}), **{f"{self.folder}/{name}": entry for name, entry in files.items()}}

    def sizes(self) -> dict[str, int]:
        """Bytes of every file it needs; of one whose manifest is damaged nobody knows what it needs."""
        try:
            return {path: entry["size"] for path, entry in self.files().items()}
        except Damaged:
            return {}

    def missing_from(self, held: Mapping[str, int]) -> list[str]:
        """The paths that are absent from `held`, or there with another size; -1 means that nobody knows."""
        return [path for path, entry in self.files().items() if held.get(path) not in (entry["size"], -1)]

    def verify(self, replay: bool = True) -> None:
        """Compare every byte on this machine with the manifest; without `replay`, not that of the data it shares.
        Raises `Damaged`."""
        files = {name: entry for name, entry in self.files().items() if replay or not name.startswith(f"{REPLAY}/")}
        for name, entry in files.items():  # sizes first: a claim of 10 GB is refused before anything is read
            path = self.run_path / name
            if path.is_symlink() or not path.is_file():
                raise Damaged(f"{name} is missing")
            if path.stat().st_size != entry["size"]:
                raise Damaged(f"{name} has {path.stat().st_size} bytes, not {entry['size']}")
        for name, entry in files.items():
            if sha256(self.run_path / name) != entry["sha256"]:
                raise Damaged(f"{name} does not have the SHA-256 of its manifest")
        extra = {path.name for path in self.path.iterdir() if f"{self.folder}/{path.name}" not in files}
        if extra:
            raise Damaged(f"{self.path.name} holds {min(extra)}, which its manifest does not name")

    def read(self, replay: bool = True) -> dict[str, dict[str, Any]]:
        """Its state, verified first, as `verify`. Raises `Damaged`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        self.verify(replay)
        state = self.numbers()
        for path in [*sorted(self.path.glob("*.safetensors")), *self._shared(FROZEN)]:
            try:
                check_tensors(path)
                state.setdefault(path.stem if path.parent == self.path else FROZEN, {}).update(load_file(path))
            except (SafetensorError, Refused) as error:
                raise Damaged(f"{path.name} of {self.path.name} is not a safetensors file ({error})") from None
        return state

    def numbers(self) -> dict[str, dict[str, Any]]:
        """Every number in its state that is not a tensor, by part. Raises `Damaged`."""
        state = json.loads(_read(self.path / "state.json"))
        if not isinstance(state, dict) or not all(isinstance(values, dict) for values in state.values()):
            raise Damaged(f"state.json of {self.path.name} is not a mapping of mappings")
        return state

    def replay(self) -> list[Path]:
        """The replay segments it needs, oldest first."""
        return self._shared(REPLAY)

    def _shared(self, kind: str) -> list[Path]:
        return sorted(self.run_path / name for name in self.manifest().get("shared", {}) if name.startswith(f"{kind}/"))

    def _manifest_bytes(self) -> bytes:
        return _read(self.path / "manifest.json") if self.raw is None else self.raw


def write(folder: Path, step: int, state: State, shared: Mapping[str, Mapping[str, Any]] | None = None) -> Checkpoint:
    """Commit `state` as `folder`/step_<step>. `shared` are the manifest entries of files the run already holds."""
    folder.mkdir(parents=True, exist_ok=True)
    with leftovers.temporary(folder) as building:
        contents, shared = _encode(state), dict(shared or {})
        if frozen := contents.pop(f"{FROZEN}.safetensors", None):
            shared |= _write_frozen(folder.parent, frozen)
        files = {name: write_file(building / name, data) for name, data in contents.items()}
        write_file(building / "manifest.json", json.dumps(sealed(step, files, shared), indent=1).encode())
        sync_folder(building)
        final = folder / f"step_{step:09d}"
        # the same step may be there, after a resume from an older one or with an evaluation more
        old = leftovers.old(final)
        if final.exists():
            leftovers.remove(old)
            final.rename(old)
        building.rename(final)
        sync_folder(folder)
        leftovers.remove(old)
    return Checkpoint(step, final)


def committed(folder: Path) -> list[Checkpoint]:
    """The checkpoints in `folder`, oldest first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        found = [Checkpoint(step, path) for path in folder.iterdir() if (step := step_of(path.name)) is not None]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def discard(folder: Path) -> None:
    """Delete a checkpoint so that no reader ever sees a part of it."""
    leftovers.remove(leftovers.hide(folder))


def sweep(run_path: Path) -> None:
    """For whoever holds the run's lock: remove what killed processes left in it, and nothing that is still being made.
    A step that was being replaced comes back."""
    for path in run_path.glob(f"*/{leftovers.OLD}step_*"):
        final = path.with_name(path.name.removeprefix(leftovers.OLD))
        with contextlib.suppress(Damaged):
            if not final.exists():
                Checkpoint(step_of(final.name) or 0, path).verify()
                path.rename(final)
        leftovers.remove(path)
    for kind in (*KINDS, REPLAY, FROZEN):  # only training writes there
        leftovers.sweep(run_path / kind, alone=True)
    leftovers.sweep(run_path, below=True)


def prune(run_path: Path) -> None:
    """Delete shared files that no checkpoint, best or policy of the run names, but for damaged ones."""
    shared = [path for kind in (REPLAY, FROZEN) for path in (run_path / kind).glob("[0-9a-f]*.safetensors")]
    needed: set[str] = set()
    for found in [found for kind in KINDS if shared for found in committed(run_path / kind)]:
        with contextlib.suppress(Damaged):
            needed |= found.manifest().get("shared", {}).keys()
    for path in shared:
        if f"{path.parent.name}/{path.name}" not in needed:
            path.unlink(missing_ok=True)


def write_shared(run_path: Path, name: str, data: bytes) -> dict[str, Any]:
    """Write a file that several checkpoints share, atomically; its manifest entry."""
    (run_path / name).parent.mkdir(parents=True, exist_ok=True)
    write_atomic(run_path / name, data)
    return entry_of(data)


def size_of(state: State) -> int:
    """Bytes that writing `state` takes, about; frozen weights lie there already, but for the first time."""
    import torch

    parts = [values for part, values in state.items() if part != FROZEN]
    return sum(value.nbytes for values in parts for value in values.values() if isinstance(value, torch.Tensor))


def encode_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The bytes of a safetensors file, the same for the same tensors."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())})


def _encode(state: State) -> dict[str, bytes]:
    import torch

    files, numbers = {}, {}
    for part, values in state.items():
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        numbers[part] = {name: value for name, value in values.items() if name not in tensors}
        if tensors:
            files[f"{part}.safetensors"] = encode_tensors(tensors)
    files["state.json"] = json.dumps(numbers, indent=1, allow_nan=True).encode()
    return files


def _write_frozen(run_path: Path, data: bytes) -> dict[str, dict[str, Any]]:
    """Its entry under "shared". Nothing is written if the run holds it already, undamaged."""
    entry = entry_of(data)
    name = f"{FROZEN}/{entry['sha256'][:16]}.safetensors"
    path = run_path / name
    if not path.is_file() or sha256(path) != entry["sha256"]:
        write_shared(run_path, name, data)
    return {name: entry}


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink() or path.stat().st_size > MAX_JSON_BYTES:
            raise Damaged(f"{path.name} of {path.parent.name} is no plain file under {MAX_JSON_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name} of {path.parent.name} cannot be read ({error.strerror})") from None
