"""Tests of notebooks 04_walk and 07_mission, and of `within_reach` without a GPU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, execute, papermill

from kit.config import RunConfig
from kit.errors import UserError
from kit.runs.finding import local_runs
from kit.runs.run import Run

ROOT = Path(__file__).parents[2]
PUPPY = """
from kit.tasks.joystick.robots import Go1Joystick

class Puppy(Go1Joystick):
    episode_steps = 20  # so that films are short
"""
GAMES = """
from kit.tasks.mission.task import Mission

class Short(Mission):
    episode_steps = 120  # so that evaluations are short
"""
SMALL_WALK = {"n_steps": 64, "batch_size": 64, "policy_kwargs": {"net_arch": [16, 16]}}


@pytest.mark.timeout(CELL_LIMIT_S)
def test_go1_trains_and_is_tried_on_other_grounds(workplace: Path) -> None:
    menagerie = pytest.importorskip("mujoco_menagerie")
    try:
        menagerie.load("unitree_go1", "go1")
    except menagerie.MenagerieError as error:
        pytest.skip(f"no model of the Go1: {error}")
    (workplace / "puppies.py").write_text(PUPPY)
    little = {"total_steps": 256, "without_steps": 256, "n_envs": 4, "eval_every": 256}
    little |= {"episodes": 2, "film_episodes": 1, "ground_episodes": 1}
    little |= {"env": "puppies:Puppy", "runs_dir": "walks", "run_name": "walk"}
    example = shutil.copytree(ROOT / "kit" / "examples" / "go1", workplace / "walks" / "go1")
    config = example / "config.yaml"  # the notebook keeps a copy that is there
    config.write_text(re.sub("env: .*", "env: puppies:Puppy", config.read_text()))
    shown = execute("04_walk", workplace, overrides=SMALL_WALK, **little)
    assert "No GPU here" not in shown
    run = Run(workplace / "walks" / "walk")
    (second,) = (Run(path) for path in run.path.parent.iterdir() if path.name not in ("walk", "go1"))
    for each in (run, second):
        assert (each.status()["state"], each.status()["step"]) == ("finished", 256)
    assert run.rows()[-1].keys() >= {"test/step"} and second.parent == ("walk", 256)
    assert list(second.config.env_options["weights"].values()) == [0.0]
    assert re.search(r"puppies:Puppy with PPO: \d+ % success after 256 steps", shown)
    assert "eval/velocity_error" in shown and "eval/reward/feet_clearance" in shown
    assert shown.count("data:video/mp4;base64") == 5, "two reports, cameras, two dogs late, with and without the term"
    assert shown.count('"image/png": ') == 8, "commands, pay and stages; the poster of each video"


def test_g1_run_without_gpu_is_reduced_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    from kit.measure import within_reach

    try:
        small = within_reach(RunConfig(env="G1Joystick", total_steps=10**8, n_envs=512, device="cpu"))
    except UserError as error:
        pytest.skip(f"no model of the G1: {error}")
    assert (small.total_steps, small.n_envs, small.eval_every) == (8192, 32, 8192)
    assert "The run takes 8,192 steps instead of 100,000,000" in capsys.readouterr().out


@pytest.mark.timeout(CELL_LIMIT_S)
def test_missing_robot_model_ends_with_one_sentence(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENAGERIE_ROOT", str(workplace))
    with pytest.raises(papermill.PapermillExecutionError, match=r"the model of unitree_go1 could not be fetched"):
        execute("04_walk", workplace, runs_dir="none")
    assert not (workplace / "none").exists()


def test_team_trains_in_stages_and_against_trained_defenders(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIT_EVAL_EPISODES", "1")
    small = {"n_envs": 32, "total_steps": 512, "rival_steps": 512, "eval_every": 512}
    small |= {"checkpoint_every": 512, "runs_dir": "games", "episodes": 2, "overrides": {"n_steps": 16}}
    (workplace / "games.py").write_text(GAMES)
    shown = execute("07_mission", workplace, env="games:Short", **small, env_options={"endurance_s": 10.0})
    games = {run.name: run for run in local_runs(workplace / "games")}
    assert len(games) == 4 and all(run.status()["state"] == "finished" for run in games.values())
    assert sorted(run.parent is not None for run in games.values()) == [False, False, True, True]
    assert "video/mp4" in shown and "reward/capture" in shown and "per defender (3)" in shown
    by_hand, reward = re.findall(r"by hand (\S+), reward (\S+)\\n", shown)[0]
    assert by_hand == reward
    assert "team, trained again" in shown and "team, against both" in shown, "the tables of who beats whom"
    assert "five players" in shown, "the ladder"
