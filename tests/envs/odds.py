"""A Gymnasium env whose success rate is known: 40 % of its episodes, which are of different lengths."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SUCCEEDS = (False, True, False, True, False)
LENGTHS = 2, 5, 3, 7, 4


class Odds(gymnasium.Env):
    """Whatever is done, the episodes of an env take turns through `SUCCEEDS`, from the place that its seed says.

    `says` is when `is_success` is among the infos: "at the end", "at each step" (before the end it is the opposite),
    "of successes" alone, at their end, or "never".
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, says: str = "at the end") -> None:
        self.says, self.episode = says, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode = (self.episode + 1 if seed is None else seed) % len(SUCCEEDS)
        self.left = LENGTHS[self.episode]
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        ended, succeeds = self.left == 0, SUCCEEDS[self.episode]
        told = {
            "at the end": ended,
            "at each step": True,
            "of successes": ended and succeeds,
            "never": False,
        }[self.says]
        info = {"is_success": np.bool_(succeeds == ended)} if told else {}
        return np.zeros(1, np.float32), 0.0, ended, False, info
