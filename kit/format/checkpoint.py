"""Checkpoints: written atomically, and read only after every byte is verified.

    checkpoints/step_000100352/
      policy.safetensors  optimizer.safetensors  env.safetensors ...   one file of tensors per component
      state.json         values that are not tensors, by component
      manifest.json      size and SHA-256 of each file in this folder and of each shared file; written last
    replay/000000000000.safetensors    replay data, named by the vector step of its first row
    frozen/0123456789abcdef.safetensors   component "frozen": weights that never change, named by SHA-256
    frozen/dataset-….safetensors          component "dataset": demonstrations, which never change either

Order of writing: shared files; the checkpoint's files, in a folder with a temporary name; the manifest; rename of the
folder to its final name. Files and folders are fsynced before and after the rename, so that a folder with a final name
is complete even after a power failure. (restic's local backend and orbax use the same order.)
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
"""Folders of a run that hold checkpoints."""
UNCHANGING = (FROZEN, "dataset")
"""Components that never change during a run. All its checkpoints share one file per component."""
State = Mapping[str, Mapping[str, Any]]
"""Component -> its values: tensors and JSON values."""


class Damaged(Exception):
    """A checkpoint that differs from its manifest. The message names the file and the difference."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint in the folder `path`. `raw`: the manifest's bytes if read already, else None."""

    step: int
    path: Path
    raw: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, folder: str, raw: bytes, max_bytes: int = NO_LIMIT) -> Checkpoint:
        """Return a checkpoint in a store. `folder`: its path in the run; `raw`: its manifest. Raises `Refused`."""
        return cls(read_manifest(raw, step_of(folder), max_bytes)["step"], Path(folder), raw)

    @property
    def run_path(self) -> Path:
        return self.path.parent.parent

    @property
    def folder(self) -> str:
        """Path of the checkpoint relative to the run."""
        return f"{self.path.parent.name}/{self.path.name}"

    def loaded(self) -> Checkpoint:
        """Return a copy that holds the manifest in memory; `manifest` then works without files. Raises `Damaged`."""
        loaded = replace(self, raw=self._manifest_bytes())
        loaded.manifest()
        return loaded

    def manifest(self) -> dict[str, Any]:
        """Parse and check the manifest: step, names and sizes. Raises `Damaged`."""
        try:
            return read_manifest(self._manifest_bytes(), self.step, NO_LIMIT)
        except Refused as refusal:
            raise Damaged(str(refusal)) from None

    def files(self) -> dict[str, dict[str, Any]]:
        """Return path in the run -> {"size", "sha256"} of shared and own files, manifest last. Raises `Damaged`."""
        raw = self._manifest_bytes()
        manifest = replace(self, raw=raw).manifest()
        files = {**manifest["files"], "manifest.json": entry_of(raw)}
        return {**manifest.get("shared", {}), **{f"{self.folder}/{name}": entry for name, entry in files.items()}}

    def sizes(self) -> dict[str, int]:
        """Return path in the run -> size in bytes, for the paths of `files()`; empty if the manifest is damaged."""
        try:
            return {path: entry["size"] for path, entry in self.files().items()}
        except Damaged:
            return {}

    def missing_from(self, held: Mapping[str, int]) -> list[str]:
        """Return the paths of `files()` that `held` (path -> size, -1: unknown) lacks or has with another size."""
        return [path for path, entry in self.files().items() if held.get(path) not in (entry["size"], -1)]

    def verify(self, replay: bool = True) -> None:
        """Compare every file on disk with the manifest; `replay=False` skips replay data. Raises `Damaged`."""
        files = {name: entry for name, entry in self.files().items() if replay or not name.startswith(f"{REPLAY}/")}
        for name, entry in files.items():  # sizes first: a wrong size is found before any file is read
            path = self.run_path / name
            if path.is_symlink() or not path.is_file():
                raise Damaged(f"{name} is missing")
            if path.stat().st_size != entry["size"]:
                raise Damaged(f"{name} has {path.stat().st_size} bytes, not {entry['size']}")
        for name, entry in files.items():
            if sha256(self.run_path / name) != entry["sha256"]:
                raise Damaged(f"the SHA-256 of {name} differs from the one in the manifest")
        extra = {path.name for path in self.path.iterdir() if f"{self.folder}/{path.name}" not in files}
        if extra:
            raise Damaged(f"{self.path.name} holds {min(extra)}, which its manifest does not name")

    def read(self, replay: bool = True) -> dict[str, dict[str, Any]]:
        """Verify the checkpoint (see `verify`) and return its state by component. Raises `Damaged`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        self.verify(replay)
        state = self.numbers()
        for path in [*sorted(self.path.glob("*.safetensors")), *self._shared(FROZEN)]:
            try:
                check_tensors(path)
                component = path.stem if path.parent == self.path else path.stem.rpartition("-")[0] or FROZEN
                state.setdefault(component, {}).update(load_file(path))
            except (SafetensorError, Refused) as error:
                raise Damaged(f"{path.name} of {self.path.name} is not a safetensors file ({error})") from None
        return state

    def numbers(self) -> dict[str, dict[str, Any]]:
        """Return the JSON values of the state, by component, without tensors. Raises `Damaged`."""
        state = json.loads(_read(self.path / "state.json"))
        if not isinstance(state, dict) or not all(isinstance(values, dict) for values in state.values()):
            raise Damaged(f"state.json of {self.path.name} is not a mapping of mappings")
        return state

    def replay(self) -> list[Path]:
        """Return the paths of the replay segments that this checkpoint needs, oldest first."""
        return self._shared(REPLAY)

    def _shared(self, kind: str) -> list[Path]:
        return sorted(self.run_path / name for name in self.manifest().get("shared", {}) if name.startswith(f"{kind}/"))

    def _manifest_bytes(self) -> bytes:
        return _read(self.path / "manifest.json") if self.raw is None else self.raw


def write(folder: Path, step: int, state: State, shared: Mapping[str, Mapping[str, Any]] | None = None) -> Checkpoint:
    """Write `state` as `folder`/step_<step>. `shared`: manifest entries of shared files, already written."""
    folder.mkdir(parents=True, exist_ok=True)
    with leftovers.temporary(folder) as building:
        contents, shared = _encode(state), dict(shared or {})
        for component in UNCHANGING:
            if data := contents.pop(f"{component}.safetensors", None):
                shared |= _write_frozen(folder.parent, component, data)
        files = {name: write_file(building / name, data) for name, data in contents.items()}
        write_file(building / "manifest.json", json.dumps(sealed(step, files, shared), indent=1).encode())
        sync_folder(building)
        final = folder / f"step_{step:09d}"
        # this step may be on disk already: a resumed run reaches it again, or it is saved again after an evaluation
        old = leftovers.old(final)
        if final.exists():
            leftovers.remove(old)
            final.rename(old)
        building.rename(final)
        sync_folder(folder)
        leftovers.remove(old)
    return Checkpoint(step, final)


def committed(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints in `folder`, oldest first."""
    checkpoints = []
    with contextlib.suppress(FileNotFoundError):
        checkpoints = [Checkpoint(step, path) for path in folder.iterdir() if (step := step_of(path.name)) is not None]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


def discard(folder: Path) -> None:
    """Delete a checkpoint; no reader ever sees it half deleted."""
    leftovers.remove(leftovers.hide(folder))


def sweep(run_path: Path) -> None:
    """Clean up a run after killed processes: remove temporary files, restore a step that was being replaced.

    The caller must hold the run's lock. Temporary files of live processes are kept if they changed in the last 24 h.
    """
    for path in run_path.glob(f"*/{leftovers.OLD}step_*"):
        final = path.with_name(path.name.removeprefix(leftovers.OLD))
        with contextlib.suppress(Damaged):
            if not final.exists():
                Checkpoint(step_of(final.name) or 0, path).verify()
                path.rename(final)
        leftovers.remove(path)
    for kind in (*KINDS, REPLAY, FROZEN):  # only the holder of the lock writes here
        leftovers.sweep(run_path / kind, sole_writer=True)
    leftovers.sweep(run_path, recursive=True)


def prune(run_path: Path) -> None:
    """Delete shared files that no checkpoint of the run needs. A checkpoint with a damaged manifest keeps no files."""
    shared = [path for kind in (REPLAY, FROZEN) for path in (run_path / kind).glob("[0-9a-z]*.safetensors")]
    needed: set[str] = set()
    for checkpoint in [each for kind in KINDS if shared for each in committed(run_path / kind)]:
        with contextlib.suppress(Damaged):
            needed |= checkpoint.manifest().get("shared", {}).keys()
    for path in shared:
        if f"{path.parent.name}/{path.name}" not in needed:
            path.unlink(missing_ok=True)


def write_shared(run_path: Path, name: str, data: bytes) -> dict[str, Any]:
    """Write a file shared by several checkpoints, atomically, and return its manifest entry."""
    (run_path / name).parent.mkdir(parents=True, exist_ok=True)
    write_atomic(run_path / name, data)
    return entry_of(data)


def size_of(state: State) -> int:
    """Return the approximate bytes of `state` on disk, without the components that all checkpoints share."""
    import torch

    components = [values for name, values in state.items() if name not in UNCHANGING]
    return sum(value.nbytes for values in components for value in values.values() if isinstance(value, torch.Tensor))


def encode_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Encode tensors as safetensors; the same tensors give the same bytes."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())})


def _encode(state: State) -> dict[str, bytes]:
    """Return file name -> bytes of a checkpoint's files, without the manifest."""
    import torch

    files, numbers = {}, {}
    for component, values in state.items():
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        numbers[component] = {name: value for name, value in values.items() if name not in tensors}
        if tensors:
            files[f"{component}.safetensors"] = encode_tensors(tensors)
    files["state.json"] = json.dumps(numbers, indent=1, allow_nan=True).encode()
    return files


def _write_frozen(run_path: Path, component: str, data: bytes) -> dict[str, dict[str, Any]]:
    """Write a component of `UNCHANGING` unless the run has an intact copy; return path -> entry for "shared"."""
    entry = entry_of(data)
    prefix = "" if component == FROZEN else f"{component}-"
    name = f"{FROZEN}/{prefix}{entry['sha256'][:16]}.safetensors"
    path = run_path / name
    if not path.is_file() or sha256(path) != entry["sha256"]:
        write_shared(run_path, name, data)
    return {name: entry}


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink() or path.stat().st_size > MAX_JSON_BYTES:
            raise Damaged(f"{path.name} of {path.parent.name} is not a regular file of at most {MAX_JSON_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name} of {path.parent.name} cannot be read ({error.strerror})") from None
