"""Gymnasium env with selectable observation and action spaces and random observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PICTURE = {"low": 0, "high": 255, "dtype": np.uint8}
OBSERVATIONS: dict[str, spaces.Space] = {
    "numbers": spaces.Box(-1, 1, (3,)),
    "doubles": spaces.Box(-1, 1, (3,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "integers": spaces.Box(0, 9, (3,), np.int32),
    "discrete": spaces.Discrete(5),
    "multi discrete": spaces.MultiDiscrete([3, 4]),
    "multi binary": spaces.MultiBinary(4),
    "picture": spaces.Box(shape=(3, 36, 40), **PICTURE),
    "picture, channels last": spaces.Box(shape=(36, 40, 3), **PICTURE),
    "dict": spaces.Dict({"eye": spaces.Box(shape=(36, 36, 3), **PICTURE), "joints": spaces.Box(-1, 1, (3,))}),
    "nested": spaces.Dict({"at": spaces.Dict({"room": spaces.Discrete(3), "place": spaces.Box(-1, 1, (2,))})}),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
}
ACTIONS: dict[str, spaces.Space] = {
    "box": spaces.Box(-2, 3, (2,)),
    "discrete": spaces.Discrete(3),
    "multi discrete": spaces.MultiDiscrete([3, 2]),
    "multi binary": spaces.MultiBinary(3),
}


class Anything(gymnasium.Env):
    """Env with random observations, a reward of 1 per step, and episodes of seven steps."""

    def __init__(self, observation: str = "numbers", action: str = "box") -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 7, False, {}
