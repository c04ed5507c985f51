"""Tests of advice after a run: causes of a poor result, known results of the task, message of the buttons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.runs.run import Run
from kit.ui import diagnosis, next_steps
from kit.ui.dashboard import Dashboard
from tests.ui.fabricate import make_run


def run_with(tmp_path: Path, rows: list[dict[str, Any]], config: dict[str, Any] | None = None, **status: Any) -> Run:
    """A finished run of Reach with these rows of metrics, 20,000 steps apart."""
    run = make_run(tmp_path, rows=0, config={"env": "Reach", "total_steps": 200_000, **(config or {})}, **status)
    lines = [json.dumps({"step": 20_000 * i, **row}) for i, row in enumerate(rows)]
    (run.path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return run


GOOD = {"eval/success_rate": 0.5, "rollout/success_rate": 0.5, "train/explained_variance": 0.9, "train/std": 0.5}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([GOOD | {"train/approx_kl": 0.2, "train/learning_rate": 1e-3}] * 6, "KL divergence is 0.2, more than 0.05"),
        ([GOOD | {"train/explained_variance": 0.05}] * 6, "explains 5% of the returns' variance"),
        ([GOOD | {"train/std": std} for std in (0.6, 0.4, 0.2, 0.1, 0.06, 0.04)], "fell from 0.6 to 0.05"),
        ([GOOD | {"rollout/success_rate": 0.9}] * 6, "90% of the episodes succeed, without it 50%"),
        ([GOOD | {"eval/success_rate": 0.0, "rollout/success_rate": 0.0}] * 6, "No episode has succeeded"),
        ([GOOD | {"eval/reward/a": -99.0, "eval/reward/b": 1.0}] * 6, "a makes up 99% of all terms"),
        ([GOOD | {"eval/success_rate": rate} for rate in (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)], "still rises (0.4 to 0.6"),
    ],
)
def test_a_cause_is_named_with_its_value(tmp_path: Path, rows: list[dict[str, Any]], words: str) -> None:
    run = run_with(tmp_path, rows, step=200_000)
    found = diagnosis.causes(run)
    assert words in " ".join(found) and len(found) == 1
    assert diagnosis.causes(run_with(tmp_path / "good", [GOOD] * 6, step=200_000)) == []


def test_advice_for_a_short_run_names_the_steps_that_its_task_needs(tmp_path: Path) -> None:
    run = run_with(tmp_path, [GOOD] * 6, step=20_000, success_rate=0.3)
    first, second = next_steps.advice(run, improved=True)
    assert first == "Reach with PPO and preset auto reached 100 % success after 100,000 steps."
    assert second == "It trained for only 20,000 steps. Train longer."
    enough = run_with(tmp_path / "enough", [GOOD] * 6, step=70_000, success_rate=0.3)
    assert next_steps.advice(enough, improved=True) == [first], "two thirds of the usual steps are enough"


@pytest.mark.parametrize("taught", [{"algo": "BC", "dataset": "demos"}, {"algo": "Distill", "teacher": "scripted"}])
def test_the_usual_steps_are_not_those_of_runs_that_learn_from_others(tmp_path: Path, taught: dict[str, Any]) -> None:
    assert next_steps.advice(run_with(tmp_path, [GOOD] * 6, taught, step=20_000, success_rate=0.3), True) == []


def test_a_return_that_rises_without_success_is_named_first(tmp_path: Path) -> None:
    """Of one's own task; the rise of 80 is more than twice the spread of 10 between episodes."""
    never = GOOD | {"eval/success_rate": 0.0, "rollout/success_rate": 0.0, "eval/std_return": 10.0}
    rows = [never | {"eval/mean_return": value, "train/approx_kl": 0.2} for value in (10.0, 50, 80, 90, 90, 90)]
    found = diagnosis.causes(run_with(tmp_path / "own", rows, {"env": "mine:Task"}))
    assert "The return rose from 10 to 90, and no episode succeeded" in found[0] and "KL" in found[1]
    assert "No episode has succeeded" not in " ".join(found)
    assert "The return rose" not in " ".join(diagnosis.causes(run_with(tmp_path / "kits", rows, step=200_000)))


def test_a_task_with_goals_is_not_for_ppo(tmp_path: Path) -> None:
    words = "PPO hardly learns goal-conditioned tasks such as this one; SAC, TD3 and CrossQ"
    cases = (("Push", "PPO", True), ("Push", "SAC", False), ("Reach", "PPO", False), ("missing:Task", "PPO", False))
    for env, algo, expected in cases:
        run = run_with(tmp_path / env / algo, [GOOD] * 6, {"env": env, "algo": algo}, step=800_000)
        assert (words in " ".join(diagnosis.causes(run))) == expected


def test_a_good_run_is_not_diagnosed(tmp_path: Path) -> None:
    rows = [GOOD | {"train/approx_kl": 0.2}] * 6
    assert next_steps.advice(run_with(tmp_path / "a", rows, success_rate=0.97), improved=False) == []
    assert next_steps.advice(run_with(tmp_path / "b", rows, success_rate=None), improved=True) == []
    assert next_steps.advice(run_with(tmp_path / "c", rows, success_rate=0.5), improved=True)


def test_choosing_another_run_clears_the_message(tmp_path: Path) -> None:
    pytest.importorskip("ipywidgets")
    steps = next_steps.NextSteps(Dashboard())
    steps.choose(make_run(tmp_path, "one"))
    steps._say("Exported.")
    steps.choose(Run(tmp_path / "one"))
    assert "Exported." in steps.message.value
    steps.choose(make_run(tmp_path, "two"))
    assert steps.message.value == ""
