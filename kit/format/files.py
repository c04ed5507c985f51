"""Write files atomically; read JSON files. Standard library only."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kit.format.leftovers import temporary

_STEP = re.compile(r"step_(\d{9,16})")


def write_file(path: Path, data: bytes, durable: bool = True) -> dict[str, Any]:
    """Write a file, with fsync if `durable`. Returns its manifest entry {"size", "sha256"}."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return entry_of(data)


def write_atomic(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Replace `path` atomically: a reader sees the old or the new content. `durable`: fsync file and folder."""
    with temporary(path.parent, file_mode=0o600) as building:
        write_file(building, content.encode() if isinstance(content, str) else content, durable)
        building.replace(path)
    if durable:
        sync_folder(path.parent)


def overwrite(path: Path, text: str) -> None:
    """Write `text` into the existing file `path`: not atomic, but a small file needs no space on a full disk."""
    with path.open("r+") as file:
        file.write(text)
        file.truncate()


def sync_folder(folder: Path) -> None:
    """fsync a folder, so that a rename in it survives a power failure. Does nothing on mounts without fsync."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)


def entry_of(data: bytes) -> dict[str, Any]:
    """Return the manifest entry of a file's content."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, default: Any = None) -> Any:
    """Load a JSON file; return `default` if it is missing or not JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return default


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Load the complete lines of a JSON-lines file; the last line may be incomplete. [] if the file is missing."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


class GrowingRows:
    """Incremental reader of a JSON-lines file that another process appends to.

    `read` parses the new lines and appends them to `rows`, with the columns `names` only (None: all); a name that ends
    in "/" means all columns that begin with it. If the file was truncated (a run was resumed from an older checkpoint),
    `read` starts again at the first line.
    """

    def __init__(self, path: Path, names: Collection[str] | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path, self._names, self._position = path, names, 0
        self._before = b""  # the last bytes that were read; if they differ at the next read, the file was replaced
        self._prefixes = tuple(name for name in names or () if name.endswith("/"))

    def read(self) -> bool:
        """Parse new lines; return whether there were any."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position - len(self._before))
                data = file.read()
        except FileNotFoundError:
            data = b""
        if not data.startswith(self._before):
            self.rows, self._position, self._before = [], 0, b""
            return self.read()
        new = data[len(self._before) : data.rfind(b"\n") + 1]
        for line in new.splitlines():
            row = json.loads(line)
            kept = row if self._names is None else self._names
            self.rows.append({k: value for k, value in row.items() if k in kept or k.startswith(self._prefixes)})
        self._position, self._before = self._position + len(new), (self._before + new)[-200:]
        return bool(new)


def step_of(folder: str) -> int | None:
    """Return the step of a checkpoint folder such as "checkpoints/step_000000100"; None for any other name."""
    match = _STEP.fullmatch(folder.rpartition("/")[2])
    return int(match[1]) if match else None
