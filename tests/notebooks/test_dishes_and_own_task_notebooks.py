"""Tests of notebooks 06_video_policy and 10_your_own_task."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, NOTEBOOKS, TINY_DISTILL, execute, read

from kit.runs.finding import local_runs
from kit.runs.run import Run


@pytest.mark.timeout(CELL_LIMIT_S)
def test_dishwashing_trains_from_numbers_and_from_clips(workplace: Path) -> None:
    short = {"total_steps": 128, "n_envs": 2, "eval_every": 128, "checkpoint_every": 128}
    clips = {"env": "DishwashingVideo", "algo": "Distill", "teacher": "scripted:seeker", "total_steps": 128}
    clips |= {"env_options": {"shift_s": 5.0, "size": 36}, "eval_every": 0, "overrides": TINY_DISTILL}
    shown = execute(
        "06_video_policy", workplace, **short, env_options={"shift_s": 5.0}, run_name="plates", episodes=2, clips=clips,
        overrides={"n_steps": 64, "batch_size": 64}, careful={"n_steps": 4, "batch_size": 8, "critic_warmup": 8},
        on_top={"total_steps": 16, "n_envs": 2, "eval_every": 0, "env_options": {"obs_groups": ["critic"]}},
    )  # fmt: skip
    assert Run(workplace / "runs" / "plates").status()["state"] == "finished"
    for text in ("scripted wiper", "scripted seeker", "Clean plates per hour", "simple2dcnn", "clips/s learning"):
        assert text in shown
    assert re.search(r"policy, step (0|128)\b", shown)
    assert re.search(r"DishwashingVideo with Distill: a mean return of -?[\d.]+ after 128 steps", shown)
    profit = re.search(r"(-?[\d.]+) dollars an hour; kit says (-?[\d.]+)", shown)
    assert profit and profit[1] == profit[2]
    assert re.search(r"DishwashingVideo with PPO: .* after 16 steps", shown)
    assert "RunPod 4090" in shown
    assert shown.count("data:video/mp4;base64") == 3


@pytest.mark.timeout(CELL_LIMIT_S)
def test_own_tasks_train_from_empty_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_EVAL_EPISODES", "1")  # an episode of the walking robot has 1,000 steps
    shown = execute("10_your_own_task", tmp_path, total_steps=512, robot_steps=512, device="cpu", film_episodes=1)
    assert {run.config.env for run in local_runs(tmp_path / "runs")} == {
        "chase:Chase", "pendulum:SwingUp", "mended:StayUp", "joystick:dog.xml",
    }  # fmt: skip
    for text in ("torque of the motor", "pendulum:SwingUp with PPO: 0 % success", "before training", "hacked"):
        assert text in shown
    assert shown.count("data:video/mp4;base64") == 7 and "a film of random actions: chase.mp4" in shown


def test_a_changed_task_is_read_again_without_complaints_about_the_half_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The file is written by four cells, the first of which overwrites it."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # before tests/envs, which has a chase.py too
    monkeypatch.delitem(sys.modules, "chase", raising=False)
    cells = {cell["id"]: "".join(cell["source"]) for cell in read(NOTEBOOKS[10])["cells"]}
    shell = InteractiveShell()
    shell.run_cell(cells["autoreload"])
    for keeps in ('("position", "velocity")', '("position",)', '("position", "velocity")'):
        for name in ("free", "free-act", "free-see", "render"):
            shell.run_cell(cells[name].replace('("position", "velocity")', keeps))
        shell.run_cell("%autoreload\nimport kit\nkit.check_task('chase:Chase', steps=1)")
        out, err = capfd.readouterr()
        assert ("images of the cameras lawn" in out) == ("velocity" in keeps)
        said = " ".join((out + err).split())
        assert ("name every tensor of the task's state" in said) == ("velocity" not in keeps)
        assert "reload" not in out + err
    assert all(cells[name].startswith("%autoreload\n") for name in ("card", "check", "free-train", "hack-check"))
