"""Base class of image encoders: one network per camera, a mixing layer, and vector observations appended."""

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
from kit.errors import UserError, check_whole


class ImageExtractor(BaseFeaturesExtractor):
    """SB3 features extractor for images or clips, alone or in a Dict with vectors.

    Images (C, H, W) and clips (T, C, H, W) are uint8 or float, 0 to 255. Each camera has its own network (its "eye");
    with `shared` all cameras use one network. A linear layer maps the outputs of all cameras to `features` numbers. The
    vector entries are appended to them. The output is (B, features + length of all vector entries).
    """

    name = "module:Class"
    least_pixels = 1
    """Smallest side of an image."""
    rgb_only = False

    def __init__(self, observation_space: Space, features: int = 128, shared: bool = False) -> None:
        entries = _entries(observation_space)
        vectors = [name for name, space in entries.items() if not is_image(space)]
        clips = {name: clip_shape(space) for name, space in entries.items() if name not in vectors}
        self.check_space(observation_space, features, shared)
        super().__init__(observation_space, features + sum(get_flattened_obs_dim(entries[name]) for name in vectors))
        self.clips, self.vectors = clips, vectors
        names = list(clips)[:1] if shared else list(clips)
        self.eyes = nn.ModuleDict({_module_name(name): self.eye(clips[name]) for name in names})
        with torch.no_grad():
            width = sum(self._look(name, torch.zeros(1, *shape)).shape[1] for name, shape in clips.items())
        self.features, self.image_width = features, width
        # few, normalised and bounded features, as in DrQ-v2 (Yarats et al., 2021), so that they do not outweigh vectors
        self.mix = nn.Sequential(nn.Linear(width, features), nn.LayerNorm(features), nn.Tanh())

    @classmethod
    def check(cls, observation_space: Space, **options: Any) -> None:
        """Raise `UserError` if the constructor would not accept this observation space or these `options`."""
        cls.check_space(observation_space, options.get("features", 128), options.get("shared", False))

    @classmethod
    def check_space(cls, observation_space: Space, features: int, shared: bool) -> None:
        """Check the settings that all image encoders have: `features`, `shared`, image shapes. Raises `UserError`."""
        check_whole("features", features, 1)
        shapes = {clip_shape(space) for space in _entries(observation_space).values() if is_image(space)}
        for shape in shapes:
            cls.check_shape(shape)
        if shared and len(shapes) > 1:
            raise UserError(f"shared=True needs cameras of one shape, and these are {sorted(shapes)}.")

    @classmethod
    def check_shape(cls, shape: tuple[int, int, int, int]) -> None:
        """Raise `UserError` for an unsupported clip `shape` (T, C, H, W)."""
        at_least(cls.name, shape, cls.least_pixels)
        if cls.rgb_only and shape[1] != COLOURS[1]:
            raise UserError(f"encoder={cls.name!r} needs RGB, and this env gives {shape[1]} channels; use simple2dcnn.")

    @abstractmethod
    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        """Build the network of one camera, for clips of `shape` (T, C, H, W).

        It maps float clips (B, T, C, H, W), 0 to 255, to features (B, ...).
        """

    def choose_frames(self, clip: torch.Tensor) -> torch.Tensor:
        """Return the frames of `clip` (B, T, C, H, W) that the networks read; by default all."""
        return clip

    def forward(self, observations: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
        entries = observations if isinstance(observations, dict) else {"": observations}
        first = entries[next(iter(self.clips))]
        if first.ndim == 2:  # features: see `with_features`
            return first
        unmixed = self.look(entries)
        return torch.cat([self.mix(unmixed[:, : self.image_width]), unmixed[:, self.image_width :]], dim=1)

    def look(self, entries: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the features before the mixing layer: `image_width` numbers from all cameras, then the vectors."""
        images = [self._look(name, entries[name]) for name in self.clips]
        return torch.cat([*images, *(entries[name].flatten(1).float() for name in self.vectors)], dim=1)

    def with_features(self, observations: Any, features: torch.Tensor) -> Any:
        """Return `observations` with the output of `forward` in place of the images; `forward` then returns that."""
        if not isinstance(observations, dict):
            return features
        numbers = {name: value for name, value in observations.items() if name not in self.clips}
        return numbers | {next(iter(self.clips)): features}

    def _look(self, name: str, images: torch.Tensor) -> torch.Tensor:
        shape = self.clips[name]
        if images.shape[1:] != shape[4 - (images.ndim - 1) :]:
            raise UserError(
                f"the clip {name!r} is {tuple(images.shape[1:])} and this encoder was made for {shape}; make the env "
                "with the frames, channels and size that the policy was trained on."
            )
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise UserError(f"the clip {name!r} is {images.dtype}; give uint8, or float with values from 0 to 255.")
        eye = self.eyes[_module_name(name)] if len(self.eyes) > 1 else next(iter(self.eyes.values()))
        clip = self.choose_frames(images.unflatten(0, (-1, 1)) if images.ndim == 4 else images).float()
        # rounding in convolutions depends on the memory layout, so clips always get the one that they have in rollouts,
        # (T, B, H, W, C)
        return eye(clip.permute(1, 0, 3, 4, 2).contiguous().permute(1, 0, 4, 2, 3)).flatten(1)


PictureExtractor = ImageExtractor
"""Name of `ImageExtractor` until 0.2, kept for a release."""


def _entries(space: Space) -> dict[str, Space]:
    """Return name -> entry of `space`; a space that is not a Dict is the entry ""."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}


def clip_shape(space: Space) -> tuple[int, int, int, int]:
    """Return frames, channels, height and width of an image or clip space."""
    shape = tuple(int(size) for size in space.shape or ())
    return shape if len(shape) == 4 else (1, *shape)  # type: ignore[return-value]


def at_least(encoder: str, shape: tuple[int, int, int, int], pixels: int) -> None:
    """Raise `UserError` if the images of a clip (T, C, H, W) of `shape` have fewer than `pixels` per side."""
    height, width = shape[2:]
    if min(height, width) < pixels:
        raise UserError(
            f"encoder={encoder!r} needs images of at least {pixels}×{pixels} and this env gives {height}×{width}; "
            "enlarge them or flatten them with gymnasium.wrappers.FlattenObservation."
        )


def _module_name(entry: str) -> str:
    return f"eye_{entry.replace('.', '_')}"
