"""Ant: a batched version of Gymnasium's Ant-v5 with identical steps."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch
from torch.linalg import vecdot

from kit.envs.randomize import ActionDelay, ModelTerm, ObservationNoise
from kit.envs.task import MujocoTask
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.sim import Simulator

HEALTHY_Z_M = (0.2, 1.0)
HEALTHY_REWARD = 1.0
CONTROL_COST = 0.5
CONTACT_COST = 5e-4
RESET_NOISE = 0.1
TERMS = ("forward", "survive", "ctrl", "contact")
"""Reward terms, named as in Ant-v5's info."""
TORSO = 1
SEES = (
    Field("height of the torso", 1, "m"),
    Field("orientation of the torso, a quaternion", 4),
    Field("joint angles", 8, "rad"),
    Field("velocity of the torso", 3, "m/s"),
    Field("angular velocity of the torso", 3, "rad/s"),
    Field("joint velocities", 8, "rad/s"),
    Field("contact torque and force on each body, clipped to ±1", 78, "N m, N"),
)
"""Fields of the observation, in order."""


class Ant(MujocoTask):
    """Run along x with 4 legs. Model, observation, reward, termination and reset are those of Gymnasium's Ant-v5.

    Two peculiarities of Ant-v5 are included. The forward velocity is computed from body positions, which lag one
    substep behind after `mj_step`. Contact forces are clipped to ±1, and are zero at the start of an episode.

    In the code, the suffix _w marks coordinates in the world frame.
    """

    name = "Ant"
    substeps = 5
    episode_steps = 1000
    cameras = ("track",)
    train_steps = 1_000_000
    random_terms = MappingProxyType({
        "mass": ModelTerm(("body_mass", "body_inertia"), low=0.8, high=1.25, each=True),
        "friction": ModelTerm(("geom_friction",), low=0.5, high=1.25, columns=1),
        "damping": ModelTerm(("dof_damping",), low=0.7, high=1.3),
        "strength": ModelTerm(("actuator_gainprm",), low=0.8, high=1.2, columns=1, each=True),
        "delay": ActionDelay(low=0, high=1),
        "noise": ObservationNoise(low=-0.02, high=0.02),
    })  # fmt: skip
    task_info = TaskInfo(
        sees={"": SEES},
        does=(Field("joint torques", 8, "150 N m"),),
        pays=(
            (1.0, "per step and m/s of velocity along x"),
            (HEALTHY_REWARD, "per step with the torso {} to {} m above the ground".format(*HEALTHY_Z_M)),
            (-CONTROL_COST, "per step, times the sum of squared actions"),
            (-CONTACT_COST, "per step, times the sum of squared contact forces and torques"),
        ),
        ends="the torso is lower than {} m or higher than {} m".format(*HEALTHY_Z_M),
    )

    def __init__(self) -> None:
        folder = Path(str(gymnasium.__file__)).parent / "envs" / "mujoco" / "assets"
        self.model = mujoco.MjModel.from_xml_path(str(folder / "ant.xml"))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.model.nu,), np.float32)
        self.observation_space = numbers(SEES)

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        self._lowest_qpos = torch.as_tensor(self.model.qpos0 - RESET_NOISE, dtype=sim.dtype, device=sim.device)
        self._dt_s = self.control_dt_s
        # Views of the simulator's memory, always current. The first row of cfrc_ext (the world body, zero) is left out:
        self._pose, self._velocity, self._forces = sim.qpos[:, 2:], sim.qvel, sim.cfrc_ext.flatten(1)[:, 6:]
        self._x_w, self._z_w, self._torso_x_w = sim.qpos[:, 0], sim.qpos[:, 2], sim.xpos[:, TORSO, 0]

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        sim, n = self.sim, self.sim.n
        options: Any = {"generator": generator, "dtype": sim.dtype, "device": sim.device}
        uniform = torch.rand(n, self.model.nq, **options)
        normal = torch.randn(n, self.model.nv, **options)
        qpos = torch.add(self._lowest_qpos, uniform, alpha=2 * RESET_NOISE)
        sim.reset(mask, qpos=qpos, qvel=RESET_NOISE * normal)

    def act(self, action: torch.Tensor) -> None:
        self._torso_x_before_w = self._torso_x_w.clone()
        self.sim.ctrl.copy_(action)

    def measure(self) -> None:
        self._clipped_forces = self._forces.clamp(-1.0, 1.0)  # (n, 78): torque and force on each body except the world
        self._healthy = self._z_w == self._z_w.clamp(*HEALTHY_Z_M)  # within the bounds and not NaN

    def observe(self) -> torch.Tensor:
        return torch.cat([self._pose, self._velocity, self._clipped_forces], dim=1)

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        forward_mps = (self._torso_x_w - self._torso_x_before_w).div_(self._dt_s)
        control = vecdot(action, action)
        contact = vecdot(self._clipped_forces, self._clipped_forces)
        reward = forward_mps.add(self._healthy, alpha=HEALTHY_REWARD)
        self._terms = forward_mps, HEALTHY_REWARD * self._healthy, -CONTROL_COST * control, -CONTACT_COST * contact
        return reward.sub_(control, alpha=CONTROL_COST).sub_(contact, alpha=CONTACT_COST)

    def terminated(self) -> torch.Tensor:
        return ~self._healthy

    def info(self) -> dict[str, torch.Tensor]:
        rewards = {f"reward/{name}": term for name, term in zip(TERMS, self._terms, strict=True)}
        return {"x_position": self._x_w.clone(), **rewards}
