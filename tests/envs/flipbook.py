"""Task for tests of frame stacks: the pixel values of an image identify its env and its frame."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from kit.envs import Task

SIDE = 36


class Flipbook(Task):
    """Env with uniform images: in frame k of env w, red is 10 w + k and green is the step in the episode.

    k counts over all episodes: every reset adds 1, and every step with a positive action. Episodes of env w end after
    w + 2 steps, or at the time limit of 4. `drawn` counts rendered images.
    """

    episode_steps = 4
    control_dt_s = 0.1
    keeps = ("page", "step")

    def __init__(self, frames: int = 3, alone: bool = False, side: int = SIDE) -> None:
        picture = spaces.Box(0, 255, (3, side, side), np.uint8)
        self.alone, self.side = alone, side
        self.frames = {"" if alone else "eye": frames}
        step = spaces.Box(0.0, 10.0, (1,), np.float32)
        self.observation_space = picture if alone else spaces.Dict({"eye": picture, "step": step})
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.drawn = 0

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device, threads)
        self.page = 10 * torch.arange(n, device=device) - 1
        self.step = torch.zeros(n, dtype=torch.int64, device=device)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.page += mask
        self.step.masked_fill_(mask, 0)

    def advance(self, action: torch.Tensor) -> None:
        self.page += (action[:, 0] > 0).long()
        self.step += 1

    def observe(self) -> torch.Tensor | dict[str, torch.Tensor]:
        return self.observe_first(torch.arange(self.n, device=self.device))

    def observe_first(self, worlds: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        self.drawn += len(worlds)
        red, green = self.page[worlds], self.step[worlds]
        pixel = torch.stack([red, green, torch.zeros_like(red)], dim=1).to(torch.uint8)
        eye = pixel[:, :, None, None].expand(-1, -1, self.side, self.side)
        return eye if self.alone else {"eye": eye, "step": green.unsqueeze(1).float()}

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return action[:, 0]

    def terminated(self) -> torch.Tensor:
        return self.step >= torch.arange(self.n, device=self.device) + 2
