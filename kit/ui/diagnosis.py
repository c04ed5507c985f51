"""Likely causes of a poor result, found in a run's own metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kit.config import ALGOS
from kit.measure.uncertainty import success_differs
from kit.runs.run import Run
from kit.ui import style
from kit.ui.learning import series
from kit.ui.task import sensible_steps

AT_MOST = 3
"""Maximum number of causes that `causes` returns."""
LAST = 3
"""The last third of a run's values counts as its state at the end."""
LARGE_KL = 0.05
"""KL divergence of an update above which PPO's steps are too large. SB3 and rl-zoo3 use target_kl = 0.01 to 0.05."""
EXPLAINED = 0.2
"""Explained variance below which the value function is a poor predictor of returns."""
DOMINANT = 0.9
"""Share of the sum of the reward terms' absolute values above which one term dominates."""
CLEAR_RISE = 2.0
"""Rise of the return, divided by its standard deviation over episodes, above which something was learnt."""
SCORES = {
    ("Reach", "PPO"): (100_000, "100 % success"),
    ("Reach", "A2C"): (100_000, "100 % success"),
    ("Reach", "SAC"): (100_000, "100 % success"),
    ("ReachVision", "PPO"): (300_000, "80 to 97 % success"),
    ("Dishwashing", "PPO"): (700_000, "55 to 67 dollars an hour"),
    ("Push", "SAC"): (800_000, "97 % success"),
    ("Mission", "PPO"): (40_000_000, "87 to 98 % of the games won"),
    ("Go1Joystick", "PPO"): (4_000_000, "84 to 91 % success"),
}
"""(env, algo) -> steps, and scores of two to five seeds with preset "auto"; from tests/bench/README.md."""

Rows = Sequence[dict[str, Any]]


def known(run: Run) -> str:
    """Return a sentence with the task's usual steps and, if measured, the score of preset "auto"; "" if unknown."""
    config = run.config
    if (config.env, config.algo) in SCORES and not config.env_options:
        usual, score = SCORES[config.env, config.algo]
        return f"{config.env} with {config.algo} and preset auto reached {score} after {usual:,} steps."
    if steps := usual_steps(run):
        return f"{config.env} is usually trained for {steps:,} steps."
    return ""


def usual_steps(run: Run) -> int | None:
    """Return the usual steps of training from scratch; None if unknown or with teacher, dataset or warm start."""
    config = run.config
    return None if config.teacher or config.dataset or run.parent else sensible_steps(config.env)


def causes(run: Run) -> list[str]:
    """Return at most `AT_MOST` likely causes of a poor result as sentences with a remedy, the likeliest first."""
    rows = run.rows()
    found: list[str] = []
    for check in CHECKS:
        found += check(run, rows)
    return found[:AT_MOST]


def paid_for_something_else(rows: Rows) -> str:
    """Return a sentence if success fell from its highest evaluation to the last one while the return rose; else ""."""
    rows = [row for row in rows if {"eval/success_rate", "eval/std_return", "eval/episodes"} <= row.keys()]
    if not rows:
        return ""
    peak, last = max(rows, key=lambda row: float(row["eval/success_rate"])), rows[-1]
    rates = [(row["eval/success_rate"], row["eval/episodes"]) for row in (peak, last)]
    gain, error = rise(peak, last)
    if gain <= 2 * error or not success_differs(*rates):
        return ""
    returns = f"from {peak['eval/mean_return']:.3g} to {last['eval/mean_return']:.3g}"
    fall = f"from {style.percent(rates[0][0])} to {style.percent(rates[1][0])}"
    return f"The return rose {returns}, but success fell {fall}: the reward pays for something other than success."


def rise(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, float]:
    """Return the rise of the mean return between two evaluations, and its standard error."""
    errors = (row["eval/std_return"] / math.sqrt(row["eval/episodes"]) for row in (before, after))
    return after["eval/mean_return"] - before["eval/mean_return"], math.hypot(*errors)


def _needs_hindsight(run: Run, rows: Rows) -> Iterator[str]:
    from kit.envs import registry
    from kit.envs.task import Task
    from kit.trainers import algorithm

    config = run.config  # only kit's own env and algorithm: another's module may be missing here, or not trusted
    if config.algo not in ALGOS or config.env not in registry.names() or config.teacher or config.dataset:
        return
    task: Any = registry.find(config.env)
    if task.compute_reward is not Task.compute_reward and "n_sampled_goal" not in algorithm.find(config.algo).own:
        others = "SAC, TD3 and CrossQ learn them by hindsight experience replay"
        yield f"{config.algo} hardly learns goal-conditioned tasks such as this one; {others}."


def _worse_at_the_end(run: Run, rows: Rows) -> Iterator[str]:
    best = run.best()
    points, shown = series(rows, _score(rows)), _formatter(rows)
    if best is None or len(points) < 4 or best.step >= 0.75 * points[-1, 0] or paid_for_something_else(rows):
        return
    peak, last = float(points[:, 1].max()), float(points[-1, 1])
    if peak - last > 0.25 * float(np.ptp(points[:, 1])):
        yield (
            f"The best policy was that of step {best.step:,}; the later ones are worse ({shown(last)} against "
            f"{shown(peak)}). Branch from the best with a lower learning rate."
        )


def _too_short(run: Run, rows: Rows) -> Iterator[str]:
    if any(_large_updates(run, rows)):  # more of the same does not help
        return
    step, usual = run.status()["step"], usual_steps(run)
    points, shown = series(rows, _score(rows)), _formatter(rows)
    if usual and 3 * step < 2 * usual:  # `known` says how many are usual
        yield f"It trained for only {step:,} steps. Train longer."
    elif len(points) >= 4:
        middle, last = (part[:, 1].mean() for part in np.array_split(points, 4)[-2:])
        if last - middle > 0.1 * float(np.ptp(points[:, 1])) > 0:
            means = f"from {shown(middle)} in its third quarter to {shown(last)} in its last"
            yield f"The curve still rises, {means}. Train longer."


def _large_updates(run: Run, rows: Rows) -> Iterator[str]:
    kl, rate = _at_end(rows, "train/approx_kl"), _at_end(rows, "train/learning_rate")
    if kl is not None and kl > LARGE_KL:
        now = "" if rate is None else f" (now {rate:.2g})"
        size = f"{kl:.2g}" if kl < 10 else f"{kl:,.0f}"
        yield (
            f"An update changes the policy too much: its KL divergence is {size}, more than {LARGE_KL}. "
            f"Lower learning_rate{now}, or set target_kl=0.02."
        )


def _one_term_decides(run: Run, rows: Rows) -> Iterator[str]:
    prefix = "eval/reward/"
    names = {name for row in rows for name in row if name.startswith(prefix)}
    sizes = {name: abs(_at_end(rows, name) or 0.0) for name in names}
    total = sum(sizes.values())
    if len(sizes) > 1 and total and max(sizes.values()) > DOMINANT * total:
        name = max(sizes, key=lambda name: sizes[name])
        yield (
            f"One reward term decides: {name.removeprefix(prefix)} makes up {style.percent(sizes[name] / total)} of "
            "all terms. Its weight may hide the others."
        )


def _needs_noise(run: Run, rows: Rows) -> Iterator[str]:
    if run.config.teacher is not None:  # who acts in a part of the training episodes
        return
    training, evaluation = _at_end(rows, "rollout/success_rate"), _at_end(rows, "eval/success_rate")
    if training is not None and evaluation is not None and training - evaluation > 0.2:
        yield (
            f"With exploration noise {style.percent(training)} of the episodes succeed, without it "
            f"{style.percent(evaluation)}: the policy relies on the noise. Lower log_std_init or ent_coef, or "
            "train longer."
        )


def _value_function_knows_little(run: Run, rows: Rows) -> Iterator[str]:
    explained = _at_end(rows, "train/explained_variance")
    if explained is not None and explained < EXPLAINED:
        yield (
            f"The value function explains {style.percent(max(0.0, explained))} of the returns' variance. Use more "
            "envs, longer rollouts (n_steps), or observations that show what the reward depends on."
        )


def _little_noise(run: Run, rows: Rows) -> Iterator[str]:
    first, last = series(rows, "train/std")[:1, 1], _at_end(rows, "train/std")
    if len(first) and last is not None and last < 0.1 and last < first[0] / 3:
        yield (
            f"The action noise fell from {first[0]:.2g} to {last:.2g}, so little is tried. Raise ent_coef, or branch "
            "with a larger log_std_init."
        )


def _rewarded_for_something_else(run: Run, rows: Rows) -> Iterator[str]:
    if sensible_steps(run.config.env) or not _succeeds_never(rows):  # kit's own tasks do pay for success
        return
    returns, spread = series(rows, "eval/mean_return")[:, 1], _at_end(rows, "eval/std_return") or 0.0
    if len(returns) and returns[-1] - returns[0] > CLEAR_RISE * spread:
        yield (
            f"The return rose from {returns[0]:.3g} to {returns[-1]:.3g}, and no episode succeeded. Perhaps the reward "
            "pays for something else than success: watch the video, and change the reward if it is not what you mean."
        )


def _succeeds_never(rows: Rows) -> bool:
    rates = np.concatenate([series(rows, f"{kind}/success_rate")[:, 1] for kind in ("rollout", "eval")])
    return bool(len(rates)) and not rates.any()


def _never_succeeded(run: Run, rows: Rows) -> Iterator[str]:
    likelier = (_too_short, _rewarded_for_something_else)
    if _succeeds_never(rows) and not any(any(check(run, rows)) for check in likelier):
        yield (
            "No episode has succeeded, so success was never rewarded. A reward that grows towards the goal, an easier "
            "start (env_options), or demonstrations (algo BC) show it the way."
        )


def _untuned(run: Run, rows: Rows) -> Iterator[str]:
    if run.config.preset == "sb3":
        yield 'Preset "sb3" has the same defaults for all tasks. Preset "auto" is tuned for some.'


CHECKS: tuple[Callable[[Run, Rows], Iterator[str]], ...] = (
    _needs_hindsight, _worse_at_the_end, _too_short, _rewarded_for_something_else, _large_updates, _needs_noise,
    _never_succeeded, _one_term_decides, _little_noise, _value_function_knows_little, _untuned,
)  # fmt: skip
"""Checks for causes, the likeliest first."""


def _score(rows: Rows) -> str:
    """Return the name of the metric that judges a run: success if its episodes can succeed, else return."""
    return "eval/success_rate" if any("eval/success_rate" in row for row in rows) else "eval/mean_return"


def _formatter(rows: Rows) -> Callable[[float], str]:
    """Return the function that formats a value of the metric `_score(rows)`."""
    return style.percent if _score(rows) == "eval/success_rate" else "{:.3g}".format


def _at_end(rows: Rows, name: str) -> float | None:
    """Return a metric's mean over its last third; None if it has no values."""
    values = series(rows, name)[:, 1]
    return float(values[-max(1, len(values) // LAST) :].mean()) if len(values) else None
