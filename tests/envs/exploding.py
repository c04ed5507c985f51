"""Task whose physics diverges on purpose: in one env, at a chosen step of each episode, a mass gets an infinite speed.

Control runs at 10 Hz. "mass" is a randomisation term.
"""

from __future__ import annotations

import gymnasium
import mujoco
import numpy as np
import torch

from kit.envs.randomize import ModelTerm
from kit.envs.task import MujocoTask

XML = """
<mujoco>
  <option timestep="0.05" gravity="0 0 0"/>
  <worldbody>
    <light pos="0 -2 3"/><camera name="front" pos="0 -3 0" xyaxes="1 0 0 0 0 1"/>
    <body name="cart"><joint name="rail" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body>
  </worldbody>
  <actuator><motor joint="rail"/></actuator>
</mujoco>
"""


class Exploding(MujocoTask):
    substeps, episode_steps, cameras = 2, 40, ("front",)
    random_terms = {"mass": ModelTerm(("body_mass", "body_inertia"), low=0.5, high=2.0)}  # noqa: RUF012

    def __init__(self, hit_env: int = 0, hit_step: int = 10) -> None:
        self.hit_env, self.hit_step = hit_env, hit_step
        self.model = mujoco.MjModel.from_xml_string(XML)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def bind(self, sim) -> None:
        super().bind(sim)
        self.steps = torch.zeros(sim.n, 1, dtype=torch.int64)

    keeps = ("steps",)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.steps.masked_fill_(mask.unsqueeze(1), 0)
        self.sim.reset(mask)

    def act(self, action: torch.Tensor) -> None:
        self.steps += 1
        self.sim.ctrl.copy_(action)
        hit = (self.steps == self.hit_step) & (torch.arange(self.n).unsqueeze(1) == self.hit_env)
        self.sim.qfrc_applied.copy_(hit * 1e30)

    def observe(self) -> torch.Tensor:
        return torch.cat([self.sim.qpos, self.sim.qvel], dim=1)

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return -self.sim.qpos[:, 0].abs()

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=torch.bool)
