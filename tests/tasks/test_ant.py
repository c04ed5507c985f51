"""Tests of Ant: same steps as Gymnasium's Ant-v5 from the same states, same spaces, start noise."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from kit.envs import make_task, make_vec
from kit.envs.vec import TensorEnv
from kit.tasks.ant import RESET_NOISE, Ant

STEPS = 1000


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_gymnasium_for_1000_random_steps(dtype, tolerance):
    ours = TensorEnv(Ant(), 1, seed=0, dtype=dtype)
    theirs = gymnasium.make("Ant-v5").unwrapped
    rng = np.random.default_rng(0)
    obs, episodes, contacts = ours.reset(seed=0), 0, 0

    def begin_the_same() -> np.ndarray:
        theirs.reset(seed=0)
        theirs.set_state(ours.task.sim.qpos[0].numpy(), ours.task.sim.qvel[0].numpy())
        return theirs._get_obs()

    expected = begin_the_same()
    for _ in range(STEPS):
        np.testing.assert_allclose(obs[0].numpy(), expected, atol=tolerance, rtol=tolerance)
        action = rng.uniform(-1, 1, 8).astype(np.float32)
        obs, reward, terminated, truncated, info = ours.step(torch.from_numpy(action).unsqueeze(0))
        expected, expected_reward, expected_terminated, _, expected_info = theirs.step(action.astype(np.float64))
        np.testing.assert_allclose(info["final_obs"][0].numpy(), expected, atol=tolerance, rtol=tolerance)
        assert reward.item() == pytest.approx(expected_reward, abs=tolerance, rel=tolerance)
        for term in ("forward", "survive", "ctrl", "contact"):
            theirs_term = expected_info[f"reward_{term}"]
            assert info[f"reward/{term}"].item() == pytest.approx(theirs_term, abs=tolerance, rel=tolerance)
        assert terminated.item() == expected_terminated
        if not (terminated | truncated).item():
            assert info["x_position"].item() == pytest.approx(expected_info["x_position"], abs=tolerance)
        contacts += int(np.abs(expected[27:]).max() > 0)
        if terminated or truncated:
            episodes += 1
            expected = begin_the_same()
    assert episodes >= 3 and contacts > 100, "the comparison must include episode ends and contacts"


def test_spaces_and_time_limit_are_gymnasiums():
    ours, theirs = make_task("Ant"), gymnasium.make("Ant-v5")
    assert ours.observation_space.shape == theirs.observation_space.shape == (105,)
    assert ours.action_space == theirs.action_space
    assert ours.episode_steps == theirs.spec.max_episode_steps
    assert ours.control_dt_s == theirs.unwrapped.dt


def test_start_noise():
    env = make_vec("Ant", 500, seed=0)
    away = env.task.sim.qpos - torch.as_tensor(env.task.model.qpos0)
    assert away[:, :3].abs().max() <= RESET_NOISE
    assert away[:, :3].std().item() == pytest.approx(RESET_NOISE / 3**0.5, rel=0.05)
    assert env.task.sim.qvel.std().item() == pytest.approx(RESET_NOISE, rel=0.05)
    env.close()
