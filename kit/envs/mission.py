"""Mission: a team of four takes a zone that three others guard."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from kit.envs.mission_rules import ATTACKERS, COMMAND_HZ, COMMANDS, DEFENDERS, OBSTACLES, TERMS, Rules
from kit.envs.task import Task


class Mission(Task):
    """Two ground and two air units hold a zone of 15 m together for 20 s, in an arena of 200 × 200 m with obstacles, in
    which three defenders patrol, chase and tag. `Rules` has every constant.

    The team is commanded four times a second for at most 300 s: each unit stands (0) or moves in one of eight
    directions (1 east, 2 north-east, ... 8 south-east); motion is at 20 Hz. Without MuJoCo; the worlds are rows of
    tensors that Warp kernels change in place.
    """

    name = "Mission"
    episode_steps = COMMANDS
    control_dt_s = 1 / COMMAND_HZ
    staggered = True
    film_speed = 5.0
    score = "win_rate"
    cameras = ("map",)
    keeps = ("attackers", "defenders", "minds", "field", "discs", "near", "obs")

    def __init__(self, **options: Any) -> None:
        self.rules = Rules.of(options)
        self.action_space = gymnasium.spaces.MultiDiscrete([9] * ATTACKERS)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (42,), np.float32)

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        from kit.envs import mission_kernels as kernels  # here: Warp takes a second to load
        from kit.sim.kernels import beside_torch, compiling, numbered, wp

        super().build(n, numbered(device), threads)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(n, *shape, dtype=dtype, device=self.device)

        self.attackers, self.defenders, self.minds = zeros(ATTACKERS, 4), zeros(DEFENDERS, 4), zeros(DEFENDERS, 4)
        self.field, self.discs, self.near, self.obs = zeros(2, 4), zeros(OBSTACLES, 4), zeros(5, 4), zeros(42)
        self.terms = zeros(len(TERMS))
        self._attack, self._defend = zeros(ATTACKERS, dtype=torch.int64), zeros(DEFENDERS, dtype=torch.int64)
        self._defend.fill_(-1)
        self._mask, self._seeds = zeros(dtype=torch.bool), zeros(dtype=torch.int64)
        self._beside = beside_torch
        self._pictures: dict[tuple[int, int], Any] = {}
        with beside_torch(self.device), compiling("the game"):
            worlds, constants = kernels.Worlds(), kernels.constants(self.rules)
            for name in ("attackers", "defenders", "minds", "field", "discs", "near", "terms"):
                setattr(worlds, name, wp.from_torch(getattr(self, name), dtype=wp.vec4))
            worlds.obs = wp.from_torch(self.obs)
            commands = [wp.from_torch(x) for x in (self._attack, self._defend)]
            drawn = [wp.from_torch(x) for x in (self._mask, self._seeds)]
            self._step = wp.launch(kernels.step, n, [constants, worlds, *commands], record_cmd=True)
            self._reset = wp.launch(kernels.reset, n, [constants, worlds, *drawn], record_cmd=True)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self._mask.copy_(mask)
        torch.randint(2**31, (self.n,), generator=generator, out=self._seeds)
        with self._beside(self.device):
            self._reset.launch()

    def advance(self, action: torch.Tensor) -> None:
        self._attack.copy_(action)
        with self._beside(self.device):
            self._step.launch()

    def observe(self) -> torch.Tensor:
        return self.obs.clone()

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self.terms.sum(1)

    def terminated(self) -> torch.Tensor:
        return self.terms[:, 2] > 0

    def success(self) -> torch.Tensor:
        return self.terminated()

    def info(self) -> dict[str, torch.Tensor]:
        paid = {f"reward/{name}": column for name, column in zip(TERMS, self.terms.clone().unbind(1), strict=True)}
        return {"win_rate": self.terminated(), **paid}

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        from kit.envs.mission_picture import Picture

        if (height, width) not in self._pictures:
            self._pictures[height, width] = Picture(self, height, width)
        picture = self._pictures[height, width].draw()
        return torch.stack([picture] * len(cameras), 1)

    @staticmethod
    def straight(obs: torch.Tensor) -> torch.Tensor:
        """A team without a plan: commands (n, 4) that lead each unit straight to the zone, for what is seen (n, 42)."""
        to_zone = -obs[:, :12].view(-1, ATTACKERS, 3)[:, :, :2]
        way = (torch.atan2(to_zone[..., 1], to_zone[..., 0]) * (4 / torch.pi)).round().long() % 8 + 1
        return torch.where(to_zone.norm(dim=2) < 0.05, 0, way)
