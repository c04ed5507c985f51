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
    """The tables have a row per task, of Reach one per algorithm; one column has the scores of all seeds."""
    steps, score = SCORES[env, algo]
    assert steps == sensible_steps(env)
    text = MEASURED.read_text()
    row = re.search(rf"^\| {env}\b(?!, (?!{algo})[A-Z]).*", text, re.MULTILINE)
    assert row is not None
    head = re.findall(r"^\| \|.*", text[: row.start()], re.MULTILINE)[-1].split("|")
    column = next(i for i, name in enumerate(head) if "seeds" in name)
    scores = row[0].split("|")[column].partition("(")[0]
    seeds = [int(number) for number in re.findall(r"\d+", scores)]
    worst, best = min(seeds), max(seeds)
    assert score.startswith(f"{worst} " if worst == best else f"{worst} to {best} ")
