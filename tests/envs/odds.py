"""Gymnasium env with a known success rate, 40 %, and episodes of different lengths."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SUCCEEDS = (False, True, False, True, False)
LENGTHS = 2, 5, 3, 7, 4


class Odds(gymnasium.Env):
    """Env whose episodes succeed as listed in `SUCCEEDS`, whatever the actions; the seed is the index of the first.

    `says` selects the steps whose info has `is_success`: "at the end"; "at each step" (before the end it is the
    opposite of the result); "of successes", only at the end of successful episodes; "never".
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
