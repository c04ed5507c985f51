"""Store on a file system that fsspec supports: s3://, gs://, az://, sftp://, memory:// and others.

Files are written by `pipe_file` and `put_file`, because `with fs.open(...)` leaves a partial file after an exception in
the block. After each write, the stored size is checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from kit.errors import UserError, need
from kit.format.manifest import safe_path
from kit.stores.base import Files, MissingFile, Store, StoreError, Unusable, size_of
from kit.stores.redact import one_line

READ_CHUNK = 8 * 2**20
PROBE = "kit-write-probe"
_S3 = ("s3", "s3a")
_NO_FOLDERS = (*_S3, "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "memory")
"""URL schemes without real folders; creating a folder there might create a bucket."""


class BucketStore(Store):
    """Files below an fsspec URL. Each file system reads its usual credentials from the environment."""

    def __init__(self, url: str, write: bool = False) -> None:
        fsspec = need("fsspec", "stores")
        self.url = url
        self._scheme = url.split("://")[0].lower()
        options: dict[str, Any] = {"use_listings_cache": False}
        if self._scheme in _S3:
            if not find_spec("s3fs"):  # the newest s3fs needs an fsspec that other packages on Colab do not accept
                fits = f"s3fs=={fsspec.__version__}"
                raise UserError(f"store={url!r} needs s3fs; pip install '{fits}', which fits this machine's fsspec.")
            retries = {"max_attempts": 2, "mode": "standard"}
            options["config_kwargs"] = {"connect_timeout": 10, "read_timeout": 60, "retries": retries}
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **options)
        except ValueError:
            raise Unusable(url, "has an unknown scheme; use a path, hf://user/repo or s3://bucket/prefix.") from None
        except ImportError as error:
            raise Unusable(url, f"needs another package: {one_line(error)}") from None
        except Exception as error:
            raise Unusable(url, f"cannot be reached: {one_line(error)}; check the URL and credentials.") from None
        self._root = root.rstrip("/")
        if self._scheme in _S3 and not self._root:
            raise Unusable(url, "names no bucket; write s3://bucket/prefix.")
        try:
            self.put({PROBE: b"kit"}, delete=[PROBE]) if write else self.list()
        except StoreError as error:
            reason = f"cannot be {'written' if write else 'read'} ({error})"
            raise Unusable(url, f"{reason}; check the bucket's name and your credentials.") from None

    def list(self, prefix: str = "") -> dict[str, int]:
        top = self._full(prefix) if prefix else self._root
        with self._translated(prefix or "the folder"):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.find(top, detail=True)
            except FileNotFoundError:
                if self._scheme in _S3 and not self._fs.exists(self._root.split("/")[0]):
                    raise
                entries = {}
        start = len(self._fs._strip_protocol(self._root)) + 1
        return {path[start:]: int(info["size"]) for path, info in sorted(entries.items()) if info["type"] == "file"}

    def chunks(self, path: str) -> Iterator[bytes]:
        full = self._full(path)
        with self._translated(path):
            self._fs.invalidate_cache()
            size = int(self._fs.info(full)["size"])
            for start in range(0, size, READ_CHUNK):
                yield self._fs.cat_file(full, start=start, end=min(size, start + READ_CHUNK))

    def put(self, files: Files, delete: Sequence[str] = (), message: str = "") -> None:
        for path, content in files.items():
            size, full = size_of(content), self._full(path)
            with self._translated(path):
                if self._scheme not in _NO_FOLDERS:
                    self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
                if isinstance(content, bytes):
                    self._fs.pipe_file(full, content)
                else:
                    self._fs.put_file(str(content), full)
                self._fs.invalidate_cache()
                stored_size = int(self._fs.info(full)["size"])
            if stored_size != size:
                raise StoreError(f"{path} in {self.url} has {stored_size:,} bytes, {size:,} were written")
        for path in delete:
            with contextlib.suppress(MissingFile), self._translated(path):
                self._fs.rm_file(self._full(path))

    def swap(self, path: str, old: bytes | None, new: bytes) -> bool:
        """Compare-and-swap. Atomic on S3, which refuses a conditional write if the file has changed."""
        if self._scheme not in _S3:
            return super().swap(path, old, new)
        tag = self._tag(path)
        if self.read_or_none(path) != old or self._tag(path) != tag:
            return self.read_or_none(path) == new
        condition = {"mode": "create"} if tag is None else {"IfMatch": tag}
        # an error: S3 refused, or wrote and its response was lost; the read below shows which
        with contextlib.suppress(StoreError), self._translated(path):
            self._fs.pipe_file(self._full(path), new, **condition)
        return self.read_or_none(path) == new

    def _tag(self, path: str) -> str | None:
        with contextlib.suppress(MissingFile), self._translated(path):
            self._fs.invalidate_cache()
            return str(self._fs.info(self._full(path))["ETag"])
        return None

    def _full(self, path: str) -> str:
        return f"{self._root}/{safe_path(path)}"

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise MissingFile(f"{name} is not in {self.url}") from None
        except Exception as error:  # each library has its own classes: OSError, botocore's, aiohttp's, gcsfs's ...
            if isinstance(error, StoreError | UserError):
                raise
            raise StoreError(f"{name}: {type(error).__name__}: {one_line(error)}") from None
