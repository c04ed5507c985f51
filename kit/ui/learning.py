"""Learning curves of a run: success rate and mean return over steps, as arrays for charts and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SMOOTH = 5
"""Number of values in the running mean of the training curve; the evaluation curve is not smoothed."""


MEASURES = (
    ("Success rate", "rollout/success_rate", "eval/success_rate", "teacher/success_rate", True),
    ("Mean return", "rollout/ep_rew_mean", "eval/mean_return", "teacher/mean_return", False),
)
"""Title; metrics of training, of evaluation and of the teacher; whether it is a rate from 0 to 1."""
TERMS, TRAINING_TERMS = "Reward terms", "Reward terms in training"
PREFIXES = {TERMS: "eval/reward/", TRAINING_TERMS: "rollout/reward/"}
"""Title of a chart of reward terms -> the prefix of their metrics."""
LENGTH = "rollout/ep_len_mean"
COLUMNS = ("step", LENGTH, "rollout/stage", *PREFIXES.values(), *(name for _, *names, _ in MEASURES for name in names))


MEANINGS = {
    "Success rate": "Share of episodes that ended in success. training: recent training episodes, with exploration "
    "noise; evaluation: separate episodes without noise.",
    "Mean return": "Sum of the rewards of an episode, averaged over episodes. training: recent training episodes, with "
    "exploration noise; evaluation: separate episodes without noise.",
    TERMS: "Sum of each reward term over an episode, averaged over the episodes of an evaluation.",
    TRAINING_TERMS: "Sum of each reward term over a training episode, with exploration noise: its mean over the "
    "steps of the latest rollout, times the mean number of steps of recent episodes.",
    LENGTH: "Mean number of steps of recent training episodes.",
    "rollout/ep_rew_mean": "Mean return of recent training episodes, with exploration noise.",
    "rollout/stage": "Stage of the task's curriculum, from 0; evaluations always use the last one.",
    "rollout/success_rate": "Share of recent training episodes that ended in success.",
    "eval/mean_return": "Mean return of the evaluation's episodes, without exploration noise.",
    "eval/std_return": "Standard deviation of the return over the evaluation's episodes.",
    "eval/success_rate": "Share of the evaluation's episodes that ended in success.",
    "eval/mean_length": "Mean number of steps of the evaluation's episodes.",
    "train/approx_kl": "KL divergence of an update: how much it changed the policy. Often 0.003 to 0.03; more is a "
    "sign of too large steps (lower the learning rate, or set target_kl).",
    "train/clip_fraction": "Share of samples whose change PPO clipped. Often 0.05 to 0.3.",
    "train/entropy_loss": "Minus the mean entropy of the policy: it rises while the actions become less random.",
    "train/explained_variance": "How well the value function predicts returns: 1 is perfect, 0 is no better than a "
    "constant.",
    "train/value_loss": "Mean squared error of the value function. It grows with the size of the returns.",
    "train/policy_gradient_loss": "PPO's loss of the policy; its size says little.",
    "train/std": "Standard deviation of the action noise, in units of the action.",
    "train/ent_coef": "SAC's weight of the entropy, learnt so that the entropy stays at its target.",
    "train/actor_loss": "Minus the mean value of the policy's actions, as the critic estimates it.",
    "train/critic_loss": "Mean squared error of the critic against its target.",
    "train/learning_rate": "Learning rate of the last update.",
    "train/n_updates": "Number of epochs (PPO), or of gradient steps, so far.",
    "time/fps": "Environment steps per second since the session began.",
}
"""Title of a curve, or name of a metric -> its tooltip."""


@dataclass(frozen=True)
class Curve:
    """One metric over environment steps. `training` and `evaluation` are (k, 2) pairs (step, value), k >= 0."""

    title: str
    training: np.ndarray
    """From training episodes, with exploration noise; smoothed."""
    evaluation: np.ndarray
    """From evaluations, without exploration noise."""
    percent: bool = False
    """Whether values are rates from 0 to 1."""
    teacher: float | None = None
    """The teacher's value in the same episodes as the evaluations; None without a teacher."""

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> list[Curve]:
        """Return curves from `rows` of metrics.jsonl: success rate (if the task has one) and mean return."""
        success, mean_return = (
            cls(title, smoothed(series(rows, training)), series(rows, evaluation), percent, _last(rows, teacher))
            for title, training, evaluation, teacher, percent in MEASURES
        )
        has_success = len(success.training) or len(success.evaluation) or not rows
        return [success, mean_return] if has_success else [mean_return]


def series(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """Return (k, 2) pairs (step, value) of a metric; values that are not finite are left out."""
    points = np.array([(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)], dtype=float)
    points = points.reshape(-1, 2)
    return points[np.isfinite(points[:, 1])]


def reward_terms(rows: Sequence[dict[str, Any]], title: str) -> dict[str, np.ndarray]:
    """Return reward term -> (k, 2) pairs (step, sum over an episode), the largest mean size first.

    `title`: `TERMS`, those of evaluations, or `TRAINING_TERMS`.
    """
    prefix = PREFIXES[title]
    if title == TRAINING_TERMS:
        rows = [_per_episode(row, prefix) for row in rows if isinstance(row.get(LENGTH), int | float)]
    names = sorted({name for row in rows for name in row if name.startswith(prefix)})
    terms = {name.removeprefix(prefix): points for name in names if len(points := series(rows, name))}
    return dict(sorted(terms.items(), key=lambda item: -float(np.abs(item[1][:, 1]).mean())))


def _per_episode(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the metrics of `row` that begin with `prefix`, means per step, as sums over an episode."""
    return {"step": row["step"]} | {name: x * row[LENGTH] for name, x in row.items() if name.startswith(prefix)}


def _last(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the last value of a metric, None if it has none."""
    values = series(rows, name)[:, 1]
    return float(values[-1]) if len(values) else None


def smoothed(series: np.ndarray, count: int = SMOOTH) -> np.ndarray:
    """Replace each value of the (k, 2) pairs by the mean of itself and up to `count` - 1 values before it."""
    if not len(series):
        return series
    steps, values = series.T
    sums = np.convolve(values, np.ones(count))[: len(values)]  # a cumsum would be imprecise after a large value
    return np.column_stack([steps, sums / np.minimum(np.arange(1, len(values) + 1), count)])
