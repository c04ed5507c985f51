"""Tests of `pytest -m live` against fake services: temporary stores are deleted, missing credentials are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.hub_server import HubServer

COMMAND = [sys.executable, "-m", "pytest", "-m", "live", "-p", "no:cacheprovider", "-v"]
TESTS = ["tests/stores/test_stores.py", "-k", "swap"]
WITH_CREDENTIALS = ("HF_TOKEN", "HF_ENDPOINT", "KIT_LIVE_S3", "KIT_LIVE_DRIVE")


def live(environment: dict[str, str]) -> str:
    root = Path(__file__).parents[2]
    done = subprocess.run([*COMMAND, *TESTS], env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_with_credentials_temporary_stores_are_deleted(
    hub: HubServer, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.rpartition("/")[0]
    (tmp_path / "drive").mkdir()
    added = {"KIT_LIVE_S3": bucket, "KIT_LIVE_DRIVE": str(tmp_path / "drive"), "HF_HUB_DISABLE_XET": "1"}
    assert "3 passed" in live({**os.environ, **added})
    assert hub.count("commit") == 2 and hub.count("create") == hub.count("delete") == 1 and hub.repos == {}
    assert list((tmp_path / "drive").iterdir()) == []
    import s3fs

    assert not [path for path in s3fs.S3FileSystem(use_listings_cache=False).find(bucket) if "kit-scratch" in path]


def test_without_credentials_what_is_missing_is_named(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in WITH_CREDENTIALS}
    said = live({**environment, "HF_HOME": str(tmp_path)})
    assert "3 skipped" in said
    for words in ("the real Hub: no token", "the real S3: set KIT_LIVE_S3", "a mounted Drive: set KIT_LIVE_DRIVE"):
        assert f"not tested here, 1 test: {words}" in said
