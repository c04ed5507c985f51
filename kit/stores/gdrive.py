"""A shared Google Drive folder as a read-only store, downloaded with gdown, without a Google account.

URL: gdrive-link:https://drive.google.com/drive/folders/…
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kit.errors import need
from kit.format.manifest import MAX_FILE_BYTES
from kit.stores.base import CHUNK, Files, MissingFile, Store, StoreError, Unusable
from kit.stores.redact import one_line

TIMEOUT_S = 60.0


class GoogleDriveLink(Store):
    """Files behind a shared link, listed once. `list` returns size -1 for each, because gdown lists no sizes."""

    def __init__(self, url: str, write: bool = False) -> None:
        self.url = url
        link = url.split(":", 1)[1]
        if write:
            raise Unusable(url, "can only be read; use drive:folder, hf://user/repo or s3://bucket to write.")
        if not link.startswith("https://drive.google.com/drive/") or "/folders/" not in link:
            raise Unusable(url, "cannot be parsed; write gdrive-link: and a shared Drive folder's link.")
        self._gdown: Any = need("gdown", "drive")
        try:
            files = self._gdown.download_folder(
                url=link, output="run", skip_download=True, quiet=True, use_cookies=False, timeout=TIMEOUT_S
            )
        except Exception as error:
            reason = f"cannot be reached ({one_line(error)}); set the folder to 'Anyone with the link'."
            raise Unusable(url, reason) from None
        self._ids = {file.path.replace("\\", "/"): file.id for file in files}

    def list(self, prefix: str = "") -> dict[str, int]:
        below = f"{prefix}/" if prefix else ""
        return {path: -1 for path in sorted(self._ids) if path == prefix or path.startswith(below)}

    def chunks(self, path: str) -> Iterator[bytes]:
        yield from self._limited(path, MAX_FILE_BYTES)

    def _limited(self, path: str, limit: int | None) -> Iterator[bytes]:
        """Like `chunks`, but raise `StoreError` after more than `limit` bytes.

        Uses a temporary file, since gdown can only write to files.
        """
        if path not in self._ids:
            raise MissingFile(f"{path} is not in {self.url}")

        def check(done: int, total: int | None) -> None:
            if limit is not None and max(done, total or 0) > limit:
                raise StoreError(f"{path} is larger than {limit:,} bytes")

        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "file"
            options = {"quiet": True, "use_cookies": False, "timeout": TIMEOUT_S, "progress": check}
            try:
                self._gdown.download(id=self._ids[path], output=str(local), **options)
            except StoreError:
                raise
            except Exception as error:
                raise StoreError(f"{path} in {self.url}: {one_line(error)}") from None
            with local.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk

    def put(self, files: Files, delete: Sequence[str] = (), message: str = "") -> None:
        raise StoreError(f"{self.url} can only be read")
