"""Temporary stores on the real Hub, S3 and Drive, for `pytest -m live`.

Each is created with the user's credentials and deleted at the end. Without credentials its tests are skipped, and the
reason names the missing setting.

    Hub     needs a token that may write and delete (HF_TOKEN, or `hf auth login`); creates a private repository
    S3      needs KIT_LIVE_S3=s3://bucket/prefix, and credentials where AWS's own tools look for them; creates a prefix
    Drive   needs KIT_LIVE_DRIVE, the folder of a mounted drive such as /content/drive/MyDrive; creates a folder in it
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

XET = os.environ.get("HF_HUB_DISABLE_XET")
NAME = f"kit-scratch-{secrets.token_hex(4)}"


@contextlib.contextmanager
def hub() -> Iterator[str]:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    if huggingface_hub.get_token() is None:
        pytest.skip("the real Hub: no token; run `hf auth login` or set HF_TOKEN")
    api = huggingface_hub.HfApi()
    repo = f"{api.whoami()['name']}/{NAME}"
    try:
        yield f"hf://{repo}"
    finally:
        api.delete_repo(repo, missing_ok=True)


@contextlib.contextmanager
def s3() -> Iterator[str]:
    s3fs = pytest.importorskip("s3fs")
    if not (where := os.environ.get("KIT_LIVE_S3", "").rstrip("/")):
        pytest.skip("the real S3: set KIT_LIVE_S3=s3://bucket/prefix, and credentials (aws configure)")
    url = f"{where}/{NAME}"
    try:
        yield url
    finally:
        system = s3fs.S3FileSystem(use_listings_cache=False)
        if system.exists(url):
            system.rm(url, recursive=True)


@contextlib.contextmanager
def drive() -> Iterator[str]:
    if not (where := os.environ.get("KIT_LIVE_DRIVE")):
        pytest.skip("a mounted Drive: set KIT_LIVE_DRIVE to its folder, such as /content/drive/MyDrive")
    folder = Path(where) / NAME
    folder.mkdir()
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder)


SCRATCH: dict[str, Callable[[], AbstractContextManager[str]]] = {"hub": hub, "s3": s3, "drive": drive}
