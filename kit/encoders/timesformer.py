"""TimeSformer (Bertasius et al., 2021): attention over time, then over space, from transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gymnasium import Space
from torch import nn

from kit.encoders.r3d18 import torchvision
from kit.encoders.weights import Pretrained, PretrainedExtractor
from kit.errors import UserError, first_line

PATCH = 16
"""Side of a patch in pixels."""
TINY: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 192}
"""Size of the network without pretrained weights."""


class TimesformerEncoder(PretrainedExtractor):
    """TimeSformer encoder: its features are the class token of each camera's clip; one network for all cameras.

    `weights`: a checkpoint's name on the Hugging Face Hub or its folder (config.json and model.safetensors), made for
    clips of the env's length and size; or None for a small network (0.6 M) with random weights. With `frozen` the
    weights never change. Pixels from 0 to 1 are scaled to (pixel - `mean`) / `std`; most published checkpoints were
    trained with 0.45 and 0.225 (their preprocessor_config.json), some with 0.5 and 0.5.
    """

    name = "timesformer"

    def __init__(
        self,
        observation_space: Space,
        features: int = 128,
        weights: str | None = None,
        frozen: bool = False,
        mean: float = 0.5,
        std: float = 0.5,
    ) -> None:
        self.mean, self.std = mean, std
        super().__init__(observation_space, features, weights, frozen)

    @classmethod
    def check(cls, observation_space: Space, **options: Any) -> None:
        super().check(observation_space, **options)
        _transformers()

    @classmethod
    def check_shape(cls, shape: tuple[int, int, int, int]) -> None:
        super().check_shape(shape)
        height, width = shape[2:]
        if height != width or height % PATCH:
            raise UserError(
                f"encoder='timesformer' needs square images whose side is a multiple of {PATCH} and this env gives "
                f"{height}×{width}; use size=64."
            )

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _ClassToken(Pretrained(_network(self.weights, shape), self.frozen), self.mean, self.std)


class _ClassToken(nn.Module):
    """Applies a TimeSformer to clips from 0 to 255 and returns its class token."""

    def __init__(self, net: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.net, self.mean, self.std = net, mean, std

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        return self.net(pixel_values=(clip / 255.0 - self.mean) / self.std).last_hidden_state[:, 0]


def _transformers() -> tuple[Any, Any]:
    """Import transformers' classes. Raises `UserError`."""
    torchvision("timesformer")  # transformers imports torchvision, which fails without this workaround
    try:
        from transformers import TimesformerConfig, TimesformerModel
    except ImportError as error:
        raise UserError(f"encoder='timesformer' needs transformers ({error}); pip install 'kit[clips]'.") from None
    return TimesformerConfig, TimesformerModel


def _network(weights: str | None, shape: tuple[int, int, int, int]) -> Any:
    """Return a TimeSformer for clips of `shape`: pretrained, or small with random weights if `weights` is None."""
    make_config, model = _transformers()
    frames, _, side, _ = shape
    if weights is None:
        config = make_config(image_size=side, patch_size=PATCH, num_frames=frames, **TINY)
        return model(config)
    local = Path(weights).expanduser()
    try:
        net = model.from_pretrained(local if local.exists() else weights)
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"weights={weights!r} cannot be loaded ({reason}); give a checkpoint's folder.") from None
    trained = net.config.num_frames, net.config.num_channels, net.config.image_size, net.config.image_size
    if trained != shape:
        raise UserError(f"weights={weights!r} are made for clips {trained} and this env gives {shape}; set its frames "
                        "and size.")  # fmt: skip
    return net
