"""Tests of the success rates of Gymnasium envs that report `is_success` at different steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kit
from kit.envs.gymnasium_env import GymnasiumEnv
from tests.envs.odds import LENGTHS, Odds

SMALL = {
    "PPO": {"n_steps": 32, "batch_size": 64, "n_epochs": 1},
    "SAC": {"learning_starts": 10_000, "buffer_size": 1_000},
}


def trained(folder: Path, algo: str, **options: object) -> kit.Run:
    return kit.train(
        env="tests.envs.odds:Odds", env_options=options, algo=algo, n_envs=4, total_steps=512, eval_every=0,
        runs_dir=str(folder), device="cpu", threads=1, overrides=SMALL[algo],
    )  # fmt: skip


@pytest.mark.parametrize("says", ["at the end", "at each step", "of successes"])
@pytest.mark.parametrize("algo", ["PPO", "SAC"])
def test_two_of_five_episodes_are_forty_percent(tmp_path: Path, algo: str, says: str) -> None:
    run = trained(tmp_path, algo, says=says)
    # 512 steps are 121 episodes of 4.2 steps; the latest 100 are whole cycles of five, but for one or two episodes
    assert run.metrics()["rollout/success_rate"].dropna().iloc[-1] == pytest.approx(0.4, abs=0.03)
    result = kit.evaluate(run, episodes=20)
    assert (result["episodes"], result["success_rate"], result["mean_length"]) == (20, 0.4, 4.2)


@pytest.mark.parametrize("algo", ["PPO", "SAC"])
def test_an_env_without_is_success_has_no_success_rate(tmp_path: Path, algo: str) -> None:
    run = trained(tmp_path, algo, says="never")
    assert "rollout/success_rate" not in run.metrics()
    assert kit.evaluate(run, episodes=20)["success_rate"] is None


def test_envs_in_subprocesses_report_the_same_successes() -> None:
    ends, successes = 0, 0
    for env in (GymnasiumEnv(Odds, 2, seed=1), GymnasiumEnv(Odds, 2, seed=1, processes=True)):
        for _ in range(2 * sum(LENGTHS)):  # every episode of each env twice
            _, _, terminated, _, info = env.step(torch.zeros(2, 1))
            ends += int(terminated.sum())
            successes += int((info["success"] & terminated).sum()) if "success" in info else 0
        env.close()
    assert (ends, successes) == (2 * 20, 2 * 8)
