"""DishwashingVideo: the dishwashing task with video clips as observations."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch

from kit.envs.obs import CRITIC, POLICY, TEACHER, Obs, tree_map
from kit.errors import check_whole
from kit.tasks.dishwashing.task import Dishwashing

EYE = "eye"
FRAMES = 8
"""Frames per clip: one per step, 0.8 s in total."""
MIN_SIZE = 16
"""Smallest width and height of the images, pixels."""


class DishwashingVideo(Dishwashing):
    """`Dishwashing` from video: the policy sees only clips (8, 3, 64, 64) of the plate, not the contact force.

    A clip has one frame per step; the newest frame is the last. The group "teacher" sees "state", the observation of
    the policy of `Dishwashing`. The group "critic" sees "state" and "privileged". `size`: width and height of the
    images, pixels.
    """

    name = "DishwashingVideo"
    train_steps = 1_000_000
    frames = MappingProxyType({"clip": FRAMES})
    obs_groups = MappingProxyType({
        POLICY: ("clip",), CRITIC: ("state", "privileged"), TEACHER: ("state",),
    })  # fmt: skip

    def __init__(self, size: int = 64, **options: Any) -> None:
        super().__init__(**options)
        check_whole("env_options size", size, MIN_SIZE)
        self.size = size
        clip = gymnasium.spaces.Box(0, 255, (3, size, size), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({**self.observation_space, "clip": clip})  # type: ignore[dict-item]

    def observe(self) -> Obs:
        return {**self._vectors(), "clip": self._frame(None)}

    def observe_first(self, env_ids: torch.Tensor) -> Obs:
        first: dict[str, Obs] = tree_map(lambda rows: rows.index_select(0, env_ids), self._vectors())
        return {**first, "clip": self._frame(env_ids)}

    def _frame(self, env_ids: torch.Tensor | None) -> torch.Tensor:
        """Render one frame (k, 3, size, size) of the envs `env_ids` (k,); None means all envs."""
        images = self.sim.render((EYE,), self.size, self.size, worlds=env_ids, **self.colours())
        return images[:, 0].permute(0, 3, 1, 2).contiguous()
