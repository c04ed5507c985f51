"""Evaluations of a few episodes: what a run does around them does not hang on how many they are."""

from __future__ import annotations

import pytest

from kit.runs import evaluation


@pytest.fixture(autouse=True)
def short_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EPISODES", 4)
