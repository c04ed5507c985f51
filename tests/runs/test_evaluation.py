"""Tests of evaluations: where they are computed, and envs whose episodes never end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kit
from kit.config import RunConfig
from kit.envs.obs import Obs
from kit.envs.play import HiddenState
from kit.errors import UserError
from kit.runs.evaluation import Evaluator
from kit.trainers.planning import during_training
from tests.runs.crash import complete, create


@pytest.mark.parametrize(
    ("env", "device"),
    [("Ant", "cpu"), ("G1Joystick", "cpu"), ("ReachVision", "cuda"), ("Mission", "cuda"), ("HalfCheetah-v5", "cpu")],
)
def test_a_run_on_a_gpu_evaluates_robots_on_the_cpu_and_images_and_games_on_the_gpu(env: str, device: str) -> None:
    assert during_training(RunConfig(env=env, device="cuda")).device == device
    assert during_training(RunConfig(env=env, device="cpu")).device == "cpu"


class Still:
    """Policy that always chooses action 0."""

    def initial_state(self, n: int) -> HiddenState:
        return ()

    def __call__(self, obs: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        assert isinstance(obs, torch.Tensor)
        return torch.zeros(len(obs), dtype=torch.int64), ()


def test_an_env_whose_episodes_never_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered here, because this env takes its 108,000 steps in a minute."""
    monkeypatch.setattr("kit.envs.play.LONGEST_EPISODE", 1200)
    evaluator = Evaluator(RunConfig(env="tests.envs.mistakes:Endless", threads=1, device="cpu"), 2)
    with pytest.raises(UserError, match=r"no episode of env='.*Endless' ended within 1,200 steps; give it"):
        evaluator(Still())
    evaluator.close()
    run = create(tmp_path, "run", env="tests.envs.mistakes:Endless", total_steps=64)
    assert complete(run) == 0, run.log()
    with pytest.raises(UserError, match=r"no episode of env='.*Endless' ended within 1,200 steps; give it"):
        kit.record(run.path, tmp_path / "data", episodes=1)
    assert not (tmp_path / "data").exists()
