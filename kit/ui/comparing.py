"""Several runs beside each other: by task, seeds of the same config together. A figure, a table and a verdict."""

from __future__ import annotations

import base64
import html
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.config import spelled
from kit.measure.speed import duration
from kit.measure.uncertainty import FEW_SEEDS, LEAST_SEEDS, LEVEL, Estimate, p_values
from kit.runs.run import Run
from kit.ui import style
from kit.ui.chart import short
from kit.ui.learning import Curve
from kit.ui.plots import TEXT, WHEEL, beside, draw

if TYPE_CHECKING:
    import pandas as pd

MOST = 0.9
"""The share of the way from the untrained to the best result whose time is compared, unless asked for another score."""
NOT_THE_CONFIG = (
    "seed", "run_name", "runs_dir", "store", "threads", "device", "checkpoint_every", "eval_every", "session_limit",
    "disk_budget", "processes",
)  # fmt: skip
"""Fields in which runs may differ and still be of one config."""


@dataclass(frozen=True)
class Learned:
    """One run, by the numbers."""

    curves: list[Curve]
    elapsed: np.ndarray
    """(k, 2) steps, and seconds of work until then, over all sessions."""
    episodes: int
    """Of the test or, without one, of the last evaluation, where that gives a success rate; 0 where it is not known."""
    test: float | None = None
    """The best policy's score in episodes that did not choose it, where the run ended with a test."""

    @classmethod
    def of(cls, run: Run) -> Learned:
        rows = run.rows()
        curves = Curve.of(rows)
        test: dict[str, Any] = next((row for row in reversed(rows) if "test/step" in row), {})
        score = test.get("test/success_rate" if curves[0].percent else "test/mean_return")
        return cls(curves, worked(rows), test.get("test/episodes") or _episodes(rows), score)

    def untested(self) -> Learned:
        """By its evaluations alone, to stand beside runs without a test."""
        return self if self.test is None else replace(self, test=None)

    @cached_property
    def scores(self) -> np.ndarray:
        """(k, 2) steps and scores: success where the task has one, else the return; of evaluations if there are any."""
        return shown(self.curves[0])

    @property
    def last(self) -> float:
        """Its test or, without one, its last evaluation."""
        return float(self.scores[-1, 1]) if self.test is None else self.test

    def reached(self, score: float) -> tuple[float, float]:
        """Steps and seconds until the first evaluation of at least `score`; infinite if there was none."""
        above = self.scores[self.scores[:, 1] >= score, 0]
        if not len(above):
            return np.inf, np.inf
        return float(above[0]), float(np.interp(above[0], *self.elapsed.T))


def _episodes(rows: Sequence[dict[str, Any]]) -> int:
    counted = (row.get("eval/episodes") for row in reversed(rows) if "eval/success_rate" in row)
    return next(counted, None) or 0


def worked(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """(k, 2) steps, and seconds of work until then, over all sessions. Each session counts seconds from 0 and steps per
    second from where it began: a row is of a new one if it counts less than the one before, or began elsewhere."""
    clock, before, last = [(0.0, 0.0)], 0.0, 0.0
    earliest, latest = -np.inf, np.inf  # where the session began, in steps, as far as its rows say
    for row in rows:
        if (now := row.get("time/time_elapsed")) is None:
            continue
        least, most = -np.inf, np.inf
        if (rate := row.get("time/fps")) is not None:  # SB3 rounds both down
            least, most = row["step"] - (rate + 1) * (now + 1), row["step"] - rate * now
        if now < last or least > latest or most < earliest:
            before, earliest, latest = before + last, least, most
        earliest, latest, last = max(earliest, least), min(latest, most), now
        clock.append((row["step"], before + now))
    return np.array(clock)


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    seeds: list[Learned]

    @cached_property
    def last(self) -> np.ndarray:
        """(seeds,) the last scores."""
        return np.array([seed.last for seed in self.seeds])

    @cached_property
    def estimate(self) -> Estimate:
        """The mean of the last scores."""
        known = all(seed.episodes for seed in self.seeds)
        episodes = sum(seed.episodes for seed in self.seeds) if known else 0
        return Estimate.of(self.last, self.seeds[0].curves[0].percent, episodes)

    def band(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps (k,) that all seeds have come to, and their values there (seeds, k); `column` counts curves from the
        last, the return, which all tasks have."""
        curves = [shown(seed.curves[column]) for seed in self.seeds]
        steps = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
        first, last = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
        steps = steps[(steps >= first) & (steps <= last)]
        return steps, np.array([np.interp(steps, *curve.T) for curve in curves])


def shown(curve: Curve) -> np.ndarray:
    """(k, 2) its evaluations, or what training saw where there are none."""
    return curve.evaluation if len(curve.evaluation) else curve.training


def by_task(runs: Iterable[Run]) -> dict[str, list[Group]]:
    """Groups in the order of their first run. Runs that have measured nothing yet are left out."""
    tasks: dict[str, list[tuple[dict[str, Any], Learned]]] = defaultdict(list)
    learned = [(run, found) for run in runs if len((found := Learned.of(run)).scores)]
    starts = first_policies([run for run, _ in learned])
    for (run, found), start in zip(learned, starts, strict=True):
        known = config_of(run)
        env, options, overrides = (known.pop(name) for name in ("env", "env_options", "overrides"))
        task = " ".join([env, *(f"{name}={value}" for name, value in sorted(options.items()))])
        tasks[task].append(({**known, **overrides, "from": start}, found))
    for task, parts in tasks.items():
        if any(one.test is None for _, one in parts):
            tasks[task] = [(part, one.untested()) for part, one in parts]
    return {task: _groups(found) for task, found in tasks.items()}


def config_of(run: Run) -> dict[str, Any]:
    """The fields that make runs of one config."""
    return {name: value for name, value in run.config.to_dict().items() if name not in NOT_THE_CONFIG}


def first_policies(runs: Sequence[Run]) -> list[list[Any] | None]:
    """The name and step of the run whose policy each began with, the same for parents that differ in their seed: those
    of the first of them. Their steps count only if runs of one config began with several steps of one parent."""
    among = {run.name: run for run in runs}

    def history(run: Run, younger: tuple[str, ...] = ()) -> list[Any]:
        """Its config, then its ancestors', as far as they are there, and at last a name or None."""
        if run.parent is None:
            return [config_of(run), None]
        name = run.parent[0]
        beside = run.path.with_name(name)
        parent = Run(beside) if (beside / "config.yaml").is_file() else among.get(name)
        if parent is None or name in (*younger, run.name):  # it is gone, or its name was used again
            return [config_of(run), name]
        return [config_of(run), *history(parent, (*younger, run.name))]

    first, steps = dict[str, tuple[str, int | None]](), defaultdict[tuple[str, str], set[int | None]](set)
    found = [(run.parent, spelled(history(run)), spelled(history(run)[1:])) for run in runs]
    for parent, whole, origin in found:
        if parent is not None:
            first.setdefault(origin, parent)
            steps[whole, parent[0]].add(parent[1])
    several = {whole for (whole, _), taken in steps.items() if len(taken) > 1}
    return [
        None if parent is None else [first[origin][0], parent[1] if whole in several else first[origin][1]]
        for parent, whole, origin in found
    ]


def _groups(found: Sequence[tuple[dict[str, Any], Learned]]) -> list[Group]:
    together: dict[str, list[Learned]] = defaultdict(list)
    for parts, learned in found:
        alike = [other for other, _ in found if other["algo"] == parts["algo"]]
        names = [name for name in parts if any(other.get(name) != parts[name] for other in alike)]
        differs = ", ".join(f"{name} {_said(parts[name], [other.get(name) for other in alike])}" for name in names)
        together[f"{parts['algo']} ({differs})" if differs else parts["algo"]].append(learned)
    return [Group(label, seeds) for label, seeds in together.items()]


def _said(value: Any, values: Sequence[Any]) -> str:
    """One of `values`, by three digits where that tells it from the others: a search chooses 0.0006466422717414558."""
    if not isinstance(value, float):
        return spelled(value)
    alike = {other for other in values if isinstance(other, float) and f"{other:.3g}" == f"{value:.3g}"}
    return f"{value:.3g}" if alike == {value} else spelled(value)


def threshold_of(groups: Sequence[Group]) -> float:
    """`MOST` of the way from where the groups began to the best of where they are."""
    began = float(np.median([seed.scores[0, 1] for group in groups for seed in group.seeds]))
    return began + MOST * (max(group.estimate.mean for group in groups) - began)


def standings(runs: Iterable[Run], threshold: float | None = None, usd_per_hour: float = 0.0) -> pd.DataFrame:
    """One line for each task and config, best first, in numbers:

    seeds; score, the mean (success rate, or mean return) of the tests with which they ended or, where not all have one,
    of their last evaluations, its 95 % interval low to high
    (infinite with one or two seeds), and worst, the lowest; p, how likely so large a difference from the first line is
    between equal configs; threshold, and how many seeds reached it, after how many steps and seconds (medians; infinite
    if fewer than half did); steps_per_s; seconds and, at `usd_per_hour`, usd of work for all seeds together.
    """
    return _table(by_task(runs), threshold, usd_per_hour)


def _table(tasks: dict[str, list[Group]], threshold: float | None, usd_per_hour: float) -> pd.DataFrame:
    import pandas as pd

    lines = {}
    for task, groups in tasks.items():
        needed = threshold_of(groups) if threshold is None else threshold
        groups = sorted(groups, key=lambda group: -group.estimate.mean)
        p = p_values([group.estimate for group in groups])
        for place, group in enumerate(groups):
            found = group.estimate
            steps, seconds = np.array([seed.reached(needed) for seed in group.seeds]).T
            ends = np.array([seed.elapsed[-1] for seed in group.seeds])
            lines[task, group.label] = {
                "seeds": len(group.seeds), "score": found.mean, "low": found.low, "high": found.high,
                "worst": float(group.last.min()), "p": p.get((0, place), 1.0), "threshold": needed,
                "reached": int(np.isfinite(steps).sum()), "steps": _median(steps), "after_s": _median(seconds),
                "steps_per_s": _rate(ends), "seconds": float(ends[:, 1].sum()),
                "usd": float(ends[:, 1].sum()) / 3600 * usd_per_hour,
            }  # fmt: skip
    return pd.DataFrame.from_dict(lines, orient="index")


def _median(values: np.ndarray) -> float:
    """The upper of two in the middle, so that infinity is not averaged with anything."""
    return float(np.sort(values)[len(values) // 2])


def _rate(ends: np.ndarray) -> float:
    steps, seconds = ends.sum(0)
    return float(steps / seconds) if seconds else 0.0


def compare(runs: Iterable[Run], threshold: float | None = None, usd_per_hour: float = 0.0) -> style.Page:
    """Several runs, task by task: curves (the mean of a config's seeds, in a band from the lowest to the highest), a
    table, and what it says in words. `threshold`: a score whose time is compared; by default 90 % of the
    way from the untrained to the best."""
    tasks, texts, parts, pictures = by_task(runs), [], [], []
    table = _table(tasks, threshold, usd_per_hour)
    for task, groups in tasks.items():
        rows = table.loc[[task]].droplevel(0)
        percent = groups[0].seeds[0].curves[0].percent
        said = f"{task}: {verdict(rows, percent)}"
        pictures.append(figure(groups)._repr_png_())
        picture = base64.b64encode(pictures[-1]).decode()
        cells = cells_of(rows, percent, bool(usd_per_hour))
        texts += [said, cells.to_string()]
        parts += [
            f"<p style='font-size:16px;margin:10px 0 4px'><b>{html.escape(said)}</b></p>",
            f"<img alt='learning curves' style='max-width:100%' src='data:image/png;base64,{picture}'>",
            f"<div style='overflow-x:auto'>{cells.to_html(border=0, classes='kit-table')}</div>",
        ]
    nothing = "None of these runs has measured anything yet."
    return style.Page("\n".join(texts) or nothing, "".join(parts) or style.note(nothing), beside(pictures))


def verdict(rows: pd.DataFrame, percent: bool) -> str:
    """Who is best, who cannot be told apart from it, and who was there first; of one task's lines of `standings`."""
    best = rows.iloc[0]
    if len(rows) == 1:
        return f"{rows.index[0]} came to {_score(best.score, percent)}."
    level = [label for label, row in rows.iloc[1:].iterrows() if row.p >= LEVEL]
    behind = [label for label in rows.index[1:] if label not in level]
    reached = _score(best.score, percent)
    if level:
        said = f"{_and([rows.index[0], *level])} cannot be told apart ({reached} at best)"
    else:
        said = f"{rows.index[0]} is the best, with {reached}"
    if behind:
        said += f"; {_and(behind)} {'stays' if len(behind) == 1 else 'stay'} behind"
    there = rows[np.isfinite(rows.after_s)].sort_values("after_s")
    if len(there):
        first = there.iloc[0]
        said += f". {there.index[0]} is the first at {_score(first.threshold, percent)}, after {_time(first)}"
    if rows.seeds.min() < LEAST_SEEDS:
        return f"{said}. One or two seeds say nothing about others; train three or more."
    return f"{said}.{' With so few seeds that is a hint, no proof.' if rows.seeds.min() < FEW_SEEDS else ''}"


def cells_of(rows: pd.DataFrame, percent: bool, priced: bool) -> pd.DataFrame:
    """One task's lines of `standings`, to read."""
    import pandas as pd

    needed = _score(rows.threshold.iloc[0], percent)
    lines = {}
    for label, row in rows.iterrows():
        between = f" ({_score(row.low, percent)} to {_score(row.high, percent)})" if np.isfinite(row.low) else ""
        reached = _time(row) if np.isfinite(row.after_s) else "–"
        lines[label] = {
            "seeds": f"{row.seeds:.0f}", "at the end": _score(row.score, percent) + between,
            "worst seed": _score(row.worst, percent), f"{needed} reached": reached,
            "by": f"{row.reached:.0f} of {row.seeds:.0f}", "steps/s": f"{row.steps_per_s:,.0f}",
            "worked": duration(row.seconds),
        } | ({"cost": f"${row.usd:.2f}"} if priced else {})  # fmt: skip
    return pd.DataFrame.from_dict(lines, orient="index")


def _time(row: Any) -> str:
    return f"{short(float(f'{row.steps:.3g}'))} steps, {duration(row.after_s)}"


def _score(value: float, percent: bool) -> str:
    return style.percent(value) if percent else f"{value:.3g}"


def _and(names: Sequence[Any]) -> str:
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last


def figure(groups: Sequence[Group]) -> Any:
    """A matplotlib figure of one task's groups."""
    curves = groups[0].seeds[0].curves
    drawn, axes = draw(curves)
    for group, colour in zip(groups, itertools.cycle(WHEEL), strict=False):
        for column, axis in enumerate(axes, -len(axes)):
            steps, values = group.band(column)
            axis.plot(steps, values.mean(0), "-o", color=colour, markersize=3.5, linewidth=1.8, label=group.label)
            axis.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.16, linewidth=0)
    for axis in axes:
        axis.set_xlim(left=0)
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8, labelcolor=TEXT)
    return drawn
