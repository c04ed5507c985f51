"""Live charts: valid SVG, round ticks, the newest point always there."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from kit.ui import curve
from kit.ui.curve import Line, chart, short, ticks
from kit.ui.learning import SMOOTH, Learning


def test_chart_is_valid_svg_that_escapes_and_draws_inside() -> None:
    line = Line("x", [0, 500, 1000], [0.0, math.nan, 2.0], "#123456", dots=True)
    drawn = chart("a < b & c", [line], 1000, (0.0, 1.0))
    root = ET.fromstring(drawn)
    assert any(text.text == "a < b & c" for text in root.iter("text"))
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter("circle")]
    assert len(circles) == 2, "NaN is left out"
    assert circles[0] == (curve.LEFT, 190 - curve.BOTTOM)
    assert circles[1] == (284 - curve.RIGHT, curve.TOP), "2.0 is shown at the upper edge of the range"


def test_an_empty_chart_says_so() -> None:
    assert "no data yet" in chart("Success rate", [Line("training", [], [], "red")], 1000)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e9])
def test_a_constant_can_be_drawn(value: float) -> None:
    ET.fromstring(chart("c", [Line("l", [1, 2], [value, value], "red")], 2))


def test_long_series_are_thinned_from_the_end() -> None:
    line = Line("l", range(10_007), range(10_007), "red")
    assert len(line.points) <= 2 * curve.MAX_POINTS
    assert line.points[-1] == (10_006, 10_006)


def test_ticks_and_short_numbers() -> None:
    assert ticks(0, 100_000, 4) == [0, 25_000, 50_000, 75_000, 100_000]
    assert ticks(-0.9, 4.2, 4) == [0, 2, 4]
    assert [short(x) for x in (0, 500, 20_000, 1_500_000)] == ["0", "500", "20k", "1.5M"]


def test_learning_takes_four_series_and_smooths_training_only() -> None:
    rows = [{"step": i, "rollout/success_rate": float(i == SMOOTH)} for i in range(1, SMOOTH + 2)]
    rows.append({"step": 3, "eval/success_rate": 0.5, "eval/mean_return": 7.0})
    learning = Learning.of(rows)
    assert learning.has_success
    assert learning.success.values[-2:] == pytest.approx([1 / SMOOTH, 1 / SMOOTH])
    assert learning.success.values[0] == 0.0
    assert list(learning.eval_success.values) == [0.5]
    assert list(learning.eval_returns.values) == [7.0]
    assert not learning.returns
    assert not Learning.of([]).has_success
    assert isinstance(learning.success.steps, np.ndarray)
