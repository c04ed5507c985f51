"""Means of a reward's terms in a few steps of the latest rollout, for the training curves."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from kit.envs.contract import TERM

SAMPLES = 16
"""Maximum number of steps of a rollout whose terms are read. Reading every step of a task with 16 terms would take 2 %
of its time; these are enough to see which terms grow."""


class Logger(Protocol):
    def record(self, key: str, value: Any) -> None: ...


class RewardTerms:
    """Collects the metrics "reward/NAME" of an env's `info`. On a GPU, nothing waits until `record`."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._steps = 0

    def clear(self) -> None:
        """Forget the last rollout."""
        self._sums, self._steps = {}, 0

    def add(self, info: dict[str, Any]) -> None:
        """Add the terms of one step, each (n,): their means over the envs."""
        for name, value in info.items():
            if name.startswith(TERM):
                self._sums[name] = self._sums.get(name, 0.0) + value.float().mean()
        self._steps += 1

    def record(self, logger: Logger) -> None:
        """Log each term's mean per step as rollout/reward/NAME, unless diverged physics has made it NaN or infinite."""
        if self._sums:
            for name, total in zip(self._sums, torch.stack([*self._sums.values()]).tolist(), strict=True):
                if math.isfinite(total):
                    logger.record(f"rollout/{name}", total / self._steps)
