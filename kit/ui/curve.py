"""A line chart as SVG text: about a millisecond to draw, so that watching a training does not slow it down.

It takes the page's text colour, so it is readable on light and dark themes. `kit.ui.plots` makes figures to keep.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 28  # px around the plotting area
MAX_POINTS = 300
TEXT = """
.kit-curve text{fill:currentColor;stroke:none;font-family:system-ui,sans-serif}
.kit-curve text:not([font-size]){font-size:11px}
"""


@dataclass(frozen=True)
class Line:
    """One series; NaN values are left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dots: bool = False
    points: list[tuple[float, float]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kept = [(float(x), float(y)) for x, y in zip(self.x, self.y, strict=True) if math.isfinite(y)]
        stride = max(1, len(kept) // MAX_POINTS)
        object.__setattr__(self, "points", kept[::-1][::stride][::-1])  # from the end, so that the newest point stays


def chart(
    title: str,
    lines: Sequence[Line],
    x_max: float,
    y_range: tuple[float, float] | None = None,
    y_text: Callable[[float], str] = lambda value: f"{value:g}",
    width: int = 284,
    height: int = 190,
) -> str:
    """SVG of `lines` over steps from 0 to `x_max`; `y_range` is fitted to the data unless given."""
    values = [y for line in lines for _, y in line.points]
    low, high = y_range or _padded(values)
    x_max = max([x_max, 1.0, *(x for line in lines for x, _ in line.points)])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (width - LEFT - RIGHT) * x / x_max
        up = (height - TOP - BOTTOM) * (min(max(y, low), high) - low) / (high - low)
        return LEFT + across, height - BOTTOM - up

    parts = [f'<text x="{LEFT}" y="14" font-weight="600" font-size="12.5">{html.escape(title)}</text>']
    for y in ticks(low, high, 4):
        _, py = at(0, y)
        parts.append(f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{py:.1f}" y2="{py:.1f}" stroke-opacity=".14"/>')
        label = html.escape(y_text(y))
        parts.append(f'<text x="{LEFT - 6}" y="{py + 3.5:.1f}" text-anchor="end" opacity=".7">{label}</text>')
    for x in ticks(0, x_max, 4):
        px, _ = at(x, low)
        parts.append(f'<text x="{px:.1f}" y="{height - 10}" text-anchor="middle" opacity=".7">{short(x)}</text>')
    for line in lines:
        parts.append(_draw(line, [at(x, y) for x, y in line.points]))
    if not values:
        middle = f'x="{(LEFT + width - RIGHT) / 2}" y="{(height + TOP - BOTTOM) / 2}"'
        parts.append(f'<text {middle} text-anchor="middle" opacity=".55">no data yet</text>')
    parts.append(_legend([line for line in lines if line.points], width))
    return (
        f'<svg class="kit-curve" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'stroke="currentColor" fill="none"><style>{TEXT}</style>{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between `low` and `high`, some `about` of them."""
    raw = (high - low) / about
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(steps: float) -> str:
    """Such as 0, 500, 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:g}{letter}"
    return f"{steps:g}"


def _draw(line: Line, points: list[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f'<polyline points="{path}" stroke="{line.colour}" stroke-width="2" stroke-linejoin="round"/>'
    if line.dots or len(points) == 1:
        drawn += "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}" stroke="none"/>' for x, y in points
        )
    return drawn


def _legend(lines: Sequence[Line], width: int) -> str:
    if len(lines) < 2:
        return ""
    parts, x = [], float(width - RIGHT)
    for line in reversed(lines):
        x -= 6.0 * len(line.label)
        parts.append(f'<text x="{x:.0f}" y="14" opacity=".8">{html.escape(line.label)}</text>')
        parts.append(f'<circle cx="{x - 8:.0f}" cy="10" r="3.5" fill="{line.colour}" stroke="none"/>')
        x -= 22
    return "".join(parts)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 0.5 * abs(high) or 0.5
    return low - pad, high + pad
