"""Left-right symmetry of a task: the mirror image of observations and actions.

For a symmetric robot and task, the mirror image of a transition is also a possible transition, with the same
probability and reward. PPO's option `mirror` learns from both (data augmentation, as in Mittal et al., 2024, "Symmetry
considerations for learning task symmetric robot policies").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mujoco
import numpy as np
import torch


@dataclass(frozen=True)
class Flip:
    """Mirror image of a vector: number i of the image is `sign[i]` times number `index[i]` of the vector."""

    index: torch.Tensor
    """(width,) int64."""
    sign: torch.Tensor
    """(width,) float32: 1 or -1."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mirror image of `x` (..., width)."""
        return x.index_select(-1, self.index) * self.sign

    def to(self, device: torch.device) -> Flip:
        return Flip(self.index.to(device), self.sign.to(device))


class Mirror(NamedTuple):
    """Mirror images of what a task's policy sees and does."""

    obs: Mapping[str, Flip]
    """Observation entry -> its `Flip`. The name is "" if the observation is a single Box."""
    action: Flip


Part = tuple[Sequence[int], Sequence[float]]
"""Mirror image of a part of a vector: index and sign, as in `Flip`."""
VECTOR: Part = (0, 1, 2), (1.0, -1.0, 1.0)
"""Mirror image of a vector (ahead, left, up)."""
ROTATION: Part = (0, 1, 2), (-1.0, 1.0, -1.0)
"""Mirror image of a rotation or an angular velocity about these axes."""
SCALAR: Part = (0,), (1.0,)


def flip(*parts: Part) -> Flip:
    """Return the `Flip` of a vector that consists of these `parts`, in order."""
    index: list[int] = []
    sign: list[float] = []
    for one, signs in parts:
        index += [len(sign) + i for i in one]
        sign += signs
    return Flip(torch.tensor(index), torch.tensor(sign))


TOLERANCE_M = 0.01
"""Largest distance between a joint and the mirror image of its partner."""


def partners(places: np.ndarray, axes: np.ndarray) -> Part | None:
    """Return, per hinge joint, the index of its mirror partner and the sign of its angle in the mirror image.

    None if a joint has no partner or several.

    `places`, `axes` (joints, 3): anchors, m, and unit axes in a symmetric pose, x ahead and y to the left. The mirror
    image of a rotation about (x, y, z) is one about (-x, y, -z).
    """
    images = places * (1.0, -1.0, 1.0), axes * (-1.0, 1.0, -1.0)
    index: list[int] = []
    sign: list[float] = []
    for place, axis in zip(*images, strict=True):
        along = axes @ axis
        fits = (np.linalg.norm(places - place, axis=1) < TOLERANCE_M) & (np.abs(along) > 0.99)
        if fits.sum() != 1:
            return None
        index.append(int(fits.argmax()))
        sign.append(float(np.sign(along[index[-1]])))
    return index, sign


def robot_partners(model: mujoco.MjModel, key: str, feet: Sequence[str]) -> tuple[Part, Part] | None:
    """Return the `partners` of a robot's joints and of its feet in the pose of key frame `key`.

    `feet`: names of the sites that mark the feet. The first joint is free and left out. None for a robot without left
    and right.
    """
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key(key).id)
    mujoco.mj_kinematics(model, data)
    joints = partners(data.xanchor[1:] - data.xpos[1], data.xaxis[1:])
    places = np.stack([data.site(name).xpos - data.xpos[1] for name in feet])
    soles = partners(places, np.tile((0.0, 0.0, 1.0), (len(feet), 1)))
    return None if joints is None or soles is None else (joints, (soles[0], [1.0] * len(feet)))
