"""What a sweep found: which choices went with which scores, which of them mattered, and the best config."""

from __future__ import annotations

import base64
import html
import io
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from kit.errors import need
from kit.scale.sweep import Sweep, plan
from kit.ui import style
from kit.ui.plots import TEXT, beside

SIZE = (7.2, 3.4), (4.2, 3.4)
"""Inches: of parallel coordinates, of importances."""


def sweep(found: Sweep | str | Path) -> style.Page:
    """A sweep, or the file that asks for one, as it stands, here or in its store: parallel coordinates (a line is a
    trial), how much each name mattered, the trials, and the best config to train."""
    if not isinstance(found, Sweep):
        found = Sweep(plan(found)[0])
    table = found.table()
    done = [trial for trial in found.study.trials if trial.state.name == "COMPLETE"]
    states = Counter(trial.state.name.lower() for trial in found.study.trials)
    said = f"{found.plan.name}: {', '.join(f'{count} {state}' for state, count in states.items()) or 'no trials yet'}."
    parts = [f"<p style='font-size:16px;margin:6px 0'><b>{html.escape(said)}</b></p>"]
    picture = beside(_figures(found)) if len(done) > 1 else None
    if picture:
        parts.append(
            f"<img alt='{html.escape(said)}' src='data:image/png;base64,{base64.b64encode(picture).decode()}'>"
        )
    shown = table.to_html(index=False, border=0, classes="kit-table", na_rep="", float_format="{:.4g}".format)
    parts.append(f"<div style='overflow-x:auto'>{shown}</div>")
    if found.best is not None:
        best = yaml.safe_dump(found.best.non_defaults(), sort_keys=False).strip()
        parts.append(f"{style.note('The best, for kit train FILE or kit.RunConfig.from_yaml:')}<pre class='kit-code'>")
        parts.append(f"{html.escape(best)}</pre>")
    return style.Page(f"{said}\n{table.to_string(index=False)}", "".join(parts), picture)


def _figures(found: Sweep) -> list[bytes]:
    """Optuna's own, in the page's colours."""
    need("matplotlib", "notebook")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as drawn

    pictures = []
    with warnings.catch_warnings(), pyplot.rc_context():  # they are called experimental
        warnings.simplefilter("ignore")
        plots: list[Any] = [drawn.plot_parallel_coordinate, drawn.plot_param_importances]
        for plot, size in zip(plots[: 1 + (len(found.plan.space) > 1)], SIZE, strict=False):
            figure = plot(found.study, target_name=f"eval {found.plan.score}").figure
            figure.set_size_inches(size)
            figure.patch.set_alpha(0)
            for axes in figure.axes:
                axes.patch.set_alpha(0)
                axes.tick_params(colors=TEXT)
                if axes.legend_ is not None:
                    axes.legend_.remove()
                for text in axes.findobj(lambda item: hasattr(item, "set_color") and hasattr(item, "get_text")):
                    text.set_color(TEXT)
            out = io.BytesIO()
            figure.savefig(out, format="png", dpi=110, bbox_inches="tight")
            pyplot.close(figure)
            pictures.append(out.getvalue())
    return pictures
