"""Tests of notebook 12_write_an_algorithm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, execute

from kit.runs.finding import local_runs


@pytest.mark.timeout(CELL_LIMIT_S)
def test_three_algorithms_are_written_trained_resumed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIT_EVAL_EPISODES", "2")
    shown = execute("12_write_an_algorithm", tmp_path, total_steps=256, eval_every=256, seeds=1)
    runs = local_runs(tmp_path / "runs")
    assert {run.config.algo.removeprefix("my_algorithm:") for run in runs} == {"REINFORCE", "BASELINE", "CLIPPED"}
    assert all(run.status()["state"] == "finished" for run in runs)
    first, second = re.findall(r"\b[0-9a-f]{64}\b", shown)
    assert first == second, "it resumes exactly"
    assert re.search(r"Reach with my_algorithm:REINFORCE: \d+ % success after 256 steps", shown)
    assert "my_algorithm:CLIPPED" in shown and shown.count("data:video/mp4;base64") == 1
