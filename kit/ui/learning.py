"""How a run learns: what live charts and figures show of its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SMOOTH = 5
"""Updates in the running mean of what training itself sees, which is noisy; evaluations are shown as they are."""


MEASURES = (
    ("Success rate", "rollout/success_rate", "eval/success_rate", True),
    ("Mean return", "rollout/ep_rew_mean", "eval/mean_return", False),
)
"""Title, what training and what evaluations saw of it, whether it is a share."""
COLUMNS = ("step", *(name for _, *names, _ in MEASURES for name in names))


@dataclass(frozen=True)
class Curve:
    """One measure of success over environment steps: what training saw, with exploration noise and smoothed, and what
    evaluations saw, without. Each is of shape (k, 2), steps and values; k may be 0."""

    title: str
    training: np.ndarray
    evaluation: np.ndarray
    percent: bool = False
    """Whether values are shares, from 0 to 1."""

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> list[Curve]:
        """From the rows of metrics.jsonl: the success rate, where the task has one, and the mean return."""
        success, returned = (
            cls(title, _smooth(series(rows, trained)), series(rows, evaluated), percent)
            for title, trained, evaluated, percent in MEASURES
        )
        return [success, returned] if len(success.training) or len(success.evaluation) or not rows else [returned]


def series(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    found = np.array([(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)], dtype=float)
    found = found.reshape(-1, 2)
    return found[np.isfinite(found[:, 1])]


def _smooth(series: np.ndarray) -> np.ndarray:
    """The mean of each value and up to SMOOTH - 1 before it."""
    sums = np.cumsum(np.concatenate([[0.0], series[:, 1]]))
    stop = np.arange(1, len(sums))
    start = np.maximum(0, stop - SMOOTH)
    return np.column_stack([series[:, 0], (sums[stop] - sums[start]) / (stop - start)])
