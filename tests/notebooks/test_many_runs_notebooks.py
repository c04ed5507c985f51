"""Tests of notebooks 08_many_runs and 09_compare."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed import CELL_LIMIT_S, TINY_PPO, execute

from kit.runs.finding import local_runs


@pytest.fixture(autouse=True)
def short_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_EVAL_EPISODES", "2")


@pytest.mark.timeout(CELL_LIMIT_S)
def test_algorithms_are_compared(workplace: Path) -> None:
    jobs = [{"algo": "PPO", "overrides": TINY_PPO}, {"algo": "A2C", "overrides": {"n_steps": 16}}]
    short = {"total_steps": 512, "eval_every": 256, "twin_steps": 512, "twin_seeds": 2}
    shown = execute("09_compare", workplace, **short, runs_dir="races", jobs=jobs, seeds=1)
    names = sorted(run.name for run in local_runs(workplace / "races"))
    assert names[:2] == ["compare-reach-a2c-s0", "compare-reach-ppo-s0"]
    assert [name.split("-")[-2] for name in names[2:]] == ["alpha", "alpha", "beta", "beta"]
    assert "points or more" in shown and "Alpha, by hand" in shown
    assert "Reach: " in shown and "final score" in shown and "after_s" in shown
    assert shown.count("data:video/mp4;base64") == 1


@pytest.mark.timeout(CELL_LIMIT_S)
def test_seeds_and_search_train_and_the_best_config_trains_again(workplace: Path) -> None:
    pytest.importorskip("optuna")
    shown = execute(
        "08_many_runs", workplace, total_steps=256, eval_every=256, n_envs=4, runs_dir="many", overrides=TINY_PPO,
        seeds=1, trials=2, space={"gamma": [0.9, 0.99]},
    )  # fmt: skip
    made = {"many-reach-ppo-s0", "many-search-t000", "many-search-t001", "many-best-reach-ppo-s100", "many-doomed"}
    runs = local_runs(workplace / "many")
    assert {run.name for run in runs} == made and all(run.status()["state"] == "finished" for run in runs)
    assert "small-s0" in shown and "small-s1" in shown, "the notebooks executed in bulk"
    assert "many-search: 2 complete" in shown and "for kit train FILE" in shown
