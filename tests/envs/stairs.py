"""Task with a curriculum: climb as many stairs as the stage asks for, one per step with action 1."""

from __future__ import annotations

import torch
from gymnasium import spaces

from kit.envs import Field, Task, numbers
from kit.envs.curriculum import Curriculum


class Stairs(Task):
    """Climb 1, 2 or 4 stairs in at most 5 steps; the observation is the number of stairs that are left."""

    episode_steps, control_dt_s, keeps = 5, 0.1, ("left",)
    observation_space, action_space = numbers([Field("stairs left", 1)]), spaces.Discrete(2)
    curriculum = Curriculum(stages=3, at_least=0.5, episodes=4)

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device, threads)
        self.left = torch.zeros(n, 1, device=device)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.left.copy_(torch.where(mask.unsqueeze(1), 2.0**self.stage, self.left))

    def advance(self, action: torch.Tensor) -> None:
        self.left -= action.unsqueeze(1)

    def observe(self) -> torch.Tensor:
        return self.left.clone()

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return action.float()

    def terminated(self) -> torch.Tensor:
        return self.left[:, 0] <= 0

    success = terminated


class Unmeasured(Stairs):
    """Its curriculum measures something that the task does not report."""

    curriculum = Curriculum(measure="height")


class Chosen(Stairs):
    """Its constructor sets the curriculum."""

    curriculum = None

    def __init__(self) -> None:
        self.curriculum = Stairs.curriculum
