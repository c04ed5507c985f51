"""Encoders: from what a robot sees to the features its policy uses. Here: which of SB3's policies takes them in."""

from __future__ import annotations

from gymnasium import Space, spaces
from stable_baselines3.common.preprocessing import is_image_space

from kit.errors import UserError


def policy_name(encoder: str, observation_space: Space) -> str:
    """SB3's name of the policy for `encoder` (auto, mlp, nature_cnn) on observations of this kind."""
    if isinstance(observation_space, spaces.Dict):
        images = any(is_image_space(space) for space in observation_space.values())
    else:
        images = is_image_space(observation_space)
    if encoder == "nature_cnn" and not images:
        raise UserError(f"encoder={encoder!r} wants pictures and this env gives {observation_space}; use mlp or auto.")
    if encoder == "mlp" and images:
        raise UserError(f"encoder={encoder!r} wants numbers and this env gives pictures; use nature_cnn or auto.")
    if isinstance(observation_space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if images else "MlpPolicy"
