"""Figures to keep, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from kit.errors import need
from kit.runs.run import Run
from kit.ui import style
from kit.ui.chart import short
from kit.ui.learning import Curve

WHEEL = (style.BLUE, style.ORANGE, "#008300", "#8e44ad", "#c0392b", "#0097a7", "#b8860b", "#5d6d7e")


def learning_curve(run: Run) -> Any:
    """A matplotlib figure of success rate (where the task has one) and mean return over environment steps."""
    curves = Curve.of(run.rows())
    figure, axes = draw(curves)
    for axis, curve in zip(axes, curves, strict=True):
        axis.plot(*curve.training.T, color=style.BLUE, linewidth=2, label="training (with exploration)")
        axis.plot(*curve.evaluation.T, "o", color=style.ORANGE, markersize=5, label="evaluation")
        axis.set_xlim(left=0)
    if any(len(curve.evaluation) for curve in curves):
        figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def draw(curves: Sequence[Curve]) -> tuple[Any, list[Any]]:
    """A figure with axes for `curves`. It shows itself in a notebook; pyplot does not hold it."""
    need("matplotlib", "notebook")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data, format="png")
            return data.getvalue()

    figure = Shown(figsize=(4.6 * len(curves), 3.1), dpi=110, layout="constrained")
    axes = list(figure.subplots(1, len(curves), squeeze=False)[0])
    for axis, curve in zip(axes, curves, strict=True):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.22, linewidth=0.8)
        axis.set_title(curve.title, loc="left", fontsize=10.5)
        axis.set_xlabel("environment steps")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: short(steps)))
        if curve.percent:
            axis.set_ylim(-0.02, 1.04)
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure, axes
