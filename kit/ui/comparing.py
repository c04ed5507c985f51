"""Compare runs task by task, over seeds: figure, table and a verdict in words."""

from __future__ import annotations

import itertools
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.config import to_text
from kit.measure.speed import duration
from kit.measure.uncertainty import FEW_SEEDS, LEAST_SEEDS, LEVEL, Estimate, p_values
from kit.runs.run import Run
from kit.ui import style
from kit.ui.chart import short
from kit.ui.learning import Curve
from kit.ui.plots import PALETTE, TEXT, draw, side_by_side

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_THRESHOLD = 0.9
"""Default threshold, as a fraction of the gap between the score at the start of training and the best score."""
NAMED = 12
"""Largest number of runs that a comparison lists by name."""
IN_A_SENTENCE = 3
"""Largest number of configs that the verdict lists by name."""
LABEL_CHARACTERS, LEGEND_LINES = 40, 20
"""Maximum number of characters of a line in the figure's legend, and of lines in all."""
NOT_THE_CONFIG = (
    "seed", "run_name", "runs_dir", "store", "tracker", "threads", "device", "checkpoint_every", "eval_every",
    "session_limit", "disk_budget", "processes",
)  # fmt: skip
"""Fields that are ignored when runs are grouped by config."""


@dataclass(frozen=True)
class RunScores:
    """The scores of one run over steps and time."""

    curves: list[Curve]
    elapsed: np.ndarray
    """(k, 2) pairs (step, seconds of training up to this step), over all sessions."""
    evaluation_episodes: int
    """Number of episodes of the last evaluation with a success rate; 0 if unknown."""
    name: str = ""
    is_finished: bool = True
    test_episodes: int = 0
    test: float | None = None
    """The best policy's score in the final test; None without a test. The test's episodes are new, so the score is not
    biased by the choice of the best policy."""

    @classmethod
    def of(cls, run: Run) -> RunScores:
        rows = run.rows()
        curves = Curve.of(rows)
        finished = run.status()["state"] == "finished"
        test: dict[str, Any] = next((row for row in reversed(rows) if "test/step" in row), {})
        if test and not finished and test["step"] != rows[-1]["step"]:
            test = {}  # of an earlier end: the run trains longer
        score = test.get("test/success_rate" if curves[0].percent else "test/mean_return")
        episodes = test.get("test/episodes", 0)
        return cls(curves, elapsed_of(rows), _episodes(rows), run.name, finished, episodes, score)

    @property
    def episodes(self) -> int:
        """Number of episodes in which the run's score was measured; 0 if unknown."""
        return self.evaluation_episodes if self.test is None else self.test_episodes

    def without_test(self) -> RunScores:
        """Return a copy without the final test's score, for comparison with runs that have no test."""
        return self if self.test is None else replace(self, test=None)

    @property
    def has_success(self) -> bool:
        return len(self.curves) > 1

    def without_success(self) -> RunScores:
        """Return a copy without the success rate, for comparison with runs that have none."""
        return replace(self, curves=self.curves[-1:], test=None) if self.has_success else self

    @cached_property
    def scores(self) -> np.ndarray:
        """(k, 2) pairs (step, score); see `points_of`. Score: success rate if the task has one, else mean return."""
        return points_of(self.curves[0])

    @property
    def last(self) -> float:
        """The score of the final test or, without a test, of the last evaluation."""
        return float(self.scores[-1, 1]) if self.test is None else self.test

    def reached(self, score: float) -> tuple[float, float]:
        """Return steps and seconds until the first evaluation with at least `score`; infinite if there is none."""
        above = self.scores[self.scores[:, 1] >= score, 0]
        if not len(above):
            return np.inf, np.inf
        return float(above[0]), float(np.interp(above[0], *self.elapsed.T))


def _episodes(rows: Sequence[dict[str, Any]]) -> int:
    """Return the number of episodes of the last evaluation with a success rate, or 0."""
    counts = (row.get("eval/episodes") for row in reversed(rows) if "eval/success_rate" in row)
    return next(counts, None) or 0


def elapsed_of(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return (k, 2) pairs (step, seconds of training up to this step), over all sessions.

    The logged seconds start at 0 in each session. Therefore a decrease from one row to the next marks a new session. A
    session that is shorter than the first iteration of the next session is missed.
    """
    clock, before, last = [(0.0, 0.0)], 0.0, 0.0
    for row in rows:
        if (now := row.get("time/time_elapsed")) is not None:
            before += last if now < last else 0.0
            last = now
            clock.append((row["step"], before + now))
    return np.array(clock)


@dataclass(frozen=True)
class Group:
    """Runs of one config with different seeds. Fields in `NOT_THE_CONFIG`, such as the device, may differ too."""

    label: str
    seeds: list[RunScores]

    @cached_property
    def last(self) -> np.ndarray:
        """(seeds,) final scores."""
        return np.array([seed.last for seed in self.seeds])

    @property
    def finished(self) -> int:
        """Number of seeds whose run is finished."""
        return sum(seed.is_finished for seed in self.seeds)

    @cached_property
    def estimate(self) -> Estimate:
        """Mean of the final scores, with its 95 % interval."""
        known = all(seed.episodes for seed in self.seeds)
        episodes = sum(seed.episodes for seed in self.seeds) if known else 0
        return Estimate.of(self.last, self.seeds[0].curves[0].percent, episodes)

    def band(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (k,) in the range that all seeds cover, and the values (seeds, k) interpolated at these steps.

        `column`: index in `curves`; -1 is the mean return, which exists for all tasks.
        """
        curves = [points_of(seed.curves[column]) for seed in self.seeds]
        steps = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
        first, last = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
        steps = steps[(steps >= first) & (steps <= last)]
        return steps, np.array([np.interp(steps, *curve.T) for curve in curves])


def points_of(curve: Curve) -> np.ndarray:
    """Return the curve's evaluations (k, 2), or its training values if there are no evaluations."""
    return curve.evaluation if len(curve.evaluation) else curve.training


def by_task(runs: Iterable[Run]) -> dict[str, list[Group]]:
    """Return task -> groups of runs with the same config, in the order of `runs`. Leave out runs without a score."""
    tasks: dict[str, list[tuple[dict[str, Any], RunScores]]] = defaultdict(list)
    scored = [(run, scores) for run in runs if len((scores := RunScores.of(run)).scores)]
    starts = first_policies([run for run, _ in scored])
    for (run, scores), start in zip(scored, starts, strict=True):
        config = config_of(run)
        env, options, overrides = (config.pop(name) for name in ("env", "env_options", "overrides"))
        task = " ".join([env, *(f"{name}={value}" for name, value in sorted(options.items()))])
        tasks[task].append(({**config, **overrides, "from": start or "scratch"}, scores))
    for task, members in tasks.items():
        if any(not scores.has_success for _, scores in members):  # older than the task's `success`
            members = [(config, scores.without_success()) for config, scores in members]
        if any(scores.test is None for _, scores in members):
            members = [(config, scores.without_test()) for config, scores in members]
        tasks[task] = members
    return {task: _groups(members) for task, members in tasks.items()}


def config_of(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.config.to_dict().items() if name not in NOT_THE_CONFIG}


def first_policies(runs: Sequence[Run]) -> list[list[Any] | None]:
    """Return a grouping key per run: [name, step] of the parent (the run whose policy it started from), or None.

    Parents that differ only in their seed count as one parent: the key has the name of the first of them and the step
    at which its child branched. If runs of one config branch from several steps of the same parent, the key has the
    step at which the run itself branched.
    """
    by_name = {run.name: run for run in runs}

    def history(run: Run, descendants: tuple[str, ...] = ()) -> list[Any]:
        """Return the configs of the run and its ancestors, then the name of a missing ancestor, or None."""
        if run.parent is None:
            return [config_of(run), None]
        name = run.parent[0]
        path = run.path.with_name(name)
        parent = Run(path) if (path / "config.yaml").is_file() else by_name.get(name)
        if parent is None or name in (*descendants, run.name):  # the parent was deleted, or its name was used again
            return [config_of(run), name]
        return [config_of(run), *history(parent, (*descendants, run.name))]

    first, steps = dict[str, tuple[str, int | None]](), defaultdict[tuple[str, str], set[int | None]](set)
    lineages = [(run.parent, to_text(history(run)), to_text(history(run)[1:])) for run in runs]
    for parent, lineage, ancestry in lineages:
        if parent is not None:
            first.setdefault(ancestry, parent)
            steps[lineage, parent[0]].add(parent[1])
    several = {lineage for (lineage, _), taken in steps.items() if len(taken) > 1}
    return [
        None if parent is None else [first[ancestry][0], parent[1] if lineage in several else first[ancestry][1]]
        for parent, lineage, ancestry in lineages
    ]


def _groups(members: Sequence[tuple[dict[str, Any], RunScores]]) -> list[Group]:
    """Group one task's runs by config. A label is the algorithm and the fields in which its runs differ.

    The fields with the most values come first, because a legend cuts long labels.
    """
    groups: dict[str, list[RunScores]] = defaultdict(list)
    for config, scores in members:
        others = [other for other, _ in members if other["algo"] == config["algo"]]
        names = [name for name in config if any(other.get(name) != config[name] for other in others)]
        names.sort(key=lambda name: -len({to_text(other.get(name)) for other in others}))
        differs = ", ".join(f"{name} {_short(config[name], [other.get(name) for other in others])}" for name in names)
        groups[f"{config['algo']} ({differs})" if differs else config["algo"]].append(scores)
    return [Group(label, seeds) for label, seeds in groups.items()]


def _short(value: Any, values: Sequence[Any]) -> str:
    """Format a float with three digits, unless another float in `values` has the same three digits."""
    if not isinstance(value, float):
        return to_text(value)
    equal = {other for other in values if isinstance(other, float) and f"{other:.3g}" == f"{value:.3g}"}
    return f"{value:.3g}" if equal == {value} else to_text(value)


def threshold_of(groups: Sequence[Group]) -> float:
    """Return start + `DEFAULT_THRESHOLD` * (best mean - start), where start is the median first score."""
    start = float(np.median([seed.scores[0, 1] for group in groups for seed in group.seeds]))
    return start + DEFAULT_THRESHOLD * (max(group.estimate.mean for group in groups) - start)


def standings(runs: Iterable[Run], threshold: float | None = None, usd_per_hour: float = 0.0) -> pd.DataFrame:
    """Return a ranking of configs as numbers: one row per task and config, best first.

    Configs with runs that are not finished come last.

    Columns:
        seeds: number of runs; finished: number of them that are finished
        score: mean over the seeds of the success rate (or mean return), in the final test if all runs of the task have
            a test, else in the last evaluation
        low, high: 95 % interval of the score (infinite with one or two seeds)
        worst: the lowest score of a seed
        p: p-value of the difference from the first row (Welch's t-test with Holm's correction)
        threshold: the score that counts as reached; reached: number of seeds that reached the threshold
        steps, after_s: median steps and seconds until the threshold (infinite unless most seeds reached it)
        steps_per_s: environment steps per second
        seconds, usd: training time of all seeds in total, and its price at `usd_per_hour`

    `threshold` as in `compare`.
    """
    return _table(by_task(runs), threshold, usd_per_hour)


def _table(tasks: dict[str, list[Group]], threshold: float | None, usd_per_hour: float) -> pd.DataFrame:
    import pandas as pd

    lines = {}
    for task, groups in tasks.items():
        score = threshold_of(groups) if threshold is None else threshold
        groups = sorted(groups, key=lambda group: (group.finished < len(group.seeds), -group.estimate.mean))
        p = p_values([group.estimate for group in groups])
        for place, group in enumerate(groups):
            estimate = group.estimate
            steps, seconds = np.array([seed.reached(score) for seed in group.seeds]).T
            ends = np.array([seed.elapsed[-1] for seed in group.seeds])
            lines[task, group.label] = {
                "seeds": len(group.seeds), "finished": group.finished,
                "score": estimate.mean, "low": estimate.low, "high": estimate.high,
                "worst": float(group.last.min()), "p": p.get((0, place), 1.0), "threshold": score,
                "reached": int(np.isfinite(steps).sum()), "steps": _median(steps), "after_s": _median(seconds),
                "steps_per_s": _rate(ends), "seconds": float(ends[:, 1].sum()),
                "usd": float(ends[:, 1].sum()) / 3600 * usd_per_hour,
            }  # fmt: skip
    return pd.DataFrame.from_dict(lines, orient="index")


def _median(values: np.ndarray) -> float:
    """Return the median of values that may be infinite; for an even number, the larger of the two middle values."""
    return float(np.sort(values)[len(values) // 2])


def _rate(ends: np.ndarray) -> float:
    steps, seconds = ends.sum(0)
    return float(steps / seconds) if seconds else 0.0


def compare(runs: Iterable[Run], threshold: float | None = None, usd_per_hour: float = 0.0) -> style.Page:
    """Compare runs task by task: learning curves, a table, and a verdict in words.

    Each line is the mean over a config's seeds; its band reaches from the lowest to the highest seed. The table also
    shows the time until the score reaches `threshold` (default: the score at the start, plus 90 % of the gap to the
    best config).
    """
    listed = list(runs)
    tasks, texts, parts, pngs = by_task(listed), [], [], []
    table = _table(tasks, threshold, usd_per_hour)
    for task, groups in tasks.items():
        rows = table.loc[[task]].droplevel(0)
        percent = groups[0].seeds[0].curves[0].percent
        sentence = f"{task}: {verdict(rows, percent)}"
        pngs.append(figure(groups)._repr_png_())
        cells = cells_of(rows, percent, bool(usd_per_hour))
        texts += [sentence, cells.to_string()]
        parts += [style.heading(sentence), style.figure(pngs[-1], "learning curves"), style.table(cells)]
        notes = [f"{group.label}: {', '.join(seed.name for seed in group.seeds)}." for group in groups]
        notes = [scored_by(groups), *(notes if len(listed) <= NAMED else [])]
        if threshold is None:
            share = style.percent(DEFAULT_THRESHOLD)
            notes.append(f"{_score(rows.threshold.iloc[0], percent)} is {share} of the way from the start to the best.")
        texts.append(" ".join(notes))
        parts.append(style.note(texts[-1]))
    unfinished = [run.name for run in listed if run.status()["state"] != "finished"]
    if tasks and unfinished:
        left_out = "Their configs are left out of the verdict if all runs of another config are finished."
        texts.append(f"Not finished: {', '.join(unfinished)}. {left_out}")
        parts.append(style.note(texts[-1]))
    nothing = "There is no run here yet: train one first."
    empty = "None of these runs has measured anything yet." if listed else nothing
    return style.Page("\n".join(texts) or empty, "".join(parts) or style.note(empty), side_by_side(pngs))


def scored_by(groups: Sequence[Group]) -> str:
    """Say in a sentence which of a run's scores is called final: see `RunScores.last`."""
    if all(seed.test is not None for group in groups for seed in group.seeds):
        return "Final score: the best policy in new episodes after training; curves: evaluations during training."
    return "Final score: the last point of each curve, because not all of these runs have a final test."


def verdict(rows: pd.DataFrame, percent: bool) -> str:
    """Describe which config is best, which are not measurably worse, and which reached the threshold first.

    `rows`: one task's rows of `standings`. Configs with runs that are not finished count only if none is finished.
    """
    done = rows[rows.finished == rows.seeds]
    rows = done if len(done) else rows
    best = rows.iloc[0]
    if len(rows) == 1:
        return f"{rows.index[0]} reached {_score(best.score, percent)}."
    equal = [label for label, row in rows.iloc[1:].iterrows() if row.p >= LEVEL]
    worse = [label for label in rows.index[1:] if label not in equal]
    best_score = _score(best.score, percent)
    if equal:
        alone = rows.seeds.loc[[rows.index[0], *equal]].min() < LEAST_SEEDS
        differ = "cannot be told apart with so few seeds" if alone else "are not measurably different"
        text = f"{_and([rows.index[0], *equal])} {differ} (best: {best_score})"
    else:
        text = f"{rows.index[0]} is the best, with {best_score}"
    if worse:
        text += f"; {_and(worse)} {'is' if len(worse) == 1 else 'are'} worse"
    reached = rows[np.isfinite(rows.after_s)].sort_values("after_s")
    few = rows.seeds.min() < LEAST_SEEDS
    if len(reached) and not few:
        first = reached.iloc[0]
        text += f". {reached.index[0]} is the first to reach {_score(first.threshold, percent)}, after {_time(first)}"
    if few:
        return f"{text}. One or two seeds do not show what other seeds would reach; train three or more."
    return f"{text}.{' With so few seeds this is a hint, not a proof.' if rows.seeds.min() < FEW_SEEDS else ''}"


def cells_of(rows: pd.DataFrame, percent: bool, priced: bool) -> pd.DataFrame:
    """Return one task's rows of `standings` as text, for display."""
    import pandas as pd

    threshold = _score(rows.threshold.iloc[0], percent)
    lines = {}
    for label, row in rows.iterrows():
        interval = f" ({_score(row.low, percent)} to {_score(row.high, percent)})" if np.isfinite(row.low) else ""
        time_to_threshold = _time(row) if np.isfinite(row.after_s) else "not reached by most seeds"
        lines[label] = {
            "seeds": f"{row.seeds:.0f}", "final score": _score(row.score, percent) + interval,
            "worst seed": _score(row.worst, percent), f"time to {threshold}": time_to_threshold,
            f"reached {threshold}": f"{row.reached:.0f} of {row.seeds:.0f}",
            "steps/s": f"{row.steps_per_s:,.0f}", "time": duration(row.seconds),
        } | ({"cost": f"${row.usd:.2f}"} if priced else {})  # fmt: skip
    return pd.DataFrame.from_dict(lines, orient="index")


def _time(row: Any) -> str:
    return f"{short(float(f'{row.steps:.3g}'))} steps, {duration(row.after_s)}"


def _score(value: float, percent: bool) -> str:
    return style.percent(value) if percent else f"{value:.3g}"


def _and(names: Sequence[Any]) -> str:
    if len(names) > IN_A_SENTENCE:
        names = [*names[: IN_A_SENTENCE - 1], f"{len(names) - IN_A_SENTENCE + 1} others"]
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last


def short_labels(labels: Sequence[str]) -> list[str]:
    """Wrap labels to lines, and cut those that need more than their share; those that become equal are numbered."""
    lines = min(3, max(1, LEGEND_LINES // len(labels)))
    cut = [textwrap.fill(label, LABEL_CHARACTERS, max_lines=lines, placeholder=" …") for label in labels]
    return [f"{label} {1 + cut[:i].count(label)}" if label in cut[:i] else label for i, label in enumerate(cut)]


def figure(groups: Sequence[Group]) -> Any:
    """Plot the mean over each group's seeds, with a band from lowest to highest seed; return a matplotlib figure."""
    curves = groups[0].seeds[0].curves
    drawn, axes = draw(curves)
    labels = short_labels([group.label for group in groups])
    for group, label, colour in zip(groups, labels, itertools.cycle(PALETTE), strict=False):
        for column, axis in enumerate(axes, -len(axes)):
            steps, values = group.band(column)
            axis.plot(steps, values.mean(0), "-o", color=colour, markersize=3.5, linewidth=1.8, label=label)
            axis.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.16, linewidth=0)
    for axis in axes:
        axis.set_xlim(left=0)
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8, labelcolor=TEXT)
    return drawn
