"""Figures to keep: learning curves of one run, and of several in one picture."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from kit.errors import need
from kit.runs import metrics
from kit.runs.run import Run
from kit.ui import style
from kit.ui.curve import short
from kit.ui.learning import Learning

WHEEL = (style.BLUE, style.ORANGE, "#008300", "#8e44ad", "#c0392b", "#0097a7", "#b8860b", "#5d6d7e")


def learning_curve(run: Run) -> Any:
    """A matplotlib figure of success rate (where the task has one) and mean return over environment steps."""
    learning = Learning.of(metrics.read(run.path))
    figure, axes = _figure(2 if learning.has_success else 1)
    if learning.has_success:
        _panel(axes[0], "Success rate", learning.success, learning.eval_success, percent=True)
    _panel(axes[-1], "Mean return", learning.returns, learning.eval_returns)
    if learning.eval_success or learning.eval_returns:
        figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    return figure


def compare(runs: Iterable[Run]) -> Any:
    """A matplotlib figure of several runs: their evaluations, or their training where there are none."""
    learnings = [(run.name, Learning.of(metrics.read(run.path))) for run in runs]
    with_success = any(learning.has_success for _, learning in learnings)
    figure, axes = _figure(2 if with_success else 1)
    for (name, learning), colour in zip(learnings, WHEEL * (1 + len(learnings) // len(WHEEL)), strict=False):
        pairs = [(learning.eval_returns, learning.returns)]
        if with_success:
            pairs.insert(0, (learning.eval_success, learning.success))
        for axis, (evaluation, training) in zip(axes, pairs, strict=True):
            shown = evaluation or training
            axis.plot(shown.steps, shown.values, "-o", color=colour, markersize=3.5, linewidth=1.8, label=name)
    if with_success:
        _percent(axes[0], "Success rate")
    axes[-1].set_title("Mean return", loc="left", fontsize=10.5)
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    return figure


def _figure(panels: int) -> tuple[Any, list[Any]]:
    """A figure with `panels` axes over environment steps. It shows itself in a notebook; pyplot does not hold it."""
    need("matplotlib", "notebook")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            return png(self)

    figure = Shown(figsize=(4.6 * panels, 3.1), dpi=110, layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.22, linewidth=0.8)
        axis.set_xlabel("environment steps")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: short(steps)))
    return figure, axes


def png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


def _panel(axis: Any, title: str, training: Any, evaluation: Any, percent: bool = False) -> None:
    if training:
        axis.plot(training.steps, training.values, color=style.BLUE, linewidth=2, label="training (with exploration)")
    if evaluation:
        axis.plot(evaluation.steps, evaluation.values, "o", color=style.ORANGE, markersize=5, label="evaluation")
    axis.set_title(title, loc="left", fontsize=10.5)
    axis.set_xlim(left=0)
    if percent:
        _percent(axis, title)


def _percent(axis: Any, title: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_title(title, loc="left", fontsize=10.5)
    axis.set_ylim(-0.02, 1.04)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
