"""Tests of SB3 zips: plain SB3 loads zips saved by kit, and kit loads zips saved by SB3."""

import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3 as sb3
import torch
from fake_env import FakeEnv, trainer
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from kit.envs.sb3 import TensorVecEnv
from kit.errors import UserError

OBS = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)

PLAIN = """
import sys
sys.modules["kit"] = None  # importing any of this library fails
import numpy as np, sb3_contrib, stable_baselines3 as sb3
for algo in ("PPO", "A2C", "SAC", "TD3", "CrossQ", "RecurrentPPO"):
    model = getattr(sb3 if hasattr(sb3, algo) else sb3_contrib, algo).load(algo, device="cpu")
    obs = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    np.save(algo, model.predict(obs, deterministic=True)[0])
"""


def test_plain_sb3_loads_it_where_this_library_is_not_installed(tmp_path: Path) -> None:
    algos = ("PPO", "A2C", "SAC", "TD3", "CrossQ", "RecurrentPPO")
    models = {algo: trainer(algo, learning_rate="lin_0.001") for algo in algos}
    for algo, model in models.items():
        model.learn(140)
        model.save(tmp_path / algo)
    subprocess.run([sys.executable, "-c", PLAIN], check=True, cwd=tmp_path)
    for algo, model in models.items():
        atol = 1e-6 if hasattr(sb3_contrib, algo) else 0  # its normalisation and LSTMs round differently
        expected = model.predict(OBS, deterministic=True)[0]
        np.testing.assert_allclose(np.load(tmp_path / f"{algo}.npy"), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("algo", ["PPO", "A2C", "SAC", "TD3", "CrossQ"])
def test_a_saved_zip_trains_further_in_sb3_and_in_kit(algo: str) -> None:
    """Includes the optimizer state: one step with equal gradients gives equal weights in all three models."""
    model = trainer(algo)
    lock = threading.Lock()
    model.on_divergence = lambda found: lock.acquire()  # as in a run, something that cannot be pickled
    model.learn(200)
    file = io.BytesIO()
    model.save(file)
    loaded = []
    for family in (getattr(sb3_contrib if algo == "CrossQ" else sb3, algo), type(model)):
        file.seek(0)
        loaded.append(family.load(file, env=TensorVecEnv(FakeEnv()), device="cpu"))
    for one in loaded:
        assert one.num_timesteps == model.num_timesteps
        for name, value in model.policy.state_dict().items():
            assert torch.equal(one.policy.state_dict()[name], value)
    torch.manual_seed(0)
    for one in (model, *loaded):
        off_policy = algo in ("SAC", "TD3", "CrossQ")
        groups = [one.actor.optimizer, one.critic.optimizer] if off_policy else [one.policy.optimizer]
        for optimizer in groups:  # the same gradient everywhere, then the optimizer's own step
            for i, p in enumerate(optimizer.param_groups[0]["params"]):
                p.grad = torch.full_like(p, 0.01 * (i + 1))
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step()
    for one in loaded:
        for name, value in model.policy.state_dict().items():
            torch.testing.assert_close(one.policy.state_dict()[name], value, rtol=0, atol=1e-7)
    for one in loaded:
        one.learn(40)


def test_an_sb3_zip_loads_in_kit() -> None:
    stock = sb3.PPO("MlpPolicy", TensorVecEnv(FakeEnv()), n_steps=16, batch_size=32, device="cpu", seed=0)
    stock.learn(128)
    file = io.BytesIO()
    stock.save(file)
    file.seek(0)
    ours: Any = type(trainer("PPO")).load(file, env=TensorVecEnv(FakeEnv()), device="cpu")
    np.testing.assert_array_equal(stock.predict(OBS, deterministic=True)[0], ours.predict(OBS, deterministic=True)[0])
    ours.learn(64)


def test_normalised_predictions_equal_sb3s() -> None:
    """`predict` and `act` take raw observations; plain SB3 gets them through the exported VecNormalize."""
    model = trainer("PPO", normalize=True)
    model.learn(640)
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    stock = sb3.PPO.load(file, device="cpu")
    venv = model.normalizer.to_sb3(TensorVecEnv(FakeEnv()))
    theirs = stock.predict(venv.normalize_obs(OBS), deterministic=True)[0]
    np.testing.assert_allclose(model.predict(OBS, deterministic=True)[0], theirs, atol=1e-6)
    low, high = model.action_space.low, model.action_space.high
    np.testing.assert_allclose(
        model.act(torch.from_numpy(OBS)).clamp(-1, 1).numpy(), np.clip(theirs, low, high), atol=1e-6
    )
    assert np.abs(theirs - stock.predict(OBS, deterministic=True)[0]).max() > 1e-3


def test_sb3s_evaluate_policy_accepts_our_model() -> None:
    model = trainer("PPO", normalize=True)
    model.learn(64)
    mean, _ = evaluate_policy(model, TensorVecEnv(FakeEnv()), n_eval_episodes=4)
    assert mean < 0


@pytest.mark.parametrize("algo", ["PPO", "A2C", "SAC", "TD3", "CrossQ"])
def test_act_equals_predict(algo: str) -> None:
    model = trainer(algo)
    expected = model.predict(OBS, deterministic=True)[0]
    np.testing.assert_allclose(model.act(torch.from_numpy(OBS)).clamp(-1, 1).numpy(), expected, atol=1e-6)


def test_acting_draws_no_random_numbers() -> None:
    model = trainer("PPO")
    before = torch.get_rng_state()
    model.act(torch.from_numpy(OBS))
    assert torch.equal(before, torch.get_rng_state())


def test_a_policy_loads_with_any_number_of_envs() -> None:
    model = trainer("PPO", normalize=True)
    model.learn(128)
    state = {name: values for name, values in model.state().items() if name in ("policy", "normalizer")}
    other = trainer("PPO", FakeEnv(6), seed=9, normalize=True)
    other.load_policy(state)
    assert torch.equal(other.act(torch.from_numpy(OBS)), model.act(torch.from_numpy(OBS)))


def test_unsupported_envs_are_refused() -> None:
    family = type(trainer("PPO"))
    for env, words in (
        (VecNormalize(TensorVecEnv(FakeEnv())), "normalize=True"),
        (DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), "kit.make_vec"),
    ):
        with pytest.raises(UserError, match=words):
            family("MlpPolicy", env, device="cpu")
