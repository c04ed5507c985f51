"""Tests of live charts: SVG, ticks, legends, tooltips, thinning, smoothing."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from kit.ui.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Line,
    chart,
    line_chart,
    short,
    thinned,
    ticks,
)
from kit.ui.learning import SMOOTH, Curve, smoothed

NONE = np.empty((0, 2))


def test_chart_is_valid_svg_that_draws_inside() -> None:
    drawn = chart(Curve("Success rate", NONE, np.array([[0, 0.0], [1000, 2.0]]), percent=True), 1000)
    dots = [c for c in ET.fromstring(drawn).iter("circle") if not len(c)]
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in dots]
    assert circles == [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)], "2.0 is shown at the upper edge of the range"


def test_a_curve_with_few_steps_takes_the_whole_width() -> None:
    drawn = chart(Curve("Mean return", NONE, np.array([[0, 1.0], [1000, 2.0]])), 100_000)
    assert f'cx="{WIDTH - RIGHT}.0"' in drawn and ">100k<" not in drawn


def test_an_empty_chart_says_so_and_two_lines_have_a_legend() -> None:
    assert "no data yet" in chart(Curve("Success rate", NONE, NONE), 1000)
    both = chart(Curve("Mean return", np.array([[1, 2.0]]), np.array([[1, 3.0]])), 1000)
    assert ">training</text>" in both and ">evaluation</text>" in both


def test_a_chart_has_tooltips_and_a_label_for_screen_readers() -> None:
    curve = Curve("Success rate", np.array([[500, 0.25]]), np.array([[0, 0.0], [1000, 0.5]]), percent=True)
    drawn = ET.fromstring(chart(curve, 2000))
    titles = [title.text for title in drawn.iter("title")]
    assert titles[0] and titles[0].startswith("Share of episodes that ended in success")
    assert titles[1:] == ["training, step 500: 25 %", "evaluation, step 0: 0 %", "evaluation, step 1,000: 50 %"]
    assert drawn.get("role") == "img"
    assert drawn.get("aria-label") == "Success rate: training 25 % at step 500, evaluation 50 % at step 1,000"


@pytest.mark.parametrize("value", [0.0, -3.0, 1e9])
def test_a_constant_can_be_drawn(value: float) -> None:
    ET.fromstring(chart(Curve("c", np.array([[1, value], [2, value]]), NONE), 2))


def test_long_series_are_thinned_and_keep_the_last_point() -> None:
    kept = thinned(np.stack([np.arange(10_007.0)] * 2, axis=1))
    assert len(kept) <= 2 * MAX_POINTS
    assert list(kept[-1]) == [10_006, 10_006]


def test_ticks_and_short_numbers() -> None:
    assert ticks(0, 100_000, 4) == [0, 25_000, 50_000, 75_000, 100_000]
    assert ticks(-0.9, 4.2, 4) == [0, 2, 4]
    assert [short(x) for x in (0, 500, 20_000, 1_500_000)] == ["0", "500", "20k", "1.5M"]


def test_learning_is_read_from_metrics_and_only_training_is_smoothed() -> None:
    rows = [{"step": i, "rollout/success_rate": float(i == SMOOTH)} for i in range(1, SMOOTH + 2)]
    rows.append({"step": 3, "eval/success_rate": 0.5, "eval/mean_return": 7.0, "rollout/ep_rew_mean": float("nan")})
    success, returned = Curve.of(rows)
    assert success.training[-2:, 1] == pytest.approx([1 / SMOOTH, 1 / SMOOTH])
    assert success.training[0, 1] == 0.0
    assert success.evaluation.tolist() == [[3, 0.5]]
    assert returned.evaluation.tolist() == [[3, 7.0]]
    assert len(returned.training) == 0, "NaN must be left out"


def test_a_spike_does_not_blur_the_smoothed_values_after_it() -> None:
    values = np.array([1.0, 1e18, *range(2, 9)])
    points = np.stack([np.arange(9.0), values], axis=1)
    assert smoothed(points, 1).tolist() == points.tolist()
    assert smoothed(points, 2)[2:, 1].tolist() == [5e17, *np.arange(2.5, 8)]


def test_the_teachers_score_is_a_dashed_line_within_the_range() -> None:
    """The student's return is 1, its teacher's 9: the dashed line is near the top of the chart."""
    rows = [{"step": 0, "eval/mean_return": 0.0, "teacher/mean_return": 9.0}, {"step": 10, "eval/mean_return": 1.0}]
    (curve,) = Curve.of(rows)
    assert curve.teacher == 9.0
    (line,) = [x for x in ET.fromstring(chart(curve, 10)).iter("line") if x.get("stroke-dasharray")]
    assert TOP < float(line.get("y1", "")) < TOP + (HEIGHT - TOP - BOTTOM) / 4
    (alone,) = Curve.of([{"step": 0, "eval/mean_return": 0.0}])
    assert alone.teacher is None and "teacher" not in chart(alone, 10)


def test_lines_are_drawn_within_the_chosen_steps_and_named_below_the_title() -> None:
    """Of each line, only the point at step 500 is between 400 and 600."""
    points = np.array([[0, 0.0], [500, 5.0], [1000, 100.0]])
    lines = [Line("first", "#111", points)]
    lines += [Line("second", "#222", points + np.array([0, 1]), dashed=True), Line("x", "#333", NONE)]
    drawn = ET.fromstring(line_chart("metric", lines, (400, 600)))
    titles = [title.text for title in drawn.iter("title")]
    assert titles[1:] == ["first, step 500: 5", "second, step 500: 6"]
    names = [text.text for text in drawn.iter("text")]
    assert "first" in names and "second" in names and "x" not in names, "a line without points has no legend"
    assert "400" in names and "600" in names
