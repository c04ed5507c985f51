"""Tests of `Algorithm` records: a user-defined algorithm, complete records, training on every supported space."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kit
from kit.config import ALGOS, RunConfig
from kit.errors import UserError
from kit.measure.auto import resolve
from kit.measure.speed import RandomTeacher, random_episode
from kit.runs.fingerprint import fingerprint
from kit.trainers import make_trainer
from kit.trainers.algorithm import find
from tests.trainers.anything import ACTIONS, OBSERVATIONS

ANYTHING, TOY = "tests.trainers.anything:Anything", "tests.trainers.toy:REINFORCE"
SMALL = {
    "PPO": {"n_steps": 8, "batch_size": 16, "n_epochs": 1}, "A2C": {}, "SAC": {"learning_starts": 8, "batch_size": 16},
    "Distill": {"gradient_steps": 2, "batch_size": 16},
}  # fmt: skip
SMALL |= {"RecurrentPPO": SMALL["PPO"], "TD3": SMALL["SAC"], "CrossQ": SMALL["SAC"], "BC": SMALL["Distill"]}
SOURCE = {"Distill": {"teacher": "runs/any"}, "BC": {"dataset": "any"}}
"""Placeholders: planning does not check that the teacher or the dataset exists."""


def test_a_user_defined_algorithm_trains_saves_and_resumes(tmp_path: Path) -> None:
    fields = {"algo": TOY, "env": "CartPole-v1", "seed": 3, "threads": 1, "eval_every": 4000, "checkpoint_every": 2000}
    overrides = {"learning_rate": 0.01, "policy_kwargs": {"net_arch": [32]}}
    run = kit.train(**fields, total_steps=8000, overrides=overrides, runs_dir=str(tmp_path))
    assert run.config.n_envs == 4 and run.config.overrides["n_steps"] == 20, "hyperparameters of the record"
    assert run.status()["state"] == "finished"
    assert run.metrics()["rollout/ep_rew_mean"].dropna().iloc[-1] > 40, "it learns"
    assert kit.evaluate(run, episodes=3)["mean_return"] > 40
    again = kit.resume(run.path, total_steps=9000)
    assert again.status()["step"] == 9040 and fingerprint(again)
    with pytest.raises(UserError, match=r"gama=0\.9 is not one of Reinforce's; did you mean gamma"):
        resolve(RunConfig(algo=TOY, overrides={"gama": 0.9}))


@pytest.mark.parametrize("algo", ALGOS)
def test_every_record_is_complete(algo: str) -> None:
    found = find(algo)
    assert found.name == algo and issubclass(found.trainer, found.stock)
    for preset in ("auto", "sb3", "fast"):
        resolved = resolve(RunConfig(env="Ant", algo=algo, preset=preset, device="cpu", **SOURCE.get(algo, {})))
        assert isinstance(resolved.n_envs, int)


PAIRS = [(observation, "box") for observation in OBSERVATIONS] + [("numbers", action) for action in ACTIONS]


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize(("observation", "action"), [*PAIRS, ("dict", "multi discrete")])
def test_every_supported_space_can_be_trained(algo: str, observation: str, action: str) -> None:
    options = {"observation": observation, "action": action}
    asked = RunConfig(
        env=ANYTHING, env_options=options, algo=algo, n_envs=2, total_steps=48, device="cpu", threads=1,
        **SOURCE.get(algo, {}), overrides=SMALL[algo] | {"policy_kwargs": {"net_arch": [8]}},
    )  # fmt: skip
    if not isinstance(ACTIONS[action], find(algo).actions):
        with pytest.raises(UserError, match=f"algo='{algo}' supports Box actions"):
            resolve(asked)
        return
    config = resolve(asked)
    env = kit.make_vec(config.env, 2, "cpu", 0, 1, config.env_options)
    if (algo, observation) == ("RecurrentPPO", "multi discrete"):
        with pytest.raises(UserError, match="does not support MultiDiscrete"):
            make_trainer(config, env)
        return
    trainer = make_trainer(config, env)
    if find(algo).taught:
        trainer.set_teacher(RandomTeacher(env))
    if find(algo).dataset == "needed":
        trainer.set_dataset([random_episode(env)], {})
    before = [p.clone() for p in trainer.policy.parameters()]
    trainer.learn(48)
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    obs = env.reset(seed=1)
    actions = trainer.act(obs)
    assert actions.shape == (2, *env.action_space.shape)
    other = make_trainer(config, kit.make_vec(config.env, 2, "cpu", 0, 1, config.env_options))
    other.load_state(trainer.state())
    assert torch.equal(other.act(obs), actions)


def test_images_stay_uint8_in_rollout_and_replay() -> None:
    for algo in ("PPO", "SAC", "TD3"):
        config = resolve(RunConfig(
            env=ANYTHING, env_options={"observation": "dict"}, algo=algo, n_envs=2, device="cpu", threads=1,
            overrides=SMALL[algo] | ({"buffer_size": 100} if algo in ("SAC", "TD3") else {}),
        ))  # fmt: skip
        trainer = make_trainer(config, kit.make_vec(config.env, 2, "cpu", 0, 1, config.env_options))
        trainer.learn(16)
        kept = trainer.rollout_buffer.obs["eye"] if algo == "PPO" else trainer.replay_buffer.rows(0, 1)["obs.eye"]
        assert kept.dtype == torch.uint8
