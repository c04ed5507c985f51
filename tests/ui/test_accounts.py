"""Tests of `kit.ui.accounts`: metrics of a policy and of the scripted policies, as a figure and a table."""

from __future__ import annotations

from pathlib import Path

import pytest

import kit
from kit.errors import UserError
from kit.ui import accounts
from tests.ui.fabricate import make_run

SHIFT = {"env_options": {"shift_s": 5.0}, "n_envs": 2, "total_steps": 64, "seed": 3}


def test_figure_and_table_have_the_policy_and_the_scripted_policies(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    small = {"overrides": {"batch_size": 16}, "runs_dir": str(tmp_path), "run_name": "a"}
    run = kit.train(env="Dishwashing", algo="SAC", eval_every=32, **small, **SHIFT)
    figure = accounts.economy(run, episodes=4)
    assert [axis.get_title(loc="left") for axis in figure.axes] == [accounts.TITLES[name] for name in accounts.SHOWN]
    policy, wiper, seeker = figure.axes[0].lines
    evaluated = [row["eval/shift/profit_per_hour"] for row in run.rows() if "eval/shift/profit_per_hour" in row]
    assert policy.get_ydata().tolist() == evaluated and policy.get_xdata().tolist() == [0, 32, 64]

    table = accounts.account(run, episodes=4)
    for name, line in (("wiper", wiper), ("seeker", seeker)):
        env = kit.make_vec("Dishwashing", 4, seed=3 + 2_000_003, env_options={"shift_s": 5.0})
        for _ in range(50):
            info = env.step(env.scripted(name))[4]
        assert line.get_ydata()[0] == pytest.approx(info["shift/profit_per_hour"].mean().item())
        plates = info["shift/plates_per_hour"].mean().item()
        assert table.loc[f"scripted {name}", accounts.TITLES["plates_per_hour"]] == f"{plates:,.1f}"
    assert list(table.index)[2].startswith("policy, step ")


def test_a_task_without_shift_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no shift metrics in its evaluations; train Dishwashing"):
        accounts.economy(make_run(tmp_path))
