"""Matplotlib figures, saved in the notebook as PNG: learning curves, training metrics, images side by side."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from kit.errors import need
from kit.runs.run import Run
from kit.ui import style
from kit.ui.chart import short
from kit.ui.learning import Curve, series

TEXT = "#7b818a"
"""Text colour, readable on white and on black."""
INSIDE = ("train/", "eval/")
"""Prefixes of the metrics that `inside` plots."""
ON_THE_CURVE = (
    "eval/mean_return", "eval/success_rate", "eval/std_return", "eval/episodes", "train/n_updates", "train/clip_range",
)  # fmt: skip
"""Metrics that `inside` leaves out, because the learning curve shows them or they are of little interest."""
PALETTE = (
    style.BLUE, style.ORANGE, "#008300", "#8e44ad", "#c0392b", "#0097a7", "#b8860b", "#5d6d7e", "#e377c2", "#7cb342",
    "#5c4ee5", "#8c564b", "#1abc9c", "#f48fb1", "#64b5f6", "#a1887f",
)  # fmt: skip


def term_colours(names: Iterable[str]) -> dict[str, str]:
    """Return name -> colour for all reward terms of a task, so that each term has one colour in all charts."""
    return dict(zip(sorted(names), itertools.cycle(PALETTE), strict=False))


def learning_curve(run: Run) -> Any:
    """Plot success rate (if the task has one) and mean return over environment steps; return a matplotlib figure."""
    curves = Curve.of(run.rows())
    figure, axes = draw(curves)
    for axis, curve in zip(axes, curves, strict=True):
        axis.plot(*curve.training.T, color=style.BLUE, linewidth=2, label="training")
        (dots,) = axis.plot(*curve.evaluation.T, "o", color=style.ORANGE, markersize=5, label="evaluation", zorder=3)
        dots.set_clip_on(False)  # the axis would cut the first in half
        if curve.teacher is not None:
            axis.axhline(curve.teacher, color=TEXT, linewidth=1.5, linestyle="--", label="teacher")
        axis.set_xlim(left=0)
    if any(len(curve.evaluation) for curve in curves):
        figure.legend(
            *axes[-1].get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False, labelcolor=TEXT
        )
    return figure


def inside(run: Run) -> Any:
    """Plot the metrics that the learning curve leaves out, in small charts; return a matplotlib figure.

    Training: losses, KL divergence, entropy, explained variance. Evaluation: reward terms and the task's own metrics.
    Constant metrics are left out.
    """
    rows = run.rows()
    names = sorted({name for row in rows for name in row if name.startswith(INSIDE) and name not in ON_THE_CURVE})
    metrics = {name: points for name in names if len(set((points := series(rows, name))[:, 1])) > 1}
    curves = [Curve(name, points, points[:0]) for name, points in metrics.items()]
    figure, axes = draw(curves, columns=4, size=(2.7, 1.9))
    for axis, points in zip(axes, metrics.values(), strict=True):
        axis.plot(*points.T, color=style.BLUE, linewidth=1.4)
    return figure


def draw(curves: Sequence[Curve], columns: int = 3, size: tuple[float, float] = (4.6, 3.1)) -> tuple[Any, list[Any]]:
    """Return a figure and its axes: one empty, styled axis per curve, each of `size` in inches.

    The figure displays itself in a notebook and is readable on light and dark pages. It is not registered with pyplot.
    """
    need("matplotlib", "notebook")
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data, format="png")
            return data.getvalue()

    columns = max(1, min(columns, len(curves)))
    rows = max(1, -(-len(curves) // columns))
    figure = Shown(figsize=(size[0] * columns, size[1] * rows), dpi=110, layout="constrained", facecolor="none")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(curves) :]:
        axis.remove()
    small = size[0] < 4
    for axis, curve in zip(axes, curves, strict=False):
        axis.set_facecolor("none")
        axis.tick_params(colors=TEXT, labelsize=7 if small else 9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["bottom", "left"]].set_color(TEXT)
        axis.grid(alpha=0.22, linewidth=0.8)
        axis.set_title(curve.title, loc="left", fontsize=8 if small else 10.5, color=TEXT)
        axis.set_xlabel("" if small else "environment steps", color=TEXT)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: short(steps)))
        if curve.percent:
            axis.set_ylim(-0.02, 1.04)
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure, axes[: len(curves)]


def side_by_side(pngs: Iterable[bytes | None]) -> bytes | None:
    """Join PNGs side by side into one, scaled to the smallest height; return None if there are no PNGs."""
    from PIL import Image

    images = [Image.open(io.BytesIO(png)).convert("RGBA") for png in pngs if png]
    if not images:
        return None
    height = min(image.height for image in images)
    images = [image.resize((image.width * height // image.height, height)) for image in images]
    joined, x = Image.new("RGBA", (sum(image.width for image in images), height)), 0
    for image in images:
        joined.paste(image, (x, 0))
        x += image.width
    out = io.BytesIO()
    joined.save(out, format="png")
    return out.getvalue()
