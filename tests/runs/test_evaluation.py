"""Tests of evaluations: where they are computed."""

from __future__ import annotations

import pytest

from kit.config import RunConfig
from kit.runs.evaluation import during_training


@pytest.mark.parametrize(
    ("env", "device"),
    [("Ant", "cpu"), ("G1Joystick", "cpu"), ("ReachVision", "cuda"), ("Mission", "cuda"), ("HalfCheetah-v5", "cpu")],
)
def test_a_run_on_a_gpu_evaluates_robots_on_the_cpu_and_images_and_games_on_the_gpu(env: str, device: str) -> None:
    assert during_training(RunConfig(env=env, device="cuda")).device == device
    assert during_training(RunConfig(env=env, device="cpu")).device == "cpu"
