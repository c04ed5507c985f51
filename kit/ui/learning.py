"""How a run learns: the series that live charts and figures show, taken from its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SMOOTH = 5
"""Updates in the running mean of what training itself sees, which is noisy; evaluations are shown as they are."""


@dataclass(frozen=True)
class Series:
    """Values over environment steps."""

    steps: np.ndarray
    values: np.ndarray

    def __bool__(self) -> bool:
        return len(self.steps) > 0


@dataclass(frozen=True)
class Learning:
    """The four series of a run; any may be empty."""

    success: Series
    """Share of training episodes that succeed, with exploration noise, smoothed."""
    eval_success: Series
    """The same in evaluations, without noise."""
    returns: Series
    eval_returns: Series

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> Learning:
        """From the rows of metrics.jsonl."""
        return cls(
            _smooth(_series(rows, "rollout/success_rate")),
            _series(rows, "eval/success_rate"),
            _smooth(_series(rows, "rollout/ep_rew_mean")),
            _series(rows, "eval/mean_return"),
        )

    @property
    def has_success(self) -> bool:
        return bool(self.success) or bool(self.eval_success)


def _series(rows: Sequence[dict[str, Any]], name: str) -> Series:
    found = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
    pairs = np.array([pair for pair in found if np.isfinite(pair[1])], dtype=float).reshape(-1, 2)
    return Series(pairs[:, 0], pairs[:, 1])


def _smooth(series: Series) -> Series:
    """The mean of each value and up to SMOOTH - 1 before it."""
    sums = np.cumsum(np.concatenate([[0.0], series.values]))
    stop = np.arange(1, len(sums))
    start = np.maximum(0, stop - SMOOTH)
    return Series(series.steps, (sums[stop] - sums[start]) / np.maximum(1, stop - start))
