"""Tests of notebook 11_demonstrations: record, clone with BC, train further with SAC."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, execute

from kit.runs.finding import local_runs


@pytest.mark.timeout(CELL_LIMIT_S)
def test_a_program_is_recorded_cloned_and_improved_upon(workplace: Path) -> None:
    shown = execute(
        "11_demonstrations", workplace, demonstrations=2, clone_steps=256, total_steps=128, runs_dir="demos",
        episodes=2, careful={"n_steps": 64, "batch_size": 64, "critic_warmup": 64},
    )  # fmt: skip
    assert "2 episodes, " in shown
    assert {run.config.algo for run in local_runs(workplace / "demos")} == {"BC", "PPO"}
    assert all(run.status()["state"] == "finished" for run in local_runs(workplace / "demos"))
    for text in ("Reach with BC", "Reach with PPO", "clone, then PPO", "success_rate"):
        assert text in shown
