"""Charts of any metric of a run: chosen in a list, smoothed, zoomed to a range of steps, beside another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kit.format.files import GrowingRows
from kit.runs.finding import local_runs, run_folders
from kit.runs.run import Run
from kit.ui import style
from kit.ui.chart import Line, line_chart
from kit.ui.fold import Fold
from kit.ui.learning import MEANINGS, PREFIXES, TERMS, TRAINING_TERMS, reward_terms, series, smoothed
from kit.ui.plots import term_colours

SIZE = 640, 260
"""Width and height of the chart in pixels."""
FIRST = (TRAINING_TERMS, TERMS, "rollout/ep_rew_mean", "eval/mean_return", "train/approx_kl", "train/entropy_loss")
"""First entries of the list of metrics. The others follow in alphabetical order. The first two chart all
reward terms."""
NOT_METRICS = ("step", "time/iterations", "time/total_timesteps", "time/time_elapsed")
NO_RUN = "no other run"


class MetricCharts:
    """A collapsible section with one chart of a run's metrics and the controls for it.

    While it is folded, nothing is read or drawn. `w`: ipywidgets.
    """

    def __init__(self, w: Any) -> None:
        shape = {"style": {"description_width": "60px"}, "layout": w.Layout(width="300px", max_width="100%")}
        self.metric = w.Dropdown(description="metric", **shape)
        self.other = w.Dropdown(description="beside", options=[NO_RUN], **shape)
        self.smooth = w.IntSlider(description="smooth", value=1, min=1, max=50, continuous_update=False, **shape)
        self.smooth.tooltip = "Mean over this number of values"
        self.range = w.IntRangeSlider(
            description="steps, %", value=(0, 100), min=0, max=100, continuous_update=False, **shape
        )
        self.chart = w.HTML()
        controls = [self.metric, self.other, self.smooth, self.range]
        wrapped = w.HBox(controls, layout=w.Layout(flex_flow="row wrap"))
        self.fold = Fold(w, "All metrics: losses, reward terms, entropy, speed", "kit-metrics", [wrapped, self.chart])
        self._run: Run | None = None
        self._chosen: str | None = None  # the metric that the user has chosen; not every run has it
        self._readers: dict[Path, GrowingRows] = {}
        self._folders = set[Path]()  # the run folders among which `other` chooses
        self.fold.view.layout.display = "none"
        self.metric.observe(self._choose, names="value")
        for widget in (*controls, self.fold.button):
            widget.observe(lambda _: self.draw(), names="value")

    def _choose(self, change: Any) -> None:
        self._chosen = change["new"]

    def attach(self, run: Run | None) -> None:
        """Show the metrics of `run` from now on; hide the section if it is None."""
        if run is not None and (self._run is None or run.path != self._run.path):
            self.smooth.value, self.range.value = 1, (0, 100)
        self._run, self._readers, self._folders = run, {}, set()
        self.fold.view.layout.display = "none" if run is None else None
        self.other.options = [NO_RUN]
        self.draw()

    def draw(self) -> None:
        """Read new rows and draw, if the section is unfolded."""
        if not self.fold.is_open or self._run is None:
            return
        self._offer_runs(self._run)
        rows = self._read(self._run.path)
        names = metrics_of(rows)
        if names != list(self.metric.options):
            chosen, shown = self._chosen, self.metric.value
            self.metric.options = names  # this changes the value, too
            self.metric.value = next((name for name in (chosen, shown, *names) if name in names), None)
            self._chosen = chosen
        if self.metric.value is None:
            self.chart.value = style.wrap(style.note("No metrics yet."))
            return
        lines, lack = self._lines(self.metric.value, rows, ""), ""
        if (other := self.other.value) != NO_RUN:
            beside = self._lines(self.metric.value, self._read(self._run.path.with_name(other)), f", {other}")
            lines += beside
            first, end = self._steps(lines)
            steps = np.concatenate([line.points[:, 0] for line in beside] or [np.empty(0)])
            if not len(steps):
                lack = style.note(f"{other} has no {self.metric.value}.")
            elif not ((steps >= first) & (steps <= end)).any():
                lack = style.note(f"{other} has no {self.metric.value} from step {first:,.0f} to {end:,.0f}.")
        self.chart.value = style.wrap(self._chart(self.metric.value, lines), lack)

    def _offer_runs(self, run: Run) -> None:
        """Let the user choose among the runs beside `run`; if there are new ones, keep the choice."""
        if (found := set(run_folders(run.path.parent))) != self._folders:
            self._folders, chosen = found, self.other.value
            names = [NO_RUN, *(each.name for each in local_runs(run.path.parent) if each.name != run.name)]
            self.other.options = names  # this changes the value, too
            self.other.value = chosen if chosen in names else NO_RUN

    def _read(self, run_path: Path) -> list[dict[str, Any]]:
        """Return the rows of a run's metrics; only new ones are read."""
        reader = self._readers.setdefault(run_path, GrowingRows(run_path / "metrics.jsonl"))
        reader.read()
        return reader.rows

    def _steps(self, lines: Sequence[Line]) -> tuple[float, float]:
        """Return the first and the last step of the chosen range."""
        last = max((line.points[-1, 0] for line in lines if len(line.points)), default=1.0)
        first, end = (last * share / 100 for share in self.range.value)
        return first, max(end, first + 1)

    def _chart(self, metric: str, lines: Sequence[Line]) -> str:
        # names that end in _rate are shown in per cent, but for reward terms such as action_rate
        is_number = metric.startswith(("train/learning_rate", *PREFIXES.values()))
        percent = metric.endswith(("_rate", "clip_fraction")) and not is_number
        drawn = line_chart(metric, lines, self._steps(lines), percent, size=SIZE)
        return style.wide(drawn) + style.note(MEANINGS.get(metric, ""))

    def _lines(self, metric: str, rows: Sequence[dict[str, Any]], suffix: str) -> list[Line]:
        """Return a line per metric; `suffix` names the other run, whose lines are dashed."""
        terms = reward_terms(rows, metric) if metric in PREFIXES else None
        drawn = {metric: series(rows, metric)} if terms is None else dict(sorted(terms.items()))
        dots = (metric.startswith("eval/") or metric == TERMS) and self.smooth.value == 1
        return [
            Line(
                name + suffix, style.ORANGE if suffix and terms is None else colour,
                smoothed(points, self.smooth.value), dots, bool(suffix),
            )
            for (name, points), colour in zip(drawn.items(), term_colours(drawn).values(), strict=True)
        ]  # fmt: skip


def metrics_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the entries of the list of metrics: `FIRST`, then the other columns by name."""
    found = sorted({name for row in rows for name in row} - set(NOT_METRICS))
    found += [title for title, prefix in PREFIXES.items() if any(name.startswith(prefix) for name in found)]
    return sorted(found, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
