"""Task for distillation: keep a dot in an image over a mark. The teacher observes both positions as numbers."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from kit.envs import Task
from kit.envs.obs import POLICY, TEACHER

PIXELS = 36


class Chase(Task):
    """Move a dot along a line to a mark.

    The policy observes a stack of two images, the teacher the positions of dot and mark.
    """

    episode_steps = 20
    control_dt_s = 0.1
    frames = MappingProxyType({"eye": 2})
    obs_groups = MappingProxyType({POLICY: ("eye",), TEACHER: ("state",)})
    groups = (POLICY,)
    keeps = ("state_",)

    def __init__(self) -> None:
        eye, state = spaces.Box(0, 255, (1, PIXELS, PIXELS), np.uint8), spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict({"eye": eye, "state": state})
        self.action_space = spaces.Box(-2, 2, (1,), np.float32)

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device, threads)
        self.state_ = torch.zeros(n, 2, device=device)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        start = torch.rand(self.n, 2, generator=generator, device=self.device) * 2 - 1
        self.state_.copy_(torch.where(mask.unsqueeze(1), start, self.state_))

    def advance(self, action: torch.Tensor) -> None:
        self.state_[:, :1].add_(0.1 * action).clamp_(-1, 1)

    def observe(self) -> dict[str, Any]:
        column = torch.arange(PIXELS, device=self.device)
        at = ((self.state_ + 1) / 2 * (PIXELS - 1)).round().unsqueeze(2)  # (n, 2, 1)
        dot, mark = ((column - at).abs() <= 1).unbind(1)  # (n, width) each
        rows = torch.arange(PIXELS, device=self.device).view(1, -1, 1)
        eye = torch.where(rows < PIXELS // 2, dot.unsqueeze(1), mark.unsqueeze(1))
        return {"eye": (255 * eye).to(torch.uint8).unsqueeze(1), "state": self.state_.clone()}

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return -(self.state_[:, 0] - self.state_[:, 1]).abs()

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=torch.bool, device=self.device)

    def success(self) -> torch.Tensor:
        return (self.state_[:, 0] - self.state_[:, 1]).abs() < 0.1

    def scripted(self) -> torch.Tensor:
        return (10 * (self.state_[:, 1:] - self.state_[:, :1])).clamp(-2, 2)


class ChaseState(Chase):
    """`Chase` in which the policy observes what the teacher observes, two numbers."""

    frames = MappingProxyType({})
    obs_groups = MappingProxyType({POLICY: ("state",)})
