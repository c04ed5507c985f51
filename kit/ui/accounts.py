"""Profit, throughput and breakage of a Dishwashing run and of the scripted policies, as a figure and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.errors import UserError
from kit.runs.evaluation import evaluate
from kit.runs.run import Run
from kit.ui import style
from kit.ui.learning import Curve, series
from kit.ui.plots import TEXT, draw

if TYPE_CHECKING:
    import pandas as pd

EPISODES = 20
TITLES = {
    "profit_per_hour": "Profit, dollars per hour",
    "plates_per_hour": "Clean plates per hour",
    "breakage_rate": "Share of plates broken",
    "error_rate": "Share of plates broken or not clean",
    "value_to_wage": "Value of clean plates per hour / hourly wage",
}
SCRIPTS = {"wiper": "--", "seeker": ":"}
"""Scripted policies of the task, and their line styles."""
SHOWN = ("profit_per_hour", "plates_per_hour", "breakage_rate")
SHARES = ("breakage_rate", "error_rate")


def economy(run: Run, episodes: int = EPISODES) -> Any:
    """Plot profit, clean plates and breakage over training, with lines for the scripted policies.

    Returns a matplotlib figure. Raises `UserError` if the run's evaluations have no such metrics.
    """
    rows = run.rows()
    empty = series([], "")
    curves = [Curve(TITLES[name], empty, series(rows, f"eval/shift/{name}"), name in SHARES) for name in SHOWN]
    if not any(len(curve.evaluation) for curve in curves):
        raise UserError(f"run={run.name!r} has no shift metrics in its evaluations; train Dishwashing with eval_every.")
    scripted = {name: evaluate(run, episodes, scripted=name) for name in SCRIPTS}
    figure, axes = draw(curves)
    for axis, curve, name in zip(axes, curves, SHOWN, strict=True):
        axis.plot(*curve.evaluation.T, "-o", color=style.ORANGE, markersize=4, linewidth=1.8, label="policy")
        for script, line in SCRIPTS.items():
            value = scripted[script][f"shift/{name}"]
            axis.axhline(value, color=style.BLUE, linewidth=1.5, linestyle=line, label=f"scripted {script}")
        axis.set_xlim(left=0)
    axes[0].legend(frameon=False, labelcolor=TEXT, loc="lower right")
    return figure


def account(run: Run, episodes: int = EPISODES) -> pd.DataFrame:
    """Return a table of the `TITLES` metrics: scripted policies and the run's best policy, over `episodes` episodes."""
    import pandas as pd

    step = run.find().step
    evaluations = {
        **{f"scripted {name}": evaluate(run, episodes, scripted=name) for name in SCRIPTS},
        f"policy, step {step:,}": evaluate(run, episodes, step),
    }
    lines = {
        name: [_format(metric, metrics[f"shift/{metric}"]) for metric in TITLES]
        for name, metrics in evaluations.items()
    }
    return pd.DataFrame.from_dict(lines, orient="index", columns=list(TITLES.values()))


def _format(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name in SHARES else f"{value:,.2f}" if name == "value_to_wage" else f"{value:,.1f}"
