"""Small convolutional encoders: frames stacked as channels, 2D convolutions per frame, 3D convolutions over time."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space
from torch import nn

from kit.encoders.extractor import ImageExtractor
from kit.errors import check_whole

Layers = tuple[tuple[int, int, int], ...]
"""Output channels, kernel size and stride of each layer."""
NATURE: Layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""The network of Mnih et al., 2015."""
SMALL: Layers = ((16, 8, 4), (32, 4, 2), (32, 3, 1))
PATCHES: Layers = ((16, 4, 4), (32, 3, 2), (32, 3, 2))
"""Small, because it runs on every frame: less than a fifth of the work of `NATURE` per frame."""
NATURE_PIXELS, PATCHES_PIXELS = 36, 28
"""Smallest image side for `NATURE` and for `PATCHES`."""


class FromBytes(nn.Conv2d):
    """Convolution of images from 0 to 255. It divides its few weights by 255 instead of the many pixels."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(images, self.weight / 255.0, self.bias)


def convolutions(channels: int, layers: Layers) -> nn.Sequential:
    """Build convolutions for images (B, channels, H, W) from 0 to 255.

    On a CPU they are faster if the images are channels-last in memory.
    """
    modules: list[nn.Module] = []
    for width, kernel, stride in layers:
        kind = nn.Conv2d if modules else FromBytes
        modules += [kind(channels, width, kernel, stride), nn.ReLU()]
        channels = width
    return nn.Sequential(*modules)


class _Stacked(nn.Module):
    """2D convolutions over all frames of a clip as channels."""

    def __init__(self, channels: int, layers: Layers) -> None:
        super().__init__()
        self.layers = convolutions(channels, layers)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        images = clip.permute(0, 3, 4, 1, 2).flatten(3).movedim(3, 1)  # (B, T·C, H, W), channels-last in memory
        return self.layers(images)


class _PerFrame(nn.Module):
    """2D convolutions per frame; outputs the newest frame's features and their difference from the mean over frames.

    Gradients flow through the newest frame only, which halves the work. Each older frame is the newest one of another
    sample, so the network learns from it there.
    """

    def __init__(self, channels: int, layers: Layers) -> None:
        super().__init__()
        self.layers = convolutions(channels, layers)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        frames = clip.transpose(0, 1)  # (T, B, C, H, W), the order in memory, so nothing is copied
        newest = self.layers(frames[-1]).flatten(1)
        if len(frames) == 1:
            return newest
        with torch.no_grad():
            earlier = self.layers(frames[:-1].flatten(0, 1))
            earlier = earlier.unflatten(0, (len(frames) - 1, -1)).flatten(2)  # (T - 1, B, ...)
        mean = (newest + earlier.sum(0)) / len(frames)
        return torch.cat([newest, newest - mean], dim=1)


class _ThroughTime(nn.Module):
    """3D convolutions over time and space, without padding; averages over the time steps that are left."""

    def __init__(self, frames: int, channels: int) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        for width, kernel, stride in SMALL:
            depth = min(3, frames)
            modules += [nn.Conv3d(channels, width, (depth, kernel, kernel), (1, stride, stride)), nn.ReLU()]
            frames, channels = frames - depth + 1, width
        self.layers = nn.Sequential(*modules)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        features = self.layers((clip / 255.0).transpose(1, 2))  # (B, C, T, H, W)
        return features.mean(2)


def spread(total: int, count: int) -> list[int]:
    """Choose the newest of `total` frames and older ones at growing distances; return `count` indices, oldest first.

    `spread(8, 3)` chooses the frames that are 7, 2 and 0 steps old.
    """
    count = min(count, total)
    ages = [max(i, round((total - 1) * (i / max(1, count - 1)) ** 2)) for i in range(count)]
    return [total - 1 - age for age in reversed(ages)]


class NatureEncoder(ImageExtractor):
    """Mnih et al.'s three convolutions over all frames of a camera as channels."""

    name, least_pixels = "nature_cnn", NATURE_PIXELS

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _Stacked(shape[0] * shape[1], NATURE)


class MultiCameraEncoder(ImageExtractor):
    """`NatureEncoder` with half the channels, for several cameras."""

    name, least_pixels = "multi_camera", NATURE_PIXELS

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _Stacked(shape[0] * shape[1], SMALL)


class ClipEncoder(ImageExtractor):
    """`NatureEncoder` over `frames` frames of a clip: the newest, and older ones at growing distances (`spread`).

    A longer clip reaches further into the past at the same cost.
    """

    name, least_pixels = "clip_cnn", NATURE_PIXELS

    def __init__(self, observation_space: Space, features: int = 256, shared: bool = False, frames: int = 3) -> None:
        self._frames = frames
        super().__init__(observation_space, features, shared)

    @classmethod
    def check(cls, observation_space: Space, **options: Any) -> None:
        check_whole("frames", options.get("frames", 3), 1)
        super().check(observation_space, **options)

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _Stacked(len(spread(shape[0], self._frames)) * shape[1], NATURE)

    def choose_frames(self, clip: torch.Tensor) -> torch.Tensor:
        index = spread(int(clip.shape[1]), self._frames)  # int(): during an export to ONNX, sizes are tensors
        return torch.stack([clip[:, i] for i in index], dim=1)


class Simple2DEncoder(ImageExtractor):
    """2D convolutions per frame: features of the newest frame, and their difference from the mean over the clip."""

    name, least_pixels = "simple2dcnn", PATCHES_PIXELS

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _PerFrame(shape[1], PATCHES)


class Simple3DEncoder(ImageExtractor):
    """3D convolutions over time and space."""

    name, least_pixels = "simple3dcnn", NATURE_PIXELS

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _ThroughTime(shape[0], shape[1])
