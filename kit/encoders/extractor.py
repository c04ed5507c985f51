"""From observations with pictures to features: an eye for each camera, what they saw mixed, numbers beside it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space, spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from kit.envs.obs import COLOURS, is_image
from kit.errors import UserError


class ImageExtractor(BaseFeaturesExtractor):
    """An SB3 features extractor for pictures (C, H, W) or stacks of them (T, C, H, W), uint8 or the same numbers as
    float, 0 to 255, alone or in a Dict with numbers.

    Every camera gets an eye of its own, or with `shared` all get one; what they see becomes `features` numbers, and the
    numbers of the observation stand behind them: (B, features + numbers).
    """

    def __init__(self, observation_space: Space, features: int = 128, shared: bool = False) -> None:
        seen = _seen(observation_space)
        numbers = [name for name, space in seen.items() if not is_image(space)]
        clips = {name: clip_shape(space) for name, space in seen.items() if name not in numbers}
        self.check_space(observation_space, features, shared)
        super().__init__(observation_space, features + sum(get_flattened_obs_dim(seen[name]) for name in numbers))
        self.clips, self.numbers = clips, numbers
        names = list(clips)[:1] if shared else list(clips)
        self.eyes = nn.ModuleDict({_module_name(name): self.eye(clips[name]) for name in names})
        with torch.no_grad():
            wide = sum(self._look(name, torch.zeros(1, *shape)).shape[1] for name, shape in clips.items())
        self.features, self.wide = features, wide
        # narrow, even and bounded, as in DrQ-v2 (Yarats et al., 2021): no camera drowns the numbers
        self.mix = nn.Sequential(nn.Linear(wide, features), nn.LayerNorm(features), nn.Tanh())

    @classmethod
    def check(cls, observation_space: Space, **options: Any) -> None:
        """Raise `UserError` for an observation space, or for `options` of the constructor, that it cannot take; nothing
        is built."""
        cls.check_space(observation_space, options.get("features", 128), options.get("shared", False))

    @classmethod
    def check_space(cls, observation_space: Space, features: int, shared: bool) -> None:
        """The part of `check` that all encoders share."""
        if isinstance(features, bool) or not isinstance(features, int) or features < 1:
            raise UserError(f"features={features!r} must be a whole number of at least 1.")
        shapes = {clip_shape(space) for space in _seen(observation_space).values() if is_image(space)}
        for shape in shapes:
            cls.check_shape(shape)
        if shared and len(shapes) > 1:
            raise UserError(f"shared=True wants cameras of one shape, and these are {sorted(shapes)}.")

    @classmethod
    def check_shape(cls, shape: tuple[int, int, int, int]) -> None:
        """Raise `UserError` for clips (T, C, H, W) of a `shape` that it cannot take."""

    @abstractmethod
    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        """From float clips (B, T, C, H, W) of that `shape`, 0 to 255, to numbers (B, ...)."""

    def forward(self, observations: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
        looked = self.look(observations if isinstance(observations, dict) else {"": observations})
        return torch.cat([self.mix(looked[:, : self.wide]), looked[:, self.wide :]], dim=1)

    def look(self, entries: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What the eyes see, `wide` numbers, and the numbers behind it."""
        seen = [self._look(name, entries[name]) for name in self.clips]
        return torch.cat([*seen, *(entries[name].flatten(1).float() for name in self.numbers)], dim=1)

    def _look(self, name: str, pictures: torch.Tensor) -> torch.Tensor:
        shape = self.clips[name]
        if pictures.shape[1:] != shape[4 - (pictures.ndim - 1) :]:
            raise UserError(
                f"the clip {name!r} is {tuple(pictures.shape[1:])} and this encoder was made for {shape}; make the env "
                "with the frames, channels and size that the policy was trained on."
            )
        if pictures.dtype != torch.uint8 and not pictures.is_floating_point():
            raise UserError(f"the clip {name!r} is {pictures.dtype}; give uint8, or float with values from 0 to 255.")
        eye = self.eyes[_module_name(name)] if len(self.eyes) > 1 else next(iter(self.eyes.values()))
        clip = (pictures.unflatten(0, (-1, 1)) if pictures.ndim == 4 else pictures).float()
        # Convolutions round by the order in memory. It is the rollout's (T, B, H, W, C), wherever the images come from.
        return eye(clip.permute(1, 0, 3, 4, 2).contiguous().permute(1, 0, 4, 2, 3)).flatten(1)


PictureExtractor = ImageExtractor
"""The name until 0.2, kept for a release."""


def _seen(space: Space) -> dict[str, Space]:
    """Its entries by name."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}


def clip_shape(space: Space) -> tuple[int, int, int, int]:
    """Frames, channels, height and width of a picture's space, or a stack's."""
    shape = tuple(int(size) for size in space.shape or ())
    return shape if len(shape) == 4 else (1, *shape)  # type: ignore[return-value]


def at_least(encoder: str, shape: tuple[int, int, int, int], pixels: int) -> None:
    """Raise `UserError` where the pictures of clips of that `shape` are too small for an encoder."""
    height, width = shape[2:]
    if min(height, width) < pixels:
        raise UserError(
            f"encoder={encoder!r} needs pictures of at least {pixels}×{pixels} and this env gives {height}×{width}; "
            "enlarge them or flatten them with gymnasium.wrappers.FlattenObservation."
        )


def in_colour(encoder: str, shape: tuple[int, int, int, int]) -> None:
    """Raise `UserError` where an encoder that was made for RGB would see something else."""
    if shape[1] != COLOURS[1]:
        raise UserError(f"encoder={encoder!r} sees RGB, and this env gives {shape[1]} channels; use simple2dcnn.")


def _module_name(entry: str) -> str:
    return f"eye_{entry.replace('.', '_')}"
