"""Tests of notebook 05_vision: PPO from images, saliency maps, distillation."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, TINY_DISTILL, execute

from kit.runs.finding import local_runs


@pytest.mark.timeout(2 * CELL_LIMIT_S)
def test_reach_trains_from_images_and_shows_saliency_maps(workplace: Path) -> None:
    small = {"env_options": {"size": 36, "frames": 2, "cameras": ["front", "side"]}, "total_steps": 32, "n_envs": 2}
    small |= {"eval_every": 0, "checkpoint_every": 32, "overrides": {"n_steps": 16, "batch_size": 16}}
    student = {"algo": "Distill", "encoder": "auto", "total_steps": 32, "overrides": TINY_DISTILL}
    shown = execute(
        "05_vision", workplace, **small, runs_dir="sights", episodes=2, run_name="own", teacher_steps=256,
        student=student | {"eval_every": 0},
    )  # fmt: skip
    runs = {run.config.algo: run for run in local_runs(workplace / "sights") if run.config.env == "ReachVision"}
    assert all(run.status()["state"] == "finished" for run in runs.values())
    assert {algo: run.config.encoder for algo, run in runs.items()} == {"PPO": "simple2dcnn", "Distill": "clip_cnn"}
    assert "ReachVision with Distill" in shown
    assert "(3, 32, 8, 8)" in shown, "the shape after the first convolution"
    assert "reached the ball" in shown
    assert shown.count("where it looks") == 2 * 2 * 2 and "success rate" in shown
    assert "TimeSformer" in shown or "timesformer" in shown
