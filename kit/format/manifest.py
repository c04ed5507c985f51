"""What a checkpoint may look like, checked before a byte of it is fetched or used. Standard library only.

A run may come from a stranger. So names cannot leave the run's folder, sizes are bounded and added up, nothing but
safetensors and JSON is accepted, and a safetensors file is measured against its own header before anything loads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.errors import UserError

VERSION = 1
REPLAY, FROZEN = "replay", "frozen"
"""Folders of a run whose files checkpoints share."""
MAX_FILE_BYTES = 4 * 2**30
MAX_TOTAL_BYTES = 8 * 2**30
"""Of a checkpoint from elsewhere with what it shares, unless the user allows more. A million transitions of Reach are
under 1 GB."""
NO_LIMIT = 2**60
"""For files that are here already."""
MAX_JSON_BYTES = 64 * 2**20
MAX_FILES = 10_000
MAX_HEADER_BYTES = 16 * 2**20
SUFFIXES = (".safetensors", ".json")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_ITEM_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class Refused(UserError):
    """Data that is damaged or unsafe. The message says which and how."""


def safe_name(name: object) -> str:
    """`name`, if it can name one file or folder on every system and cannot lead out of its parent. Raises `Refused`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".") or _RESERVED.fullmatch(name):
        raise Refused(f"{_show(name)} is refused as a name; use letters, digits, '.', '_' and '-'.")
    return name


def safe_path(path: object) -> str:
    """`path`, if it is relative, POSIX, and every part of it a safe name. Raises `Refused`."""
    if not isinstance(path, str) or not path or len(path) > 1024:
        raise Refused(f"{_show(path)} is refused as a path inside a run.")
    for part in path.split("/"):
        safe_name(part)
    return path


def check_manifest(manifest: object, step: int | None = None, max_bytes: int = MAX_TOTAL_BYTES) -> dict[str, Any]:
    """`manifest`, if it is one: version, step, its own digest, and for every file a safe name, a plausible size and a
    SHA-256. "files" are names in the checkpoint's folder, "shared" are `replay/<name>` and `frozen/<name>` in the run.

    With `step`, the manifest must be of that step. Raises `Refused`.
    """
    if not isinstance(manifest, dict):
        raise Refused(f"a manifest is a JSON object, not {type(manifest).__name__}.")
    if not _is_int(manifest.get("version")) or manifest["version"] < 1:
        raise Refused(f"a manifest with version={_show(manifest.get('version'))} is refused.")
    if manifest["version"] > VERSION:
        raise Refused(f"manifest version={manifest['version']} is newer than {VERSION}; update kit to open it.")
    if not _is_int(manifest.get("step")) or not 0 <= manifest["step"] < 2**53:
        raise Refused(f"a manifest with step={_show(manifest.get('step'))} is refused.")
    if manifest.get("digest") != digest(manifest):
        raise Refused(f"the manifest of step {manifest['step']} does not have its own SHA-256.")
    if step is not None and manifest["step"] != step:
        raise Refused(f"the manifest of step {step} says step={manifest['step']}.")
    files, shared = _entries(manifest, "files"), _entries(manifest, "shared")
    if not files:
        raise Refused(f"the manifest of step {manifest['step']} names no files.")
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
        raise Refused(f"the manifest of step {manifest['step']} names two files that differ in case only.")
    for path, entry in everything.items():
        _check_entry(path, entry)
    total = sum(entry["size"] for entry in everything.values())
    if total > max_bytes:
        raise Refused(
            f"the manifest of step {manifest['step']} claims {total:,} bytes, more than the {max_bytes:,} allowed; "
            "if that is right, allow more with max_gb (kit resume --max-gb)."
        )
    return manifest


def digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of everything in the manifest but "digest" itself, so that damage of the manifest is noticed."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_manifest(data: bytes, step: int | None = None, max_bytes: int = MAX_TOTAL_BYTES) -> dict[str, Any]:
    """A checked manifest from its bytes. Raises `Refused`."""
    return check_manifest(parse_json(data, "manifest.json"), step, max_bytes)


def parse_json(data: bytes, what: str) -> Any:
    """JSON from bytes that may be anything. Raises `Refused`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{what} is not JSON ({str(error)[:80]}).") from None


def check_tensors(path: Path) -> None:
    """Refuse a safetensors file whose header lies about names, types, shapes or extents, without loading it.

    Layout: 8 bytes little-endian header length, JSON header, then the data; each tensor {"dtype", "shape",
    "data_offsets"}, the extents side by side with neither gap nor overlap.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or length > min(size - 8, MAX_HEADER_BYTES):
            raise Refused(f"{path.name} is not a safetensors file.")
        raw = file.read(length)
    if not raw.startswith(b"{"):
        raise Refused(f"{path.name} is not a safetensors file.")
    header = parse_json(raw, f"the header of {path.name}")
    extents = []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        try:
            bits, shape, (start, stop) = _ITEM_BITS[tensor["dtype"]], tensor["shape"], tensor["data_offsets"]
            plausible = all(_is_int(n) and n >= 0 for n in (*shape, start, stop)) and len(shape) <= 16
        except (KeyError, TypeError, ValueError):
            plausible = False
        if not plausible or stop - start != math.prod(shape) * bits // 8:
            raise Refused(f"tensor {_show(name)} of {path.name} has a shape, type or extent that cannot be.")
        extents.append((start, stop))
    end = 0
    for start, stop in sorted(extents):
        if start != end:
            raise Refused(f"tensors of {path.name} overlap or leave gaps.")
        end = stop
    if end != size - 8 - length:
        raise Refused(f"{path.name} has {size:,} bytes, not the {8 + length + end:,} of its header.")


def _entries(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    entries = manifest.get(key, {})
    if not isinstance(entries, dict) or len(entries) > MAX_FILES:
        raise Refused(f"manifest entry {key!r} is refused; it must be an object of at most {MAX_FILES} files.")
    return entries


def _check_entry(path: str, entry: object) -> None:
    if not path.endswith(SUFFIXES):
        raise Refused(f"{_show(path)} is refused; checkpoints hold safetensors and JSON files only.")
    size = entry.get("size") if isinstance(entry, dict) else None
    limit = MAX_JSON_BYTES if path.endswith(".json") else MAX_FILE_BYTES
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= limit:
        raise Refused(f"{path} claims size={_show(size)}; at most {limit:,} bytes are accepted.")
    sha256 = entry.get("sha256") if isinstance(entry, dict) else None
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise Refused(f"{path} has no valid SHA-256.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _show(value: object) -> str:
    """`value` in a message: quoted, printable, short."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
