"""A task and a Gymnasium env as a user would write them in a module next to the notebook."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from kit.envs import Task

PIXELS = 36


class Corridor(Task):
    """Task without physics: walk to the end of a corridor, one cell to the left or right per step.

    Observations are an image, channels last, and a nested dict of numbers.
    """

    episode_steps = 12
    control_dt_s = 0.1
    cameras = ("map",)
    keeps = ("place",)

    def __init__(self, length: int = 5) -> None:
        if not 2 <= length <= PIXELS:
            raise TypeError(f"length={length} must be between 2 and {PIXELS}")
        self.length = length
        at = spaces.Dict({"place": spaces.Discrete(length), "ahead": spaces.Box(0.0, 1.0, (1,), np.float32)})
        picture = spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)
        self.observation_space = spaces.Dict({"at": at, "picture": picture})
        self.action_space = spaces.Discrete(2)

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device, threads)
        self.place = torch.zeros(n, dtype=torch.int64, device=device)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        start = (torch.rand(self.n, generator=generator, device=self.device) * (self.length - 1)).long()
        self.place.copy_(torch.where(mask, start, self.place))

    def advance(self, action: torch.Tensor) -> None:
        self.place.add_(2 * action - 1).clamp_(0, self.length - 1)

    def observe(self) -> dict[str, Any]:
        ahead = 1 - self.place / (self.length - 1)
        return {"at": {"place": self.place.clone(), "ahead": ahead.unsqueeze(1)}, "picture": self._picture()}

    def _picture(self) -> torch.Tensor:
        column = torch.arange(PIXELS, device=self.device) == self.place.unsqueeze(1)  # (n, width)
        return (255 * column).to(torch.uint8)[:, None, :, None].expand(-1, PIXELS, -1, 3)

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self.terminated().float() - 0.05

    def terminated(self) -> torch.Tensor:
        return self.place == self.length - 1

    def success(self) -> torch.Tensor:
        return self.terminated()

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        rows, columns = (torch.arange(size) * PIXELS // size for size in (height, width))
        return self._picture()[:, rows][:, :, columns].unsqueeze(1)


class Walk(gymnasium.Env):
    """The corridor as a Gymnasium env; the observation is one integer."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space, self.action_space = spaces.Discrete(length), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place, self.steps = min(max(self.place + 2 * int(action) - 1, 0), self.length - 1), self.steps + 1
        there = self.place == self.length - 1
        return self.place, float(there), there, self.steps >= 20, {"is_success": there}


gymnasium.register("Walk-v0", "tests.envs.corridor:Walk")
