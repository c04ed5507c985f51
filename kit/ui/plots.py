"""Figures to keep, as PNG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from kit.errors import need
from kit.runs.run import Run
from kit.ui import style
from kit.ui.chart import short
from kit.ui.learning import Curve, series

TEXT = "#7b818a"
"""Readable on white and on black."""
INSIDE = ("train/", "eval/")
ON_THE_CURVE = (
    "eval/mean_return", "eval/success_rate", "eval/std_return", "eval/episodes", "train/n_updates", "train/clip_range",
)  # fmt: skip
"""Or not worth a chart."""
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
        figure.legend(
            *axes[-1].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False, labelcolor=TEXT
        )
    return figure


def inside(run: Run) -> Any:
    """A matplotlib figure of what else a run's metrics say: losses, KL divergence, entropy, how well values fit, and in
    evaluations each term of the reward and each figure of the task's own; a small chart each, of what changes."""
    rows = run.rows()
    names = sorted({name for row in rows for name in row if name.startswith(INSIDE) and name not in ON_THE_CURVE})
    found = {name: points for name in names if len(set((points := series(rows, name))[:, 1])) > 1}
    figure, axes = draw([Curve(name, points, points[:0]) for name, points in found.items()], columns=4, size=(2.7, 1.9))
    for axis, points in zip(axes, found.values(), strict=True):
        axis.plot(*points.T, color=style.BLUE, linewidth=1.4)
    return figure


def draw(curves: Sequence[Curve], columns: int = 3, size: tuple[float, float] = (4.6, 3.1)) -> tuple[Any, list[Any]]:
    """A figure with axes for `curves`, each of `size` in inches. It shows itself in a notebook, on light and on dark
    pages; pyplot does not hold it."""
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


def beside(pictures: Iterable[bytes | None]) -> bytes | None:
    """One PNG of several, as high as the lowest; None of none."""
    from PIL import Image

    images = [Image.open(io.BytesIO(picture)).convert("RGBA") for picture in pictures if picture]
    if not images:
        return None
    height = min(image.height for image in images)
    images = [image.resize((image.width * height // image.height, height)) for image in images]
    whole = Image.new("RGBA", (sum(image.width for image in images), height))
    for i, image in enumerate(images):
        whole.paste(image, (sum(before.width for before in images[:i]), 0))
    out = io.BytesIO()
    whole.save(out, format="png")
    return out.getvalue()
