"""05_vision."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, execute

from kit.runs.finding import local_runs


@pytest.mark.timeout(2 * CELL_LIMIT_S)
def test_an_arm_learns_from_cameras_and_shows_where_it_looks(workplace: Path) -> None:
    small = {"env_options": {"size": 32, "frames": 2, "cameras": ["front", "top"]}, "total_steps": 64, "n_envs": 2}
    small |= {"eval_every": 0, "checkpoint_every": 64, "overrides": {"n_steps": 16, "batch_size": 16}}
    shown = execute("05_vision", workplace, **small, runs_dir="sights", episodes=2)
    (run,) = local_runs(workplace / "sights")
    assert run.status()["state"] == "finished" and run.config.encoder == "simple2dcnn"
    assert shown.count("where it looks") == 2 * 2 * 2 and "success rate" in shown
    assert "TimeSformer" in shown or "timesformer" in shown
