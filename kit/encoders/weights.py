"""Encoders with a pretrained network: load and check weight files, and keep SB3 from overwriting the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from gymnasium import Space
from torch import nn

from kit.encoders.extractor import ImageExtractor
from kit.errors import UserError, first_line


class Pretrained(nn.Module):
    """Wraps a pretrained `net`, so that SB3 does not initialise it and its batch-norm statistics never change.

    With `frozen` the weights of `net` never change either.
    """

    def __init__(self, net: nn.Module, frozen: bool) -> None:
        super().__init__()
        self.net, self.frozen = net.eval().requires_grad_(not frozen), frozen

    def apply(self, fn: Callable[[nn.Module], None]) -> Pretrained:
        return self

    def train(self, mode: bool = True) -> Pretrained:
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.net(*args, **kwargs)


class PretrainedExtractor(ImageExtractor):
    """Encoder with one network for all cameras. With `frozen` its weights never change."""

    rgb_only = True

    def __init__(
        self, observation_space: Space, features: int = 128, weights: str | None = None, frozen: bool = False
    ) -> None:
        self.weights, self.frozen = weights, frozen
        super().__init__(observation_space, features, shared=True)

    @classmethod
    def check(cls, observation_space: Space, **options: Any) -> None:
        super().check(observation_space, **{**options, "shared": True})


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """Read name -> tensor from a .safetensors, .pt or .pth file, without running code in it. Raises `UserError`."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"weights={str(path)!r} does not exist; give the path of a .safetensors or .pth file.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = first_line(error)
        remedy = "give a complete .safetensors or .pth file"
        raise UserError(f"weights={str(path)!r} cannot be read as weights ({reason}); {remedy}.") from None
    if not isinstance(values, Mapping) or not all(isinstance(value, torch.Tensor) for value in values.values()):
        raise UserError(f"weights={str(path)!r} holds no state_dict; save one with torch.save(net.state_dict(), path).")
    return dict(values)


def load_weights(net: nn.Module, path: str | Path, skip: tuple[str, ...] = ()) -> None:
    """Load the weights of a file into `net`. Names in the file that begin with one of `skip` are ignored.

    Raises `UserError` if the other names or their shapes are not those of the network.
    """
    expected = net.state_dict()
    usable = {name: value for name, value in read_weights(path).items() if not name.startswith(skip or ("\0",))}
    wrong = [name for name in expected if name not in usable or usable[name].shape != expected[name].shape]
    wrong += [name for name in usable if name not in expected]
    if wrong:
        raise UserError(
            f"weights={str(path)!r} do not fit {type(net).__name__}: {', '.join(wrong[:3])} differ; give a file of the "
            "same architecture, clip length and size."
        )
    net.load_state_dict(usable)
