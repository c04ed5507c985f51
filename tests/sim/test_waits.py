"""Tests, on the pretended GPU, of how often training waits for the GPU and how many kernels an env step launches."""

from __future__ import annotations

import pytest

from tests import card
from tests.bench.waits import CASES, STEPS, Case, count

pytestmark = [
    pytest.mark.skipif(not card.is_installed(), reason="needs the pretended GPU: pytest -p tests.card"),
    pytest.mark.timeout(900),
]

UPDATES = 8
"""Minibatches of the small RecurrentPPO; each waits for the number of its sequences and the longest length."""
SEES = {"ReachVision", "DishwashingVideo"}
KERNELS = {
    "Mission": 40, "Ant": 80, "Reach": 120, "Go1Joystick": 290, "G1Joystick": 320, "Push": 170, "Dishwashing": 480,
    "ReachVision": 150, "DishwashingVideo": 480,
}  # fmt: skip
"""Most kernels that torch may launch in an env step: what was counted, and a little room."""


MORE = {"Ant:PPO", "Go1Joystick:PPO", "ReachVision:PPO", "PickAndPlace:SAC", "Slide:SAC", "G1Legs:PPO"}
"""Rows of the table that show nothing more than other rows or the variants below."""
LIGHT = [case for case in CASES if case.name not in MORE and case.encoder != "r3d18"]
"""A minute of a 3D residual network shows nothing more either."""
GENERAL = {"policy_kwargs": {"net_arch": {"pi": [8], "vf": []}}}
VARIANTS = [
    Case("Ant", "PPO", overrides={"normalize": True}),
    Case("Go1Joystick", "PPO", overrides={"mirror": True, "normalize": True}),
    Case("Ant", "PPO", overrides=GENERAL),  # networks without a fast path
    Case("Reach", "PPO", overrides={"use_sde": True, "sde_sample_freq": 4}),
    Case("Reach", "SAC", overrides={"normalize": True}),
    Case("Reach", "SAC", overrides={"policy_kwargs": {"share_features_extractor": True}}),
]


@pytest.mark.parametrize("case", [*LIGHT, *VARIANTS], ids=lambda case: f"{case.name}:{','.join(case.overrides)}")
def test_training_waits_at_most_once_per_step_for_images_and_never_for_vectors(case: Case) -> None:
    row = count(case)
    waits = STEPS if case.env in SEES else 2 * UPDATES if case.algo == "RecurrentPPO" else 0
    assert row.iteration.waits.total() <= waits, row.iteration.waits
    assert 0 < row.step.kernels.total() <= KERNELS[case.env], row.step.kernels.most_common(20)
