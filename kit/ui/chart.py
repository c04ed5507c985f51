"""A live line chart as SVG text.

Drawing takes about a millisecond, so that the dashboard does not slow down training. Text has the page's colour, which
is readable on light and dark themes. `kit.ui.plots` makes figures for saved notebooks.
"""

from __future__ import annotations

import math

import numpy as np

from kit.ui import style
from kit.ui.learning import MEANINGS, Curve

WIDTH, HEIGHT = 284, 190  # px
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 26, 28  # px around the plotting area; RIGHT fits half of the last x label
MAX_POINTS = 300
HOVER_POINTS, HOVER_PX = 60, 6
"""Number of points per line that show their value when pointed at, and their radius."""


def chart(curve: Curve, total_steps: int) -> str:
    """Return `curve` as SVG. The x axis ends at the last point, or at `total_steps` while there are no points."""
    training, evaluation = thinned(curve.training), thinned(curve.evaluation)
    lines = [("train", 188, style.BLUE, training), ("eval", 240, style.ORANGE, evaluation)]
    steps, values = np.concatenate([training, evaluation]).T
    x_max = steps.max(initial=0) or total_steps
    low, high = 0.0, 1.0
    if curve.teacher is not None:
        values = np.append(values, curve.teacher)
    if len(values) and not curve.percent:
        pad = 0.08 * float(np.ptp(values)) or 0.5 * abs(float(values[0])) or 0.5
        low, high = values.min() - pad, values.max() + pad

    def at(x: float, y: float) -> tuple[float, float]:
        across = (WIDTH - LEFT - RIGHT) * x / x_max
        up = (HEIGHT - TOP - BOTTOM) * (min(max(y, low), high) - low) / (high - low)
        return LEFT + across, HEIGHT - BOTTOM - up

    meaning = f"<title>{MEANINGS.get(curve.title, '')}</title>"
    parts = [f'<text x="{LEFT}" y="14" font-weight="600" font-size="12.5">{curve.title}{meaning}</text>']
    for y in ticks(low, high, 4):
        _, py = at(0, y)
        label = style.percent(y) if curve.percent else f"{y:g}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py:.1f}" y2="{py:.1f}" stroke-opacity=".14"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{py + 3.5:.1f}" text-anchor="end" opacity=".7">{label}</text>')
    for x in ticks(0, x_max, 4):
        px, _ = at(x, low)
        parts.append(f'<text x="{px:.1f}" y="{HEIGHT - 10}" text-anchor="middle" opacity=".7">{short(x)}</text>')
    if curve.teacher is not None:
        (x0, py), (x1, _) = at(0, curve.teacher), at(x_max, curve.teacher)
        parts.append(f'<line x1="{x0}" x2="{x1}" y1="{py:.1f}" y2="{py:.1f}" stroke-dasharray="5 4" opacity=".8"/>')
        parts.append(f'<text x="{x1}" y="{py + 12:.1f}" text-anchor="end" opacity=".8">teacher</text>')
    for name, legend_x, colour, points in lines:
        drawn = [at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        parts.append(f'<polyline points="{path}" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>')
        dots = [(x, y, 3.0) for x, y in drawn] if name == "eval" or len(drawn) == 1 else []
        if len(training) and len(evaluation):
            parts.append(f'<text x="{legend_x + 8}" y="14" opacity=".8">{name}</text>')
            dots.append((legend_x, 10, 3.5))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}" stroke="none"/>' for x, y, r in dots]
        parts += [_hover(name, curve, point, at(*point)) for point in points[:: max(1, len(points) // HOVER_POINTS)]]
    if not len(values):
        middle = f'x="{(LEFT + WIDTH - RIGHT) / 2}" y="{(HEIGHT + TOP - BOTTOM) / 2}"'
        parts.append(f'<text {middle} text-anchor="middle" opacity=".55">no data yet</text>')
    return (
        f'<svg class="kit-curve" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{_summary(curve)}" stroke="currentColor" fill="none">{"".join(parts)}</svg>'
    )


def _hover(name: str, curve: Curve, point: np.ndarray, at: tuple[float, float]) -> str:
    """Return an invisible circle with a tooltip: step and value of `point`."""
    text = f"{name}, step {point[0]:,.0f}: {_value(curve, point[1])}"
    circle = f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{HOVER_PX}" stroke="none" pointer-events="all">'
    return f"{circle}<title>{text}</title></circle>"


def _summary(curve: Curve) -> str:
    """Return the curve as a sentence for screen readers: its last values."""
    parts = [
        f"{name} {_value(curve, points[-1, 1])} at step {points[-1, 0]:,.0f}"
        for name, points in (("training", curve.training), ("evaluation", curve.evaluation))
        if len(points)
    ]
    return f"{curve.title}: {', '.join(parts) or 'no values yet'}"


def _value(curve: Curve, value: float) -> str:
    return style.percent(value) if curve.percent else f"{value:.4g}"


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
