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
COLUMNS = ("step", *(name for _, *names, _ in MEASURES for name in names))


MEANINGS = {
    "Success rate": "Share of episodes that ended in success. train: recent training episodes, with exploration "
    "noise; eval: evaluations without noise.",
    "Mean return": "Sum of the rewards of an episode, averaged over episodes. train: recent training episodes, with "
    "exploration noise; eval: evaluations without noise.",
}
"""Title of a curve -> its tooltip."""


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
            cls(title, _smooth(series(rows, training)), series(rows, evaluation), percent, _last(rows, teacher))
            for title, training, evaluation, teacher, percent in MEASURES
        )
        has_success = len(success.training) or len(success.evaluation) or not rows
        return [success, mean_return] if has_success else [mean_return]


def series(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """Return (k, 2) pairs (step, value) of a metric; values that are not finite are left out."""
    points = np.array([(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)], dtype=float)
    points = points.reshape(-1, 2)
    return points[np.isfinite(points[:, 1])]


def _last(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the last value of a metric, None if it has none."""
    values = series(rows, name)[:, 1]
    return float(values[-1]) if len(values) else None


def _smooth(series: np.ndarray) -> np.ndarray:
    """Replace each value by the mean of itself and up to SMOOTH - 1 values before it."""
    sums = np.cumsum(np.concatenate([[0.0], series[:, 1]]))
    stop = np.arange(1, len(sums))
    start = np.maximum(0, stop - SMOOTH)
    return np.column_stack([series[:, 0], (sums[stop] - sums[start]) / (stop - start)])
