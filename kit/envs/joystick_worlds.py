"""Each world's own friction, masses and joints, around the model's: domain randomisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kit.envs.joystick import Joystick

GROUND_FRICTION = (0.4, 1.0)
MASS_SCALE = (0.9, 1.1)
"""Of every body, its inertia with it."""
PAYLOAD_KG = (-1.0, 1.0)
"""Added to the torso."""
ARMATURE_SCALE = (1.0, 1.05)


class WorldParameters:
    """Draws new parameters for the worlds that begin an episode. Only where the simulator has a model per world."""

    def __init__(self, task: Joystick) -> None:
        model, self._task = task.model, task
        self._torso = int(model.site_bodyid[model.site("torso").id])
        self._ground = task.indices([i for i in range(model.npair) if model.pair(i).name.endswith("_floor")])
        names = ("body_mass", "body_inertia", "dof_frictionloss", "dof_armature", "pair_friction")
        self._compiled = {name: task.constant(getattr(model, name)) for name in names}
        self._own: dict[str, torch.Tensor] = {}
        for name in names:
            own = task.sim.parameter(name)
            assert own is not None
            self._own[name] = own

    @property
    def mass(self) -> torch.Tensor:
        """(n, bodies), kg."""
        return self._own["body_mass"]

    def draw(self, mask: torch.Tensor) -> None:
        """New parameters for the worlds of `mask` (n,) bool."""
        task, old, n = self._task, self._compiled, self._task.sim.n
        scale = task.uniform((n, len(old["body_mass"])), *MASS_SCALE)
        scale[:, self._torso] += task.uniform((n,), *PAYLOAD_KG) / old["body_mass"][self._torso]
        dofs = (n, len(old["dof_armature"]))
        friction = old["pair_friction"].repeat(n, 1, 1)
        friction[:, self._ground, :2] = task.uniform((n, 1, 1), *GROUND_FRICTION)
        new = {
            "body_mass": old["body_mass"] * scale,
            "body_inertia": old["body_inertia"] * scale.unsqueeze(2),
            "dof_frictionloss": old["dof_frictionloss"] * task.uniform(dofs, *task.joint_friction_scale),
            "dof_armature": old["dof_armature"] * task.uniform(dofs, *ARMATURE_SCALE),
            "pair_friction": friction,
        }
        for name, value in self._own.items():
            value.copy_(torch.where(mask.view(-1, *[1] * (value.ndim - 1)), new[name], value))
