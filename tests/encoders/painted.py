"""Gymnasium env with image observations: channels first or last, grey, in a dict, as a frame stack."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

SIDE = 40


class Painted(gymnasium.Env):
    """Image with a bright left or right half; the sign of the action must say which. Episodes last one step."""

    def __init__(self, layout: str = "last") -> None:
        self.layout = layout
        shape = {"first": (3, SIDE, SIDE), "grey": (SIDE, SIDE, 1)}.get(layout, (SIDE, SIDE, 3))
        picture = spaces.Box(0, 255, shape, np.uint8)
        both = {"eye": picture, "numbers": spaces.Box(-1, 1, (2,), np.float32)}
        self.observation_space = spaces.Dict(both) if layout == "dict" else picture
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        return self._see(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = (action[0] > 0) == self.side
        return self._see(), float(right), True, False, {}

    def _see(self) -> Any:
        picture = np.zeros((SIDE, SIDE, 1 if self.layout == "grey" else 3), np.uint8)
        picture[:, 20 * self.side : 20 * self.side + 20] = 255
        if self.layout == "first":
            return picture.transpose(2, 0, 1)
        return {"eye": picture, "numbers": np.zeros(2, np.float32)} if self.layout == "dict" else picture


def stacked(layout: str = "last", render_mode: str | None = None) -> gymnasium.Env:
    return FrameStackObservation(Painted(layout), 3)


gymnasium.register("PaintedStack-v0", "tests.encoders.painted:stacked", max_episode_steps=5)
