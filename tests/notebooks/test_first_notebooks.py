"""Tests of notebooks 00 to 03: setup, train, resume, visualize."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, TINY, TINY_PPO, execute

from kit.runs.run import Run
from tests.runs.crash import Forked, create

ARMS = """
from kit.tasks.reach.task import Reach

class Short(Reach):
    episode_steps = 20  # so that evaluations are short
"""


@pytest.fixture(scope="module")
def trained(workplace: Path) -> tuple[Run, str]:
    """The run that notebook 01_train trains, and the outputs of the notebook."""
    (workplace / "arms.py").write_text(ARMS)
    shown = execute("01_train", workplace, **TINY | {"env": "arms:Short"}, run_name="tiny", overrides=TINY_PPO)
    return Run(workplace / "runs" / "tiny"), shown


@pytest.mark.timeout(CELL_LIMIT_S)
def test_setup_says_what_this_machine_can_do(workplace: Path) -> None:
    shown = execute("00_setup", workplace)
    for text in ("Ready to train.", "training, end to end", "100,000 steps of Reach with PPO take about"):
        assert text in shown


@pytest.mark.timeout(CELL_LIMIT_S)
def test_train_ends_with_success_rate_curve_and_video(trained: tuple[Run, str]) -> None:
    run, shown = trained
    assert run.status()["state"] == "finished"
    assert run.config.overrides["n_steps"] == 64
    assert re.search(r"The hand is 0\.\d\d m from the ball", shown), "an action by hand comes first"
    assert "ratio = (new.log_prob - batch.log_probs).exp()" in shown, "PPO's loss"
    assert re.search(r"arms:Short with PPO: \d+ % success after 512 steps", shown)
    assert "data:image/png;base64" in shown
    assert "data:video/mp4;base64" in shown
    assert run.checkpoints() and run.videos


@pytest.mark.timeout(CELL_LIMIT_S)
def test_visualize_shows_statistics_cameras_and_checkpoints(trained: tuple[Run, str], workplace: Path) -> None:
    shown = execute("03_visualize", workplace, episodes=4, film_episodes=1, cameras=["front"], steps=[0])
    assert "success rate" in shown
    assert "before training" in shown
    assert shown.count("data:video/mp4;base64") == 3
    assert shown.count('"image/png": ') == 8, "two figures, a comparison, two episodes, last frames of 3 videos"
    assert "95% of 20 episodes: the true rate may lie between 76% and 99%" in shown


@pytest.mark.timeout(CELL_LIMIT_S)
def test_resume_continues_the_latest_unfinished_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_EVAL_EPISODES", "2")  # five trainings, and evaluations would take longest
    run = create(workplace / "cut", "cut", overrides=TINY_PPO, **{**TINY, "total_steps": 10**6})
    session = Forked(run)
    session.until(lambda: bool(run.checkpoints()))
    session.kill(signal.SIGTERM)
    assert session.wait() == 75, run.log()
    stopped_at = run.status()["step"]
    shown = execute("02_resume", workplace, runs_dir="cut", total_steps=stopped_at + 256, lesson_steps=4096)
    uncut, killed = re.findall(r"\b[0-9a-f]{64}\b", shown)
    assert uncut == killed, "a run that was killed ends like one that was not"
    assert "interrupted" in shown, "the list before the resume must show the run as interrupted"
    assert Run(run.path).status()["state"] == "finished"
    assert Run(run.path).status()["step"] >= stopped_at + 256
