"""Task that can be computed by hand: a 1 kg mass on a rail, pushed by up to 1 N.

A step takes 1 s. The episode terminates at 6 m.
"""

from __future__ import annotations

import gymnasium
import mujoco
import numpy as np
import torch

from kit.envs.task import MujocoTask

XML = """
<mujoco>
  <option timestep="1" gravity="0 0 0"/>
  <worldbody><body><joint name="rail" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body></worldbody>
  <actuator><motor joint="rail"/></actuator>
</mujoco>
"""


class Slide(MujocoTask):
    name = "Slide"
    substeps = 1
    episode_steps = 4
    cameras = ()

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(XML)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.sim.reset(mask)

    def act(self, action: torch.Tensor) -> None:
        self.sim.ctrl.copy_(action)

    def observe(self) -> torch.Tensor:
        return torch.cat([self.sim.qpos, self.sim.qvel], dim=1)

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self.sim.qpos[:, 0].clone()

    def terminated(self) -> torch.Tensor:
        return self.sim.qpos[:, 0] >= 6

    def success(self) -> torch.Tensor:
        return self.terminated()
