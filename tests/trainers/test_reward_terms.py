"""Tests that the reward's terms are logged while a run trains: they add up to the rewards of the latest rollout."""

from __future__ import annotations

import pytest
import torch
from stable_baselines3.common.logger import KVWriter, Logger

from kit.envs import make_vec
from kit.envs.sb3 import TensorVecEnv
from kit.trainers.a2c import A2C
from kit.trainers.ppo import PPO
from kit.trainers.reward_terms import RewardTerms
from kit.trainers.sac import SAC

SMALL = {"net_arch": [8]}
TERM = "rollout/reward/"


class Rows(KVWriter):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def write(self, key_values, key_excluded, step=0):
        self.rows.append({**key_values})


def logged(model, iterations: int = 2) -> dict[str, float]:
    """Train for `iterations` rollouts; return reward term -> value in the last row."""
    model.set_logger(Logger(None, [kept := Rows()]))
    steps = 4 if isinstance(model, SAC) else model.n_steps
    model.learn(iterations * steps * model.n_envs, log_interval=1)
    return {name.removeprefix(TERM): x for name, x in kept.rows[-1].items() if name.startswith(TERM)}


@pytest.mark.parametrize(("algo", "steps"), [(PPO, 40), (A2C, 5)])
def test_terms_add_up_to_the_mean_reward_of_the_rollout(algo, steps):
    model = algo("MlpPolicy", TensorVecEnv(make_vec("Reach", 4)), n_steps=steps, policy_kwargs=dict(SMALL))
    terms = logged(model)
    assert terms.keys() == {"progress", "success", "precision", "effort"}
    assert sum(terms.values()) == pytest.approx(model.rollout_buffer.rewards.mean().item(), abs=1e-6)


def test_terms_of_off_policy_training_are_those_of_the_steps_before_the_last_update():
    env = TensorVecEnv(make_vec("Reach", 4))
    model = SAC("MlpPolicy", env, learning_starts=1, batch_size=8, train_freq=4, policy_kwargs=dict(SMALL))
    terms = logged(model)
    newest = model.replay_buffer.rows(4, 8)["rewards"].mean().item()
    assert sum(terms.values()) == pytest.approx(newest, abs=1e-6)


def test_an_env_without_terms_logs_none():
    env = TensorVecEnv(make_vec("Pendulum-v1", 2))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=16, policy_kwargs=dict(SMALL))
    assert logged(model) == {}


def test_a_term_that_diverged_physics_has_made_nan_is_left_out():
    terms, logger = RewardTerms(), Logger(None, [])
    terms.add({"reward/near": torch.tensor([1.0, 3.0]), "reward/energy": torch.tensor([1.0, float("nan")])})
    terms.add({"reward/near": torch.tensor([2.0, 2.0]), "reward/energy": torch.tensor([1.0, 1.0])})
    terms.record(logger)
    assert logger.name_to_value == {"rollout/reward/near": 2.0}
