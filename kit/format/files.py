"""Files that are whole or absent, whenever the power goes, and how they are read back. Standard library only."""

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
    """Write, and wait for the disk if `durable`. Returns what a manifest says of it: {"size", "sha256"}."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return entry_of(data)


def write_atomic(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Replace `path` whole: a reader sees the old content or the new, never a part. `durable` waits for the disk."""
    with temporary(path.parent, file_mode=0o600) as building:
        write_file(building, content.encode() if isinstance(content, str) else content, durable)
        building.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable: after a rename, the folder itself must reach the disk. Some mounts cannot."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)


def entry_of(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, default: Any = None) -> Any:
    """What a JSON file says; `default` if there is none, or none that can be understood."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return default


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a file of JSON lines; one that is being written just now is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


class GrowingRows:
    """The rows of a file of JSON lines that others append to; `read` parses what is new, and of that keeps the columns
    `names`. Begins anew where the file was cut, as a resumed run does with work that was lost."""

    def __init__(self, path: Path, names: Collection[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path, self._names, self._at, self._before = path, names, 0, b""

    def read(self) -> bool:
        """Whether there was anything new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at - len(self._before))
                data = file.read()
        except FileNotFoundError:
            data = b""
        if not data.startswith(self._before):
            self.rows, self._at, self._before = [], 0, b""
            return self.read()
        new = data[len(self._before) : data.rfind(b"\n") + 1]
        for line in new.splitlines():
            row = json.loads(line)
            self.rows.append({name: row[name] for name in self._names if name in row})
        self._at, self._before = self._at + len(new), (self._before + new)[-200:]
        return bool(new)


def step_of(folder: str) -> int | None:
    """Of a checkpoint's folder, "step_000000100" with or without what leads to it; None for any other name."""
    match = _STEP.fullmatch(folder.rpartition("/")[2])
    return int(match[1]) if match else None
