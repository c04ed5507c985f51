"""Tests of `Normalizer` against SB3's VecNormalize, step by step."""

from typing import Any

import numpy as np
import pytest
import torch
from fake_env import FakeEnv, trainer
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from kit.envs.sb3 import TensorVecEnv
from kit.errors import UserError
from kit.trainers.normalize import Normalizer


def test_equals_vec_normalize() -> None:
    """50 steps of 4 envs with episode ends: statistics agree to 1e-6, scaled values to 1e-5."""
    venv = VecNormalize(TensorVecEnv(FakeEnv()), gamma=0.9, clip_obs=2.0, clip_reward=1.5)
    env = FakeEnv()
    env.reset(seed=0)
    venv.venv.tensor_env.reset(seed=0)
    env.generator.manual_seed(1), venv.venv.tensor_env.generator.manual_seed(1)
    ours = Normalizer(env.observation_space, 4, env.device, gamma=0.9, clip_obs=2.0, clip_reward=1.5)
    obs = env.reset()
    ours.begin(obs)
    np.testing.assert_allclose(ours.scale_obs(obs).numpy(), venv.reset(), atol=1e-6)
    ends = 0
    for _ in range(50):
        action = torch.rand(4, 2) * 2 - 1
        obs, reward, terminated, truncated, info = env.step(action)
        their_obs, their_reward, done, infos = venv.step(action.numpy())
        ours.update(obs)
        scaled = ours.reward(reward, terminated | truncated)
        np.testing.assert_allclose(ours.scale_obs(obs).numpy(), their_obs, atol=1e-5)
        np.testing.assert_allclose(scaled.numpy(), their_reward, atol=1e-5)
        for world in np.flatnonzero(done):
            ends += 1
            final = ours.scale_obs(info["final_obs"])[world].numpy()
            np.testing.assert_allclose(final, infos[world]["terminal_observation"], atol=1e-5)
        np.testing.assert_allclose(ours.returns.numpy(), venv.returns, atol=1e-5)
    assert ends > 6
    moments = ours.obs_moments["obs"]
    np.testing.assert_allclose(moments.mean.numpy(), venv.obs_rms.mean, atol=1e-6)
    np.testing.assert_allclose(moments.var.numpy(), venv.obs_rms.var, atol=1e-6)
    assert ours.return_moments.var.item() == pytest.approx(float(venv.ret_rms.var), abs=1e-6)
    assert moments.count == pytest.approx(venv.obs_rms.count)


def test_reward_only() -> None:
    model = trainer("PPO", normalize={"norm_obs": False, "gamma": 0.5})
    obs = torch.ones(1, 3)
    assert model.normalizer.scale_obs(obs) is obs
    assert model.normalizer.gamma == 0.5
    assert trainer("PPO", normalize=True, gamma=0.9).normalizer.gamma == 0.9


class Mapped(FakeEnv):
    """FakeEnv with a Dict observation: position, clock, and a discrete entry, which is not scaled."""

    def __init__(self) -> None:
        super().__init__()
        place, clock = spaces.Box(-10, 10, (2,)), spaces.Box(0, 1, (1,))
        self.observation_space = spaces.Dict({"place": place, "clock": clock, "right": spaces.Discrete(2)})

    def _obs(self) -> Any:
        obs = super()._obs()
        return {"place": obs[:, :2], "clock": obs[:, 2:], "right": (obs[:, 0] > 0).long()}


def test_each_entry_of_a_mapping_has_its_own_statistics() -> None:
    env, keys = Mapped(), ["place", "clock"]
    env.reset(seed=0)
    venv = VecNormalize(TensorVecEnv(Mapped()), gamma=0.9, norm_obs_keys=keys)
    venv.venv.tensor_env.reset(seed=0)
    ours = Normalizer(env.observation_space, 4, env.device, gamma=0.9)
    obs = env.reset()
    ours.begin(obs)
    venv.reset()
    for _ in range(30):
        action = torch.rand(4, 2) * 2 - 1
        obs, *_ = env.step(action)
        their_obs, *_ = venv.step(action.numpy())
        ours.update(obs)
        seen = ours.scale_obs(obs)
        for key in keys:
            np.testing.assert_allclose(seen[key].numpy(), their_obs[key], atol=1e-5)
        assert seen["right"].dtype == torch.int64 and torch.equal(seen["right"], obs["right"])
    restored = Normalizer(env.observation_space, 4, env.device, gamma=0.9)
    restored.load_state(ours.state())
    assert all(torch.equal(restored.scale_obs(obs)[key], ours.scale_obs(obs)[key]) for key in keys)
    wrapped = ours.to_sb3(TensorVecEnv(Mapped()))
    np.testing.assert_allclose(wrapped.normalize_obs({k: v.numpy() for k, v in obs.items()})["clock"], seen["clock"])


def test_discrete_and_image_observations_are_refused() -> None:
    for space in (spaces.Discrete(3), spaces.Box(0, 255, (3, 64, 64), np.uint8)):
        with pytest.raises(UserError, match=f'cannot scale {type(space).__name__} .*"norm_obs": false'):
            Normalizer(space, 1, torch.device("cpu"), 0.99)
