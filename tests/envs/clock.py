"""Env and policy for tests of hidden states: the policy counts steps, the env checks the count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import torch

from kit.envs.play import HiddenState
from kit.trainers.actor import Actor
from kit.trainers.ppo import ALGORITHM, PPO
from tests.envs.slide import Slide


class Clock(Slide):
    """Env that counts wrong actions; the right action is the number of the step in the episode, from 1.

    `wrong` counts these actions, `ends` the episodes. Episodes last 2 to 5 steps; observations are zero.
    """

    episode_steps = 50
    wrong: ClassVar[int] = 0
    ends: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.model.opt.timestep = 0.01
        self.action_space = gymnasium.spaces.Box(0.0, 100.0, (1,))

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device, threads)
        self.age, self.lasts = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        super().reset(mask, generator)
        drawn = torch.randint(2, 6, (self.n,), generator=generator)
        self.age, self.lasts = self.age.masked_fill(mask, 0), torch.where(mask, drawn, self.lasts)

    def act(self, action: torch.Tensor) -> None:
        self.age = self.age + 1
        Clock.wrong += int((action[:, 0] != self.age).sum())

    def observe(self) -> torch.Tensor:
        return torch.zeros(self.n, 2)

    def terminated(self) -> torch.Tensor:
        ended = self.age == self.lasts
        Clock.ends += int(ended.sum())
        return ended

    def success(self) -> torch.Tensor:
        return torch.ones(self.n, dtype=torch.bool)

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        return torch.zeros(self.n, 1, height, width, 3, dtype=torch.uint8)


class Count(Actor):
    """Policy whose action is the number of the step, counted in its hidden state."""

    def initial_state(self, n: int) -> HiddenState:
        return (torch.zeros(n, 1),)

    def choose(self, seen: Any, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        return hidden_state[0] + 1, (hidden_state[0] + 1,)


class Counting(PPO):
    actor_class = Count


COUNTING = replace(ALGORITHM, name="Counting", trainer=Counting)
