"""Fixture: a Gymnasium env registered in this process only, as a notebook may do."""

import gymnasium
import pytest


@pytest.fixture
def registered():
    entry_point = "gymnasium.envs.classic_control:CartPoleEnv"
    gymnasium.register("Mine-v0", entry_point, max_episode_steps=50)
    yield "Mine-v0"
    del gymnasium.registry["Mine-v0"]
