"""Manifests of checkpoints: validate names, sizes and hashes before a file is fetched or used.

A run may come from an untrusted source. Therefore file names cannot point outside the run's folder, the size of each
file and the total size are limited, only safetensors and JSON files are accepted, and a safetensors file's header is
checked before loading.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.errors import UserError

VERSION = 1
REPLAY, FROZEN = "replay", "frozen"
"""Folders of a run that hold files used by several checkpoints."""
MAX_FILE_BYTES = 4 * 2**30
MAX_TOTAL_BYTES = 8 * 2**30
"""Largest total size of a checkpoint from a store, including shared files, unless the user allows more. For
comparison: SAC's replay data, which is shared, takes under 1 GB for a million transitions of Reach."""
NO_LIMIT = 2**60
"""Stands for "no limit": for checkpoints that are on this machine already."""
MAX_JSON_BYTES = 64 * 2**20
MAX_FILES = 10_000
MAX_RANK = 16
SUFFIXES = (".safetensors", ".json")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


class Refused(UserError):
    """Data is damaged or unsafe. The message names the data and the reason."""


def safe_name(name: object) -> str:
    """Return `name` if it is a valid file name on every system and cannot leave its folder. Raises `Refused`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".") or _RESERVED.fullmatch(name):
        raise Refused(f"{_show(name)} is refused as a name; use letters, digits, '.', '_' and '-'.")
    return name


def safe_path(path: object) -> str:
    """Return `path` if it is a relative POSIX path of safe names. Raises `Refused`."""
    if not isinstance(path, str) or not path or len(path) > 1024:
        raise Refused(f"{_show(path)} is refused as a path inside a run.")
    for part in path.split("/"):
        safe_name(part)
    return path


def read_manifest(data: bytes, step: int | None = None, max_bytes: int = MAX_TOTAL_BYTES) -> dict[str, Any]:
    """Parse and validate a manifest: version, step, digest, and every file's name, size and SHA-256. Raises `Refused`.

    `step`: the expected step, or None. "files" contains names in the checkpoint's folder; "shared" contains paths in
    the run, `replay/<name>` and `frozen/<name>`.
    """
    manifest = parse_json(data, "manifest.json")
    if not isinstance(manifest, dict):
        raise Refused(f"a manifest is a JSON object, not {type(manifest).__name__}.")
    version, own_step = manifest.get("version"), manifest.get("step")
    if type(version) is not int or version < 1:
        raise Refused(f"a manifest with version={_show(version)} is refused.")
    if version > VERSION:
        raise Refused(f"manifest version={version} is newer than {VERSION}; update kit to open it.")
    if type(own_step) is not int or not 0 <= own_step < 2**53:
        raise Refused(f"a manifest with step={_show(own_step)} is refused.")
    if manifest.get("digest") != digest(manifest):
        raise Refused(f"the manifest of step {own_step} does not match its own SHA-256.")
    if step is not None and own_step != step:
        raise Refused(f"the manifest of step {step} says step={own_step}.")
    files, shared = manifest.get("files", {}), manifest.get("shared", {})
    for entries in (files, shared):
        if not isinstance(entries, dict) or len(entries) > MAX_FILES:
            raise Refused(f'"files" and "shared" of a manifest must be an object of at most {MAX_FILES} files each.')
    if not files:
        raise Refused(f"the manifest of step {own_step} names no files.")
    for name in files:
        if safe_name(name) == "manifest.json":
            raise Refused("a manifest cannot name itself.")
    for path in shared:
        folder, _, name = path.partition("/")
        if folder not in (REPLAY, FROZEN):
            raise Refused(f"{_show(path)} is refused; shared files live in {REPLAY}/ and {FROZEN}/.")
        safe_name(name)
    everything = {**files, **shared}
    if len({path.lower() for path in everything}) < len(everything):
        raise Refused(f"the manifest of step {own_step} names two files that differ in case only.")
    for path, entry in everything.items():
        _check_entry(path, entry)
    total = sum(entry["size"] for entry in everything.values())
    if total > max_bytes:
        claim = f"the manifest of step {own_step} claims {total:,} bytes, more than the {max_bytes:,} allowed"
        raise Refused(f"{claim}; if that is right, allow more with max_gb (kit resume --max-gb).")
    return manifest


def sealed(step: int, files: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Build a manifest with its digest."""
    manifest = {"version": VERSION, "step": step, "files": files, "shared": shared}
    return {**manifest, "digest": digest(manifest)}


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its "digest" entry, to detect a damaged manifest."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def parse_json(data: bytes, name: str) -> Any:
    """Parse untrusted bytes as JSON. Raises `Refused`, with the file's `name` in the message."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} is not JSON ({str(error)[:80]}).") from None


def check_tensors(path: Path) -> None:
    """Check a safetensors file's header (names, types, shapes, byte ranges) without loading it. Raises `Refused`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:  # safe_open checks the header against the file size
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - `file` is no mapping
        if any(len(shape) > MAX_RANK for shape in shapes):
            raise ValueError("a tensor has too many dimensions")
    except (SafetensorError, OSError, ValueError) as error:
        raise Refused(f"{path.name} is not a safetensors file ({_show(str(error))}).") from None


def _check_entry(path: str, entry: Any) -> None:
    if not path.endswith(SUFFIXES):
        raise Refused(f"{_show(path)} is refused; checkpoints hold safetensors and JSON files only.")
    size, sha256 = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    limit = MAX_JSON_BYTES if path.endswith(".json") else MAX_FILE_BYTES
    if type(size) is not int or not 0 <= size <= limit:
        raise Refused(f"{path} claims size={_show(size)}; at most {limit:,} bytes are accepted.")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise Refused(f"{path} has no valid SHA-256.")


def _show(value: object) -> str:
    """Format an untrusted `value` for a message: quoted, printable, at most 80 characters."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
