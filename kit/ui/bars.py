"""Named bars as HTML: the actions, reward terms and observations of one step."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from gymnasium import Space, spaces

from kit.envs.task_info import Field
from kit.ui import style

CSS = """
.kit-bars{display:grid;gap:0 12px;margin:0 0 6px;font:11px/16px system-ui,sans-serif;font-variant-numeric:tabular-nums}
.kit-bars b{grid-column:1/-1;font-weight:600}
.kit-bars p{display:flex;gap:5px;align-items:center;margin:0;white-space:nowrap;font:inherit}
.kit-bars s{flex:1;text-decoration:none;overflow:hidden;text-overflow:ellipsis}
.kit-bars i{flex:0 0 40px;height:8px;position:relative;background:rgba(128,128,128,.2)}
.kit-bars u{position:absolute;top:0;bottom:0}
.kit-bars q{flex:0 0 40px;text-align:right;quotes:none}
"""
"""Short element names, because an episode has thousands of bars."""

NARROW, WIDE = 112, 250
"""Smallest width in pixels of a name with one bar, and of a name with two."""


def reward_bars(
    step: Mapping[str, float],
    total: Mapping[str, float],
    most: Sequence[float],
    colours: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return bars of the reward and its terms, in this `step` and in `total` over the episode so far.

    `most`: the values of a full bar, for a step and for an episode. `colours`: term -> colour, if not blue.
    """
    rows = [(name, [(value, most[0]), (total[name], most[1])]) for name, value in step.items()]
    return _grid("reward: this step · sum of the episode", rows, WIDE, colours)


def field_bars(fields: Sequence[Field], values: np.ndarray, most: np.ndarray, letter: str = "") -> str:
    """Return bars of `values` (k,) under the name of their field, numbered as in the vector: a0, a1, ...

    `most` (k,): the values of a full bar. If the widths of `fields` do not add up to k, the bars have no headings.
    """
    if sum(field.width for field in fields) != len(values):
        fields = [Field("", len(values))]
    groups, start = [], 0
    for field in fields:
        unit = f", in units of {field.unit}" if field.unit[:1].isdigit() else f", {field.unit}" if field.unit else ""
        rows = [(f"{letter}{i}", [(values[i], most[i])]) for i in range(start, start + field.width)]
        groups.append(_grid(field.what + unit, rows))
        start += field.width
    return "".join(groups)


def full_bar(space: Space) -> float:
    """Return the largest absolute value of an action in `space`; 1 if there is no limit."""
    if isinstance(space, spaces.Box):
        limit = float(np.abs([space.low, space.high]).max())
        return limit if np.isfinite(limit) else 1.0
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return float(np.max(space.n if isinstance(space, spaces.Discrete) else space.nvec)) - 1.0
    return 1.0


def _grid(
    title: str,
    rows: Iterable[tuple[str, Iterable[tuple[float, float]]]],
    width: int = NARROW,
    colours: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return named bars in columns, as many as fit if each is `width` pixels wide.

    `rows`: (name, its bars); a bar: (value, value of a full bar).
    """
    cells = []
    for name, values in rows:
        bars = "".join(_bar(value, most, colours.get(name, style.BLUE)) for value, most in values)
        cells.append(f"<p><s title='{html.escape(name)}'>{html.escape(name)}</s>{bars}</p>")
    columns = f"grid-template-columns:repeat(auto-fill,minmax({width}px,1fr))"
    heading = f"<b>{html.escape(title)}</b>" if title else ""
    return f"<div class='kit-bars' style='{columns}'>{heading}{''.join(cells)}</div>"


def _bar(value: float, most: float, colour: str) -> str:
    """Return a bar from the middle to the right, or to the left if `value` is negative, and the value."""
    share = min(abs(value) / most, 1.0) * 50 if most > 0 else 0.0
    left = 50 - share if value < 0 else 50
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 0
    place = f"left:{left:.0f}%;width:{share:.0f}%;background:{colour}"
    text = f"{round(float(value), digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.000"
    return f"<i><u style='{place}'></u></i><q>{text}</q>"
