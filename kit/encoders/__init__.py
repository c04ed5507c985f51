"""Encoders: from what a robot sees to the features its policy uses. Each is an SB3 features extractor with a name.

kit.RunConfig(env="ReachVision", encoder="simple2dcnn",
              overrides={"policy_kwargs": {"features_extractor_kwargs": {"features": 64}}})
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from gymnasium import Space, spaces

from kit.envs.obs import PolicyView, is_picture
from kit.errors import UserError

if TYPE_CHECKING:
    from kit.encoders.extractor import PictureExtractor

OPTIONS = "features_extractor_kwargs"
"""Where SB3's policy_kwargs hold an encoder's own settings."""


class Encoder(NamedTuple):
    """What an encoder means for an algorithm: SB3's name of a policy class, and the arguments that make it this one. Of
    a features extractor that learns nothing, freeze the parameters: they are stored once per run."""

    policy: str
    policy_kwargs: dict[str, Any]
    make_view: Callable[[], PolicyView] | None = None
    """Builds the view of observations, where that is an encoder's work already: one whose weights never change."""


class Card(NamedTuple):
    """What to know of an encoder before choosing it."""

    where: str
    """module:Class, imported when it is chosen."""
    does: str
    costs: str
    """Multiply-adds of one forward pass over three cameras with 4 frames of 64×64 each, and parameters."""
    use_when: str


CARDS = {
    "nature_cnn": Card(
        "kit.encoders.convolutions:NatureEncoder",
        "three convolutions (32, 64, 64) of all frames at once, an eye for each camera",
        "22 M, 0.7 M",
        "pictures are simple and how things move matters; what Atari agents use",
    ),
    "multi_camera": Card(
        "kit.encoders.convolutions:MultiCameraEncoder",
        "the same at half the width (16, 32, 32); shared=True gives all cameras one eye",
        "10 M, 0.3 M",
        "there are several cameras and few cores",
    ),
    "simple2dcnn": Card(
        "kit.encoders.convolutions:Simple2DEncoder",
        "each frame by itself in patches of 4×4 (16, 32, 32); the newest, and how it differs from the mean",
        "6 M, 0.3 M",
        "in doubt, with stacks: where things are is read from one frame, little from the others",
    ),
    "simple3dcnn": Card(
        "kit.encoders.convolutions:Simple3DEncoder",
        "convolutions of time and space (16, 32, 32)",
        "15 M, 0.3 M",
        "the task is about motion, in clips of 8 frames and more",
    ),
    "r3d18": Card(
        "kit.encoders.r3d18:R3D18Encoder",
        "a residual network in time and space; options weights (kinetics, or a file) and frozen",
        "10,600 M, 33 M",
        "clips of 8 frames or more look like what people film; frozen on a CPU, fine-tuned on a GPU",
    ),
    "timesformer": Card(
        "kit.encoders.timesformer:TimesformerEncoder",
        "attention over time and space; options weights (a checkpoint's name or folder) and frozen",
        "112 M, 0.6 M (random ones; the published are 121 M)",
        "there is a GPU and much data",
    ),
}  # fmt: skip


def choose(encoder: str, observation_space: Space, options: Mapping[str, Any] | None = None) -> Encoder:
    """The `encoder` (auto, mlp, or one of `CARDS`) for observations of this kind. Nothing is built. Raises `UserError`
    if it, or one of its `options`, does not fit."""
    space = PolicyView(observation_space).space
    pictures = _pictures(space)
    if encoder in CARDS and not pictures:
        raise UserError(f"encoder={encoder!r} wants pictures and this env gives {observation_space}; use mlp or auto.")
    if encoder == "mlp" and pictures:
        raise UserError(f"encoder={encoder!r} wants numbers and this env gives pictures; use nature_cnn or auto.")
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if pictures else "MlpPolicy"
    if isinstance(space, spaces.Dict) and any(name.startswith("critic_") for name in space.spaces):
        policy = "AsymmetricPolicy"
        if not pictures:
            raise UserError(f"env gives {observation_space} with entries for a critic alone; that is for pictures.")
    stacks = any(len(picture.shape) == 4 for picture in pictures)
    plain = not stacks and not options and policy != "AsymmetricPolicy" and encoder in ("auto", "nature_cnn")
    if not pictures or plain:
        for picture in pictures:
            _enlarged(encoder, picture)
        return Encoder(policy, {})
    name = encoder if encoder in CARDS else "simple2dcnn" if stacks else "nature_cnn"
    made = load(name)
    _check(name, made, options or {})
    made.check(space, **options or {})
    if (options or {}).get("frozen"):
        return Encoder("MlpPolicy", {}, partial(_frozen_view, made, observation_space, options or {}))
    return Encoder(policy, {"features_extractor_class": made, "normalize_images": False})


def _frozen_view(made: type[PictureExtractor], observation_space: Space, options: Mapping[str, Any]) -> PolicyView:
    from kit.encoders.frozen import FrozenView

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # random weights are the same in every run and after every resume
        return FrozenView(observation_space, made(PolicyView(observation_space).space, **options))


def load(encoder: str) -> type[PictureExtractor]:
    """The class of one of `CARDS`."""
    module, _, name = CARDS[encoder].where.partition(":")
    return getattr(importlib.import_module(module), name)


def sees_pictures(observation_space: Space) -> bool:
    return bool(_pictures(PolicyView(observation_space).space))


def _check(encoder: str, made: type, options: Mapping[str, Any]) -> None:
    known = [name for name in inspect.signature(made).parameters if name != "observation_space"]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(f"{OPTIONS} {name}={options[name]!r} is not one of {encoder}'s; {hint}valid are "
                            f"{', '.join(known)}.")  # fmt: skip


def _enlarged(encoder: str, picture: spaces.Box) -> None:
    from kit.encoders.convolutions import NATURE_PIXELS
    from kit.encoders.extractor import at_least, clip_shape

    at_least(encoder, clip_shape(picture), NATURE_PIXELS)


def _pictures(space: Space) -> list[spaces.Box]:
    entries = space.values() if isinstance(space, spaces.Dict) else [space]
    return [entry for entry in entries if isinstance(entry, spaces.Box) and is_picture(entry)]
