"""Reaching with any robot arm: env="reach:ROBOT", a name in the MuJoCo Menagerie or an MJCF or URDF file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import gymnasium
import numpy as np
import torch
from torch.linalg import vecdot

from kit.envs.randomize import ActionDelay, ModelTerm, ObservationNoise
from kit.envs.task import MujocoTask
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.sim import Simulator
from kit.tasks.reach.arm import GOAL, HAND, find_arm
from kit.tasks.reach.task import EFFORT_COST, START_NOISE_RAD, joint_speeds_towards

NEAR = 0.1
"""Distance to the goal below which the task succeeds, as a fraction of the arm's reach."""
PROGRESS, SUCCESS_BONUS = 5.0, 1.0
"""Reward for moving closer to the goal by a distance equal to the arm's reach, and for reaching the goal."""


class AnyArm(MujocoTask):
    """An arm moves its hand to a goal position, by joint velocities of up to 1 rad/s at 20 Hz.

    The episode ends in success when the distance of the hand to the goal is less than a tenth of the arm's reach. The
    reach is the greatest distance of a goal from the mean of all goals. Parts of the robot do not collide.
    """

    robot: ClassVar[str]
    """A name in the MuJoCo Menagerie, or the path of an MJCF or URDF file."""
    substeps = 25
    episode_steps = 100
    cameras = ("view", "front", "side")
    shadows = False
    scripts = ("straight",)
    train_steps = 100_000
    random_terms = MappingProxyType({
        "mass": ModelTerm(("body_mass", "body_inertia"), low=0.8, high=1.25, each=True),
        "gain": ModelTerm(("actuator_gainprm", "actuator_biasprm"), low=0.8, high=1.25, each=True),
        "delay": ActionDelay(low=0, high=1),
        "noise": ObservationNoise(low=-0.01, high=0.01),
    })  # fmt: skip

    def __init__(self, hand: str | None = None, home: Mapping[str, float] | None = None) -> None:
        """`hand` and `home` as in `kit.tasks.reach.arm.find_arm`."""
        self.arm = find_arm(self.robot, hand, home)
        self.model, joints = self.arm.model, self.arm.model.nu
        reach = f"{self.arm.reach_m:.2g} m"
        sees = (
            Field("joint angles", joints, "rad"),
            Field("joint velocities", joints, "rad/s"),
            Field("position of the hand, from the middle of all goals", 3, reach),
            Field("position of the goal, from the middle of all goals", 3, reach),
            Field("vector from the hand to the goal", 3, f"{self.arm.reach_m / 2:.2g} m"),
        )
        near = f"the hand is within {100 * NEAR * self.arm.reach_m:.0f} cm of the goal"
        self.task_info = TaskInfo(
            sees={"": sees},
            does=(Field("joint velocities", joints, "rad/s"),),
            pays=(
                (PROGRESS / self.arm.reach_m, "per metre that the hand moves closer to the goal"),
                (SUCCESS_BONUS, f"once, when {near}"),
                (-EFFORT_COST, "per step, times the sum of squared actions"),
            ),
            ends=near,
            succeeds=near,
            robot=self.arm.found,
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (joints,), np.float32)
        self.observation_space = numbers(sees)

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        self.hand_w = sim.site_xpos[:, self.model.site(HAND).id]
        self._goal_w = sim.mocap_pos[:, self.model.body(GOAL).mocapid[0]]
        self._joint_ids = torch.arange(self.model.njnt, device=sim.device)
        self._home, self._goals_w, self._centre_w = (
            torch.as_tensor(x, dtype=sim.dtype, device=sim.device)
            for x in (self.arm.home, self.arm.goals, self.arm.centre)
        )

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        sim, n = self.sim, self.sim.n
        noise = torch.rand(n, self.model.nq, generator=generator, dtype=sim.dtype, device=sim.device)
        choice = torch.randint(len(self._goals_w), (n,), generator=generator, device=sim.device)
        qpos = self._home + START_NOISE_RAD * (2 * noise - 1)
        sim.reset(mask, qpos=qpos, ctrl=torch.zeros_like(sim.ctrl), mocap_pos=self._goals_w[choice].unsqueeze(1))

    def act(self, action: torch.Tensor) -> None:
        self._distance_before = self._distance
        self.sim.ctrl.copy_(action)

    def measure(self) -> None:
        self._to_goal_w = self._goal_w - self.hand_w
        self._distance = self._to_goal_w.norm(dim=1)
        self._near = self._distance < NEAR * self.arm.reach_m

    def observe(self) -> torch.Tensor:
        places = (self.hand_w - self._centre_w, self._goal_w - self._centre_w, 2 * self._to_goal_w)
        return torch.cat([self.sim.qpos, self.sim.qvel, *[place / self.arm.reach_m for place in places]], 1)

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        progress = (self._distance_before - self._distance) / self.arm.reach_m
        self._terms = {
            "progress": PROGRESS * progress,
            "success": SUCCESS_BONUS * self._near.to(progress.dtype),
            "effort": -EFFORT_COST * vecdot(action, action),
        }
        return sum(self._terms.values(), start=torch.zeros_like(progress))

    def terminated(self) -> torch.Tensor:
        return self._near

    def success(self) -> torch.Tensor:
        return self._near

    def straight(self) -> torch.Tensor:
        """Scripted policy: move the hand straight to the goal. Returns actions (n, joints)."""
        return self.toward(self._goal_w)

    def toward(self, target_w: torch.Tensor) -> torch.Tensor:
        """Return actions (n, joints) that move the hand in a straight line to `target_w` (n, 3), world frame, m."""
        return joint_speeds_towards(self.sim, self._joint_ids, self.hand_w, target_w)

    def info(self) -> dict[str, torch.Tensor]:
        return {"distance": self._distance, **{f"reward/{name}": term for name, term in self._terms.items()}}
