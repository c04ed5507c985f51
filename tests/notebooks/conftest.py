"""Fixtures for notebook tests: a working directory, short videos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def short_videos() -> Iterator[None]:
    """Limit videos to 0.1 s, because rendering takes longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_FILM_S", "0.1")
        yield


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebooks")
