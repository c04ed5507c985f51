"""A run's account: what its policies earn beside the task's own plan, as a figure and as a table."""

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
    "breakage_rate": "Broken, of all plates",
    "error_rate": "Broken or not clean",
    "value_to_wage": "Value, in a person's wages",
}
SHOWN = ("profit_per_hour", "plates_per_hour", "breakage_rate")
SHARES = ("breakage_rate", "error_rate")


def economy(run: Run, episodes: int = EPISODES) -> Any:
    """A matplotlib figure of a run's evaluations in money, plates and breakage, with a line for the task's own plan.
    Raises `UserError` for a task that keeps no such account."""
    rows = run.rows()
    none = series([], "")
    curves = [Curve(TITLES[name], none, series(rows, f"eval/shift/{name}"), name in SHARES) for name in SHOWN]
    if not any(len(curve.evaluation) for curve in curves):
        raise UserError(f"run={run.name!r} has no evaluation with an account of shifts; train Dishwashing, evaluated.")
    plan = evaluate(run, episodes, scripted=True)
    figure, axes = draw(curves)
    for axis, curve, name in zip(axes, curves, SHOWN, strict=True):
        axis.plot(*curve.evaluation.T, "-o", color=style.ORANGE, markersize=4, linewidth=1.8, label="policy")
        axis.axhline(plan[f"shift/{name}"], color=style.BLUE, linewidth=1.5, linestyle="--", label="scripted wiper")
        axis.set_xlim(left=0)
    axes[0].legend(frameon=False, labelcolor=TEXT, loc="lower right")
    return figure


def account(run: Run, episodes: int = EPISODES) -> pd.DataFrame:
    """A table to read: what the task's own plan and the run's best policy come to in `episodes` shifts."""
    import pandas as pd

    step = run.find().step
    played = {
        "scripted wiper": evaluate(run, episodes, scripted=True),
        f"policy, step {step:,}": evaluate(run, episodes, step),
    }
    lines = {who: [_spell(name, found[f"shift/{name}"]) for name in TITLES] for who, found in played.items()}
    return pd.DataFrame.from_dict(lines, orient="index", columns=list(TITLES.values()))


def _spell(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name in SHARES else f"{value:,.2f}" if name == "value_to_wage" else f"{value:,.1f}"
