"""A live line chart as SVG text.

A dashboard draws its charts beside training, and a chart of 300 points takes 2 ms. Altair takes 36 ms for the same
lines and Matplotlib 58 ms; Plotly takes 5 ms, but its widget sends 5 MB of JavaScript to the page. Colab shows SVG text
as it is, where it would have to load a plotting widget from elsewhere. Text has the page's colour, which is readable on
light and dark themes. A saved notebook keeps no live charts; `kit.ui.plots` makes figures for it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kit.ui import style
from kit.ui.learning import MEANINGS, Curve

WIDTH, HEIGHT = 284, 190  # px
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 26, 28  # px around the plotting area; RIGHT fits half of the last x label
TITLE_X, LETTER, ROW = 6, 6.6, 15
"""Title and legend, in pixels: left edge, width of a letter, height of a row."""
MAX_POINTS = 300
HOVER_POINTS, HOVER_PX = 60, 6
"""Number of points per line that show their value when pointed at, and their radius."""


class Line(NamedTuple):
    """A line of a chart: `points` are (k, 2) pairs (step, value), k >= 0."""

    name: str
    colour: str
    points: np.ndarray
    dots: bool = False
    """Whether each point is drawn as a dot."""
    dashed: bool = False


def chart(curve: Curve, total_steps: int) -> str:
    """Return `curve` as SVG. The x axis ends at the last point, or at `total_steps` while there are no points."""
    training = Line("training", style.BLUE, curve.training)
    lines = [training, Line("evaluation", style.ORANGE, curve.evaluation, dots=True)]
    last = max((line.points[-1, 0] for line in lines if len(line.points)), default=0)
    return line_chart(curve.title, lines, (0, last or total_steps), curve.percent, curve.teacher)


def line_chart(
    title: str,
    lines: Sequence[Line],
    steps: tuple[float, float],
    percent: bool = False,
    level: float | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> str:
    """Return lines over environment steps as SVG; a legend names them if several have points.

    `steps`: range of the x axis; points outside it are left out. `percent`: whether the values are rates from 0 to 1.
    `level`: height of a dashed line named "teacher". `size`: width and height in pixels.
    """
    x_min, x_max = steps
    width, height = size
    lines = [line._replace(points=thinned(_within(line.points, steps))) for line in lines]
    drawn = [line for line in lines if len(line.points)]
    legend, top = _legend(title, drawn, width) if len(drawn) > 1 else ([], TOP)
    values = np.concatenate([line.points[:, 1] for line in drawn] or [np.empty(0)])
    if level is not None:
        values = np.append(values, level)
    low, high = 0.0, 1.0
    if len(values) and not percent:
        pad = 0.08 * float(np.ptp(values)) or 0.5 * abs(float(values[0])) or 0.5
        low, high = values.min() - pad, values.max() + pad

    def at(x: float, y: float) -> tuple[float, float]:
        across = (width - LEFT - RIGHT) * (x - x_min) / (x_max - x_min)
        up = (height - top - BOTTOM) * (min(max(y, low), high) - low) / (high - low)
        return LEFT + across, height - BOTTOM - up

    meaning = f"<title>{html.escape(MEANINGS.get(title, ''))}</title>"
    parts = [f'<text x="{TITLE_X}" y="14" font-weight="600" font-size="12.5">{html.escape(title)}{meaning}</text>']
    parts += legend
    for y in ticks(low, high, 4):
        _, py = at(x_min, y)
        label = style.percent(y) if percent else f"{y:g}"
        parts.append(f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{py:.1f}" y2="{py:.1f}" stroke-opacity=".14"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{py + 3.5:.1f}" text-anchor="end" opacity=".7">{label}</text>')
    for x in ticks(x_min, x_max, 4 if width < 2 * WIDTH else 8):
        px, _ = at(x, low)
        parts.append(f'<text x="{px:.1f}" y="{height - 10}" text-anchor="middle" opacity=".7">{short(x)}</text>')
    if level is not None:
        (x0, py), (x1, _) = at(x_min, level), at(x_max, level)
        parts.append(f'<line x1="{x0}" x2="{x1}" y1="{py:.1f}" y2="{py:.1f}" stroke-dasharray="5 4" opacity=".8"/>')
        parts.append(f'<text x="{x1}" y="{py + 12:.1f}" text-anchor="end" opacity=".8">teacher</text>')
    for line in drawn:
        parts += _drawn(line, [at(x, y) for x, y in line.points], percent)
    if not len(values):
        middle = f'x="{(LEFT + width - RIGHT) / 2}" y="{(height + top - BOTTOM) / 2}"'
        parts.append(f'<text {middle} text-anchor="middle" opacity=".55">no data yet</text>')
    return (
        f'<svg class="kit-curve" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(_summary(title, drawn, percent))}" stroke="currentColor" fill="none">'
        f"{''.join(parts)}</svg>"
    )


def _within(points: np.ndarray, steps: tuple[float, float]) -> np.ndarray:
    return points[(points[:, 0] >= steps[0]) & (points[:, 0] <= steps[1])]


def _legend(title: str, lines: Sequence[Line], width: int) -> tuple[list[str], float]:
    """Return the legend's SVG pieces, to the right of the title, and the upper edge of the plotting area below it."""
    parts, x, y = list[str](), TITLE_X + LETTER * 1.15 * len(title) + 16, 10
    for line in lines:
        needs = 12 + LETTER * len(line.name)
        if x + needs > width:
            x, y = TITLE_X, y + ROW
        dash = ' stroke-dasharray="3 2"' if line.dashed else ""
        parts.append(
            f'<line x1="{x:.1f}" x2="{x + 9:.1f}" y1="{y}" y2="{y}" stroke="{line.colour}" stroke-width="3"{dash}/>'
        )
        parts.append(f'<text x="{x + 12:.1f}" y="{y + 4}" opacity=".8">{html.escape(line.name)}</text>')
        x += needs + 8
    return parts, TOP + y - 10


def _drawn(line: Line, at: Sequence[tuple[float, float]], percent: bool) -> list[str]:
    """Return a line's SVG pieces. `at`: its points in pixels."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dash = ' stroke-dasharray="5 3"' if line.dashed else ""
    parts = [f'<polyline points="{path}" stroke="{line.colour}" stroke-width="2" stroke-linejoin="round"{dash}/>']
    if line.dots or len(at) == 1:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.0" fill="{line.colour}" stroke="none"/>' for x, y in at]
    every = max(1, len(at) // HOVER_POINTS)
    pairs = list(zip(line.points, at, strict=True))[::every]
    return parts + [_hover(line.name, point, pixel, percent) for point, pixel in pairs]


def _hover(name: str, point: np.ndarray, at: tuple[float, float], percent: bool) -> str:
    """Return an invisible circle with a tooltip: step and value of `point`."""
    text = html.escape(f"{name}, step {point[0]:,.0f}: {_value(point[1], percent)}")
    circle = f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{HOVER_PX}" stroke="none" pointer-events="all">'
    return f"{circle}<title>{text}</title></circle>"


def _summary(title: str, lines: Sequence[Line], percent: bool) -> str:
    """Return the chart as a sentence for screen readers: the last value of each line."""
    values = [f"{line.name} {_value(line.points[-1, 1], percent)} at step {line.points[-1, 0]:,.0f}" for line in lines]
    return f"{title}: {', '.join(values) or 'no values yet'}"


def _value(value: float, percent: bool) -> str:
    return style.percent(value) if percent else f"{value:.4g}"


def thinned(points: np.ndarray) -> np.ndarray:
    """Return at most 2 * `MAX_POINTS` of the points, evenly spaced, including the newest."""
    return points[::-1][:: max(1, len(points) // MAX_POINTS)][::-1]


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about `about` round numbers between `low` and `high`."""
    raw = (high - low) / about
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(steps: float) -> str:
    """Format a number of steps, such as 0, 500, 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:g}{letter}"
    return f"{steps:g}"
