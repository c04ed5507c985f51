"""Encoders: from what a robot sees to the features its policy uses. Here: which of SB3's policies takes them in."""

from __future__ import annotations

from typing import Any, NamedTuple

from gymnasium import Space, spaces
from stable_baselines3.common.preprocessing import is_image_space

from kit.envs.obs import PolicyView
from kit.errors import UserError

NATURE_PIXELS = 36
"""The three convolutions of NatureCNN need as many a side."""


class Encoder(NamedTuple):
    """What an encoder means for an algorithm: SB3's name of a policy class, and the arguments that make it this one. Of
    a features extractor that learns nothing, freeze the parameters: they are stored once per run."""

    policy: str
    policy_kwargs: dict[str, Any]


def choose(encoder: str, observation_space: Space) -> Encoder:
    """The `encoder` (auto, mlp, nature_cnn) for observations of this kind. Raises `UserError` if it does not fit."""
    space = PolicyView(observation_space).space
    pictures = _pictures(space)
    if encoder == "nature_cnn" and not pictures:
        raise UserError(f"encoder={encoder!r} wants pictures and this env gives {observation_space}; use mlp or auto.")
    if encoder == "mlp" and pictures:
        raise UserError(f"encoder={encoder!r} wants numbers and this env gives pictures; use nature_cnn or auto.")
    small = next((p for p in pictures if min(p.shape[1:]) < NATURE_PIXELS), None)
    if small is not None:
        height, width = small.shape[1:]
        raise UserError(
            f"encoder={encoder!r} needs pictures of at least {NATURE_PIXELS}×{NATURE_PIXELS} and this env gives "
            f"{height}×{width}; enlarge them or flatten them with gymnasium.wrappers.FlattenObservation."
        )
    if isinstance(space, spaces.Dict):
        return Encoder("MultiInputPolicy", {})
    return Encoder("CnnPolicy" if pictures else "MlpPolicy", {})


def sees_pictures(observation_space: Space) -> bool:
    return bool(_pictures(PolicyView(observation_space).space))


def _pictures(space: Space) -> list[spaces.Box]:
    entries = space.values() if isinstance(space, spaces.Dict) else [space]
    return [entry for entry in entries if isinstance(entry, spaces.Box) and is_image_space(entry)]
