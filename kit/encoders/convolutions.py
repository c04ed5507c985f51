"""Small convolutional eyes: over all frames as channels, over each frame by itself, and through time."""

from __future__ import annotations

import torch
from torch import nn

from kit.encoders.extractor import ImageExtractor, at_least

Layers = tuple[tuple[int, int, int], ...]
"""Channels, side of the kernel and stride of each."""
NATURE: Layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Mnih et al., 2015."""
SMALL: Layers = ((16, 8, 4), (32, 4, 2), (32, 3, 1))
PATCHES: Layers = ((16, 4, 4), (32, 3, 2), (32, 3, 2))
"""For frames by themselves, of which there are many: a fifth of the work of `NATURE`."""
NATURE_PIXELS, PATCHES_PIXELS = 36, 28
"""These kernels need as many a side."""


class FromBytes(nn.Conv2d):
    """A convolution of pictures with values from 0 to 255, which scales its own few weights instead of them."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(pictures, self.weight / 255.0, self.bias)


def convolutions(channels: int, layers: Layers) -> nn.Sequential:
    """Of pictures (B, channels, H, W), 0 to 255. If their channels lie last in memory, CPUs are 3 times as fast."""
    parts: list[nn.Module] = []
    for width, kernel, stride in layers:
        kind = nn.Conv2d if parts else FromBytes
        parts += [kind(channels, width, kernel, stride), nn.ReLU()]
        channels = width
    return nn.Sequential(*parts)


class _Stacked(nn.Module):
    """Frames as further channels."""

    def __init__(self, channels: int, layers: Layers) -> None:
        super().__init__()
        self.layers = convolutions(channels, layers)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        pictures = clip.permute(0, 3, 4, 1, 2).flatten(3).movedim(-1, 1)  # all frames' channels, last in memory
        return self.layers(pictures)


class _PerFrame(nn.Module):
    """Each frame by itself; then what the newest shows, and how far it differs from the mean of all. The layers learn
    from the newest alone, which halves the work: the others have been the newest too."""

    def __init__(self, channels: int, layers: Layers) -> None:
        super().__init__()
        self.layers = convolutions(channels, layers)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        frames = clip.transpose(0, 1)  # time in front, as it is in memory: nothing is copied
        newest = self.layers(frames[-1]).flatten(1)
        if len(frames) == 1:
            return newest
        with torch.no_grad():
            earlier = (
                self.layers(frames[:-1].flatten(0, 1)).unflatten(0, (clip.shape[1] - 1, -1)).flatten(2)
            )  # (T - 1, B, ...)
        mean = (newest + earlier.sum(0)) / len(frames)
        return torch.cat([newest, newest - mean], dim=1)


class _ThroughTime(nn.Module):
    """Convolutions of time and space, until one moment is left."""

    def __init__(self, frames: int, channels: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for width, kernel, stride in SMALL:
            depth = min(3, frames)
            parts += [nn.Conv3d(channels, width, (depth, kernel, kernel), (1, stride, stride)), nn.ReLU()]
            frames, channels = frames - depth + 1, width
        self.layers = nn.Sequential(*parts)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        seen = self.layers((clip / 255.0).transpose(1, 2))  # (B, C, T, H, W)
        return seen.mean(2)


class NatureEncoder(ImageExtractor):
    """Mnih et al.'s three convolutions of all frames of a camera at once."""

    @classmethod
    def check_shape(cls, shape: tuple[int, int, int, int]) -> None:
        at_least("nature_cnn", shape, NATURE_PIXELS)

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _Stacked(shape[0] * shape[1], NATURE)


class MultiCameraEncoder(ImageExtractor):
    """The same at half the width, so that several cameras cost what one does there."""

    @classmethod
    def check_shape(cls, shape: tuple[int, int, int, int]) -> None:
        at_least("multi_camera", shape, NATURE_PIXELS)

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _Stacked(shape[0] * shape[1], SMALL)


class Simple2DEncoder(ImageExtractor):
    """Each frame by itself, pooled over time."""

    @classmethod
    def check_shape(cls, shape: tuple[int, int, int, int]) -> None:
        at_least("simple2dcnn", shape, PATCHES_PIXELS)

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _PerFrame(shape[1], PATCHES)


class Simple3DEncoder(ImageExtractor):
    """Convolutions of time and space."""

    @classmethod
    def check_shape(cls, shape: tuple[int, int, int, int]) -> None:
        at_least("simple3dcnn", shape, NATURE_PIXELS)

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _ThroughTime(shape[0], shape[1])
