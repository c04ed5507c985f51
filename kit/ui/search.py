"""The report of a hyperparameter search: figures, a table of trials, and the best config."""

from __future__ import annotations

import html
import io
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from kit.config import dump_yaml
from kit.errors import need
from kit.scale.study import Sweep, plan
from kit.ui import style
from kit.ui.plots import TEXT, side_by_side

SIZES = (7.2, 3.4), (4.2, 3.4)
"""Width and height in inches: of the plot of parallel coordinates, and of the plot of importances."""

GAP = 0.02
"""Distance of the colour bar from the labels, as a share of the plot's width."""

WORST_TO_BEST = (style.GREY, style.ORANGE)
"""Colours of trials by their score, readable on light and dark pages."""


def sweep(search: Sweep | str | Path) -> style.Page:
    """Report the current state of a hyperparameter search. `search`: a Sweep, or the path of the search's YAML file.

    The trials are read from this machine or from the store. The report shows parallel coordinates (a line per trial),
    the importance of each hyperparameter, a table of trials, and the best config.
    """
    if not isinstance(search, Sweep):
        search = Sweep(plan(search)[0])
    table = search.table()
    done = [trial for trial in search.study.trials if trial.state.name == "COMPLETE"]
    states = Counter(trial.state.name.lower() for trial in search.study.trials)
    counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "no trials yet"
    title = f"{search.plan.name}: {counts}."
    parts = [style.heading(title)]
    image = side_by_side(_figures(search)) if len(done) > 1 else None
    if image:
        parts.append(style.figure(image, title))
    parts.append(style.table(table, index=False, na_rep="", float_format="{:.4g}".format))
    if search.best is not None:
        best = dump_yaml(search.best.non_defaults()).strip()
        heading = style.note("The best config, for kit train FILE or kit.RunConfig.from_yaml:")
        parts.append(f"{heading}<pre class='kit-code'>{html.escape(best)}</pre>")
    return style.Page(f"{title}\n{table.to_string(index=False)}", "".join(parts), image)


def _figures(search: Sweep) -> list[bytes]:
    """Return Optuna's figures as PNGs, with text readable on light and dark pages."""
    need("matplotlib", "notebook")
    from matplotlib import pyplot
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from optuna.visualization import matplotlib as optuna_plots

    pngs = []
    with warnings.catch_warnings(), pyplot.rc_context():  # Optuna warns that these plots are experimental
        warnings.simplefilter("ignore")
        plots: list[Any] = [optuna_plots.plot_parallel_coordinate, optuna_plots.plot_param_importances]
        for plot, size in zip(plots[: 1 + (len(search.plan.space) > 1)], SIZES, strict=False):
            figure = plot(search.study, target_name=f"eval {search.plan.score}").figure
            figure.set_size_inches(size)
            figure.patch.set_alpha(0)
            for axes in figure.axes:
                axes.patch.set_alpha(0)
                axes.tick_params(colors=TEXT)
                axes.spines[:].set_color(TEXT)
                for line in (*axes.get_xgridlines(), *axes.get_ygridlines()):
                    line.set(color=TEXT, alpha=0.25)
                for lines in axes.findobj(LineCollection):
                    lines.set_cmap(LinearSegmentedColormap.from_list("kit", WORST_TO_BEST))
                if axes.legend_ is not None:
                    axes.legend_.remove()
                for text in axes.findobj(lambda item: hasattr(item, "set_color") and hasattr(item, "get_text")):
                    text.set_color(TEXT)
            _move_colour_bar(figure)
            out = io.BytesIO()
            figure.savefig(out, format="png", dpi=110, bbox_inches="tight")
            pyplot.close(figure)
            pngs.append(out.getvalue())
    return pngs


def _move_colour_bar(figure: Any) -> None:
    """Move the colour bar, which Optuna draws over the last axis's labels, to the right of them."""
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    for bar in bars:
        renderer = figure.canvas.get_renderer()
        labels = [axes.yaxis.get_tightbbox(renderer) for axes in figure.axes if axes not in bars]
        right = max(box.x1 for box in labels) / figure.bbox.width + GAP
        place = bar.get_position()
        bar.set_position([max(right, place.x0), place.y0, place.width, place.height])
