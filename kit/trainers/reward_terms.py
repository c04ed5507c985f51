"""Means of a reward's terms over the latest rollout, for the training curves."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from kit.envs.contract import TERM


class Logger(Protocol):
    def record(self, key: str, value: Any) -> None: ...


class RewardTerms:
    """Sums the metrics "reward/NAME" of an env's `info`. On a GPU, nothing waits until `record`."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self.clear()

    def clear(self) -> None:
        """Forget the last rollout."""
        self._sum: torch.Tensor | None = None
        self._steps = 0

    def add(self, info: dict[str, Any]) -> None:
        """Add the terms of one step, each (n,)."""
        names = [name for name in info if name.startswith(TERM)]
        if names:
            terms = torch.stack([info[name].float() for name in names])  # (terms, n); a copy: tasks return views
            if self._sum is None or names != self._names:
                self._sum, self._names, self._steps = torch.zeros_like(terms), names, 0
            self._sum += terms
            self._steps += 1

    def record(self, logger: Logger) -> None:
        """Log each term's mean per step as rollout/reward/NAME, unless diverged physics has made it NaN or infinite."""
        if self._sum is not None:
            for name, total in zip(self._names, self._sum.mean(1).tolist(), strict=True):
                if math.isfinite(total):
                    logger.record(f"rollout/{name}", total / self._steps)
