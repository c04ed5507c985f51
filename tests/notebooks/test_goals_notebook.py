"""Tests of notebook 13_goals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, execute

from kit.runs.finding import local_runs


@pytest.mark.timeout(CELL_LIMIT_S)
def test_hindsight_by_hand_and_runs_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_EVAL_EPISODES", "2")
    small = {"learning_starts": 64, "batch_size": 32, "policy_kwargs": {"net_arch": [16]}}
    sizes = {"total_steps": 256, "without_steps": 256, "eval_every": 256, "n_envs": 4, "episodes": 2}
    shown = execute("13_goals", tmp_path, **sizes, overrides=small)
    runs = local_runs(tmp_path / "runs")
    goals = {run.config.overrides.get("n_sampled_goal", 4): run.status()["state"] for run in runs}
    assert goals == {4: "finished", 0: "finished"}
    own, hindsight = (float(re.findall(rf"{words} (-?[0-9.]+)", shown)[0]) for words in
                      ("with its own goal:", "in hindsight:"))  # fmt: skip
    assert own == -50 and hindsight > own
    assert "def _later_goal" in shown and shown.count("data:video/mp4;base64") >= 1
