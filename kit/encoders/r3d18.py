"""R3D-18 (Tran et al., 2018): a residual network of 3D convolutions, from torchvision."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from gymnasium import Space
from torch import nn

from kit.encoders.weights import Pretrained, PretrainedExtractor, load_weights
from kit.errors import UserError

KINETICS = "kinetics"
MEAN, STD = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989)
"""Mean and standard deviation of pixels with which torchvision's Kinetics-400 weights were trained."""


class R3D18Encoder(PretrainedExtractor):
    """R3D-18 encoder: 512 features per clip, one network (33 M weights) for all cameras.

    `weights`: "kinetics" for torchvision's, which are downloaded once; the path of a file; or None for random weights.
    With `frozen` the weights never change; else they are trained, which is slow on a CPU.
    """

    name, least_pixels = "r3d18", 16

    @classmethod
    def check(cls, observation_space: Space, **options: Any) -> None:
        super().check(observation_space, **options)
        torchvision("r3d18")
        if options.get("weights") not in (None, KINETICS):
            _network(options["weights"])  # load the user's file to check that it fits

    def eye(self, shape: tuple[int, int, int, int]) -> nn.Module:
        return _Normalised(Pretrained(_network(self.weights), self.frozen))


class _Normalised(nn.Module):
    """Normalises clips from 0 to 255 by `MEAN` and `STD` and applies `net`."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        for name, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1, 1), persistent=False)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        return self.net((clip.transpose(1, 2) / 255.0 - self.mean) / self.std)  # (B, C, T, H, W)


def _network(weights: str | None) -> nn.Module:
    """Return R3D-18 without its classification layer."""
    video = torchvision("r3d18").models.video
    kinetics = video.R3D_18_Weights.KINETICS400_V1 if weights == KINETICS else None
    try:
        net = video.r3d_18(weights=kinetics)
    except OSError as error:
        raise UserError(
            f"weights={weights!r} could not be downloaded ({error}); give the path of a file with the weights instead."
        ) from None
    net.fc = nn.Identity()
    if weights not in (None, KINETICS):
        load_weights(net, str(weights), skip=("fc.",))
    return net


def torchvision(encoder: str) -> Any:
    """Import torchvision, even if its compiled operators do not fit the installed torch. Raises `UserError`.

    kit does not use these operators, but importing torchvision fails unless two of their names are defined.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
        return importlib.import_module("torchvision")
    except ImportError as error:
        raise UserError(
            f"encoder={encoder!r} needs torchvision ({error}); pip install 'torchvision=={_matching_version()}': "
            "another version would replace this machine's torch."
        ) from None


def _matching_version() -> str:
    """Return the version of torchvision for the installed torch: 0.N with torch 2.(N - 15), since torch 2.0."""
    return f"0.{int(torch.__version__.split('.')[1]) + 15}.*"


_KEPT: list[Any] = []
"""Libraries defined by the function `torchvision`: an operator disappears when its library is garbage-collected."""
