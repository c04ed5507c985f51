"""Tests of the known results that the panel quotes after a run: they are those of tests/bench/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.ui.diagnosis import SCORES
from kit.ui.task import sensible_steps

MEASURED = Path(__file__).parents[1] / "bench/README.md"


@pytest.mark.parametrize(("env", "algo"), SCORES)
def test_known_results_are_those_that_were_measured(env: str, algo: str) -> None:
    """The first table has a row per task, of Reach one per algorithm; its fourth column has the scores of all seeds."""
    steps, score = SCORES[env, algo]
    assert steps == sensible_steps(env)
    row = re.search(rf"^\| {env}\b(?!, (?!{algo})[A-Z]).*", MEASURED.read_text(), re.MULTILINE)
    assert row is not None
    seeds = [int(number) for number in re.findall(r"\d+", row[0].split("|")[4])]
    worst, best = min(seeds), max(seeds)
    assert score.startswith(f"{worst} " if worst == best else f"{worst} to {best} ")
