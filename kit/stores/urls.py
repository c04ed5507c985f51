"""Open a store by its URL."""

from __future__ import annotations

import os
import re

from kit.errors import UserError
from kit.stores.base import Store, Unusable, within
from kit.stores.bucket import BucketStore
from kit.stores.folder import DirectoryStore
from kit.stores.gdrive import GoogleDriveLink
from kit.stores.hub import HubStore

OPEN_S = 120.0
"""Time limit for opening a store, in seconds."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def open_store(url: str | os.PathLike[str], write: bool = False) -> Store:
    """Open the store at `url`. `write`: create it if needed, and check that it can be written.

    `url`: a path, drive:folder, hf://user/repo[/prefix], s3://bucket/prefix or another URL that fsspec knows, or
    gdrive-link:… (read only). Raises `UserError` for a URL that cannot be parsed, reached or written, and for a token
    that is missing or read-only.
    """
    url = os.fspath(url)
    return within(OPEN_S, lambda: _open(url, write), url)


def absolute(url: str) -> str:
    """Return the store `url`; a relative folder becomes absolute, to be the same one in every working directory."""
    is_folder = url.strip() and not _SCHEME.match(url) and not url.startswith("~")
    return os.path.abspath(url) if is_folder else url  # noqa: PTH100 - keeps symlinks


def _open(url: str, write: bool) -> Store:
    scheme = check_url(url)
    if scheme == "hf":
        return HubStore(url, write)
    if scheme == "gdrive-link":
        return GoogleDriveLink(url, write)
    if "://" in url and scheme != "file":
        return BucketStore(url, write)
    return DirectoryStore(url, write)


def check_url(url: str) -> str:
    """Return the URL's scheme, "" for a path. Raises `UserError` for a malformed URL. Asks no store."""
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UserError("store holds a user name or password; leave them out of the URL, set them in the environment.")
    if not url.strip() or "\0" in url or "\n" in url:
        raise Unusable(url, "is empty or not one line; use a path, drive:folder, hf://user/repo or s3://bucket.")
    if "://" not in url and scheme not in ("", "drive", "file", "gdrive-link", "hf"):
        raise Unusable(url, "has an unknown scheme; use a path, drive:folder, hf://user/repo or s3://bucket/prefix.")
    return scheme
