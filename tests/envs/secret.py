"""Task for tests of observation groups: the reward depends on a secret number that the policy does not observe."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from kit.envs import Field, Task
from kit.envs.obs import Obs
from kit.envs.randomize import ObservationNoise
from kit.envs.task_info import TaskInfo, numbers

SIDE = 36
SEEN = (Field("steps of the episode", 1), Field("the latest action", 1))
HIDDEN = (Field("the secret", 1), Field("the latest action times the secret", 1), Field("a constant", 1))


class Secret(Task):
    """The reward is the action times the secret. The secret of env i in its episode k (from 0) is i + k.

    The policy observes "seen" (2,), the critic "seen" and "hidden" (3,), the teacher "hidden". With `eye`, the policy
    also observes "eye", a stack of two images that show the step. With `nested`, "hidden" is a Dict of two entries.
    """

    name = "Secret"
    episode_steps = 4
    control_dt_s = 0.1
    keeps = ("secret", "steps", "action")
    random_terms = {"noise": ObservationNoise(low=-1.0, high=1.0)}  # noqa: RUF012
    task_info = TaskInfo(sees={"seen": SEEN, "hidden": HIDDEN})

    def __init__(self, eye: bool = False, nested: bool = False) -> None:
        self.nested = nested
        hidden: spaces.Space = numbers(HIDDEN)
        if nested:
            hidden = spaces.Dict({"secret": numbers(HIDDEN[:1]), "rest": numbers(HIDDEN[1:])})
        entries = {"hidden": hidden, "seen": numbers(SEEN)}
        images = {"eye": spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)} if eye else {}
        self.frames = dict.fromkeys(images, 2)
        self.observation_space = spaces.Dict({**entries, **images})
        self.obs_groups = {"policy": (*images, "seen"), "critic": ("seen", "hidden"), "teacher": ("hidden",)}
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.computed = 0
        """Number of times that "hidden" was computed."""

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device, threads)
        self.secret = torch.arange(n, dtype=torch.float32, device=device) - 1
        self.steps, self.action = (torch.zeros(n, device=device) for _ in range(2))

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.secret += mask
        self.steps.masked_fill_(mask, 0.0), self.action.masked_fill_(mask, 0.0)

    def advance(self, action: torch.Tensor) -> None:
        self.action.copy_(action[:, 0])
        self.steps += 1

    def observe(self) -> Obs:
        obs: dict[str, Obs] = {"seen": torch.stack([self.steps, self.action], 1)}
        if "eye" in self.delivered:
            pixels = (50 * self.steps).to(torch.uint8)
            obs["eye"] = pixels[:, None, None, None].expand(-1, 3, SIDE, SIDE)
        if "hidden" in self.delivered:
            self.computed += 1
            rest = torch.stack([self.action * self.secret, torch.ones_like(self.secret)], 1)
            secret = self.secret.unsqueeze(1)
            obs["hidden"] = {"secret": secret.clone(), "rest": rest} if self.nested else torch.cat([secret, rest], 1)
        return obs

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return action[:, 0] * self.secret

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=torch.bool, device=self.device)
