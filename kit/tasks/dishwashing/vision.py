"""Dishwashing seen by a camera: dirt can be seen, not read."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch

from kit.envs.obs import CRITIC, POLICY, TEACHER, Obs, tree_map
from kit.errors import UserError
from kit.tasks.dishwashing.task import Dishwashing

EYE = "eye"
FRAMES = 8
"""0.8 seconds."""
LEAST_PIXELS = 16


class DishwashingVideo(Dishwashing):
    """`Dishwashing` for a policy that sees clips (8, 3, 64, 64) of the plate, a frame for each step, newest last, and
    nothing else: not the force either. A teacher sees "state", which is what `Dishwashing` gives its policy; a critic
    that, and what cannot be seen.

    `size` is the images' side in pixels."""

    name = "DishwashingVideo"
    train_steps = 1_000_000
    frames = MappingProxyType({"clip": FRAMES})
    obs_groups = MappingProxyType({
        POLICY: ("clip",), CRITIC: ("state", "privileged"), TEACHER: ("state",),
    })  # fmt: skip

    def __init__(self, size: int = 64, **options: Any) -> None:
        super().__init__(**options)
        if isinstance(size, bool) or not isinstance(size, int) or size < LEAST_PIXELS:
            raise UserError(f"env_options size={size!r} must be a whole number of at least {LEAST_PIXELS} pixels.")
        self.size = size
        clip = gymnasium.spaces.Box(0, 255, (3, size, size), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({**self.observation_space, "clip": clip})  # type: ignore[dict-item]

    def observe(self) -> Obs:
        return {**self._numbers(), "clip": self._look(None)}

    def observe_first(self, worlds: torch.Tensor) -> Obs:
        first: dict[str, Obs] = tree_map(lambda rows: rows.index_select(0, worlds), self._numbers())
        return {**first, "clip": self._look(worlds)}

    def _look(self, worlds: torch.Tensor | None) -> torch.Tensor:
        pictures = self.sim.render((EYE,), self.size, self.size, worlds=worlds, poses=self.colours())
        return pictures[:, 0].permute(0, 3, 1, 2).contiguous()
