"""Ant: Gymnasium's Ant-v5, step for step."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import torch
from torch.linalg import vecdot

from kit.envs.task import Task
from kit.sim import Simulator

HEALTHY_Z_M = (0.2, 1.0)
HEALTHY_REWARD = 1
CONTROL_COST = 0.5
CONTACT_COST = 5e-4
RESET_NOISE = 0.1
TORSO = 1


class Ant(Task):
    """Run along x with 4 legs: the same model, observation, reward, termination and start as `gymnasium`'s Ant-v5.

    Kept from there: positions of bodies after `mj_step` lag one substep behind, the forward velocity is computed from
    those; contact forces count clipped to ±1 and are zero at the start of an episode.
    """

    name = "Ant"
    substeps = 5
    episode_steps = 1000
    cameras = ("track",)

    def __init__(self) -> None:
        folder = Path(str(gymnasium.__file__)).parent / "envs" / "mujoco" / "assets"
        self.model = mujoco.MjModel.from_xml_path(str(folder / "ant.xml"))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.model.nu,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (105,), np.float32)

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        self._qpos0 = torch.as_tensor(self.model.qpos0, dtype=sim.dtype, device=sim.device)
        self._torso_x_w = sim.xpos[:, TORSO, 0]
        self._torso_x_before_w = torch.zeros_like(self._torso_x_w)
        self._forces = sim.cfrc_ext.flatten(1)  # (n, 14 * 6), a view
        self._height_m = sim.qpos[:, 2]
        self._dt_s = self.control_dt_s

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        sim, n = self.sim, self.sim.n
        uniform = torch.rand(n, self.model.nq, generator=generator, dtype=sim.dtype, device=sim.device)
        normal = torch.randn(n, self.model.nv, generator=generator, dtype=sim.dtype, device=sim.device)
        sim.reset(mask, qpos=self._qpos0 + RESET_NOISE * (2 * uniform - 1), qvel=RESET_NOISE * normal)

    def act(self, action: torch.Tensor) -> None:
        self._torso_x_before_w.copy_(self._torso_x_w)
        self.sim.ctrl.copy_(action)

    def observe(self) -> torch.Tensor:
        return torch.cat(
            [
                self.sim.qpos[:, 2:],  # 13  torso height and quaternion, 8 joint angles
                self.sim.qvel,  # 14  torso velocities, 8 joint velocities
                self._forces[:, 6:].clamp(-1.0, 1.0),  # 78  contact torque and force on each body but the world
            ],
            dim=1,
        )

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        forward = (self._torso_x_w - self._torso_x_before_w) / self._dt_s
        control = vecdot(action, action)
        forces = self._forces.clamp(-1.0, 1.0)
        contact = vecdot(forces, forces)
        reward = forward.add(self._is_healthy(), alpha=HEALTHY_REWARD)
        return reward.sub(control, alpha=CONTROL_COST).sub(contact, alpha=CONTACT_COST)

    def terminated(self) -> torch.Tensor:
        return ~self._is_healthy()

    def info(self) -> dict[str, torch.Tensor]:
        return {"x_position": self.sim.qpos[:, 0].clone()}

    def _is_healthy(self) -> torch.Tensor:
        z = self._height_m
        return z == z.clamp(*HEALTHY_Z_M)
