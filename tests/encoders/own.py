"""Custom encoders for tests: an `ImageExtractor` for images and an SB3 `BaseFeaturesExtractor` for vectors."""

from __future__ import annotations

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from kit.encoders.extractor import ImageExtractor


class Edges(ImageExtractor):
    """Image encoder: absolute differences of diagonally adjacent pixels, averaged in a 4×4 grid per frame."""

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return Grid()


class Grid(nn.Module):
    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        edges = (clips[..., 1:, 1:] - clips[..., :-1, :-1]).abs() / 255.0
        return nn.functional.avg_pool2d(edges.flatten(1, 2), edges.shape[-1] // 4)


class Scaled(BaseFeaturesExtractor):
    """Vector encoder: observations times `factor`."""

    def __init__(self, observation_space: spaces.Box, factor: float = 2.0) -> None:
        super().__init__(observation_space, observation_space.shape[0])
        self.factor = factor

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.factor * observations
