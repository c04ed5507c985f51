"""Tests of notebook 11_demonstrations: record, clone with BC, train further with SAC."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, execute

from kit.runs.finding import local_runs


@pytest.mark.timeout(CELL_LIMIT_S)
def test_shifts_are_recorded_cloned_and_improved_upon(workplace: Path) -> None:
    shown = execute(
        "11_demonstrations", workplace, demonstrations=2, clone_steps=256, total_steps=8, runs_dir="demos",
        episodes=1, overrides={"learning_starts": 4},
    )  # fmt: skip
    assert "2 episodes, 1200 steps" in shown
    assert {run.config.algo for run in local_runs(workplace / "demos")} == {"BC", "SAC"}
    assert all(run.status()["state"] == "finished" for run in local_runs(workplace / "demos"))
    for text in ("Dishwashing with BC", "Dishwashing with SAC", "scripted seeker"):
        assert text in shown
