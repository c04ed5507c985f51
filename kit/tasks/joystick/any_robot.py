"""The joystick task of any legged robot: env="joystick:ROBOT", a name in the MuJoCo Menagerie or an MJCF or URDF file.

Rewards and commands are those of the Go1 for robots with three or more feet, and those of walking on two feet for
others. Lengths, speeds and the weights of torque and power are scaled with the robot's height and mass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kit.tasks.joystick import cameras as views
from kit.tasks.joystick import rewards as r
from kit.tasks.joystick.legged import find_robot
from kit.tasks.joystick.robots import Quadruped, pose_kept
from kit.tasks.joystick.task import Rewards

GO1_HEIGHT_M, GO1_MASS_KG = 0.27, 12.7
G1_HEIGHT_M = 0.75

ON_TWO_FEET: Rewards = {
    "tracking_lin_vel": (1.0, r.tracking_lin_vel),
    "tracking_ang_vel": (0.75, r.tracking_ang_vel),
    "lin_vel_z": (-0.5, r.lin_vel_z),
    "ang_vel_xy": (-0.15, r.ang_vel_xy),
    "orientation": (-2.0, r.orientation),
    "feet_air_time": (2.0, r.feet_air_time),
    "feet_slip": (-0.25, r.feet_slip),
    "feet_phase": (1.0, r.feet_phase),
    "stand_still": (-1.0, r.stand_still),
    "termination": (-100.0, r.termination),
    "dof_pos_limits": (-1.0, r.dof_pos_limits),
    "action_rate": (-0.01, r.action_rate),
    "pose": (0.5, pose_kept),
}
"""Rewards on two feet: those of the G1 without the terms for hands, hips, knees and contact force. `lin_vel_z`,
`orientation`, `feet_slip`, `action_rate` and `pose` are the quadruped's terms."""


class AnyRobot(Quadruped):
    """A legged robot tracks a commanded velocity. Base, joints, feet, standing pose and gains come from its model."""

    robot: ClassVar[str]
    """A name in the MuJoCo Menagerie, or the path of an MJCF or URDF file."""

    def __init__(
        self,
        always_moving: bool = False,
        weights: Mapping[str, float] | None = None,
        feet: Sequence[str] | None = None,
        home: Mapping[str, float] | None = None,
        gains: Sequence[float] | None = None,
    ) -> None:
        """`feet`, `home` and `gains` as in `kit.tasks.joystick.legged.find_robot`."""
        found = find_robot(self.robot, feet, home, gains)
        self.knees = found.knees
        size = found.height_m / (G1_HEIGHT_M if found.feet == 2 else GO1_HEIGHT_M)
        speed = math.sqrt(size)  # equal Froude numbers v²/(g h), as animals of different size walk (Alexander, 1989)
        if found.feet == 2:
            self.rewards, self.clocked, self.least_reward = ON_TWO_FEET, True, -math.inf  # type: ignore[misc]
            self.most_speed = (1.0 * speed, 0.5 * speed, 1.0)
            self.swing_height_m, self.air_time_s = 0.15 * size, (0.2 * speed, 0.5 * speed)
        else:
            weight = found.mass_kg / GO1_MASS_KG
            scale = {"torques": 1 / (weight * size), "energy": 1 / (weight * speed)}
            self.rewards = {  # type: ignore[misc]
                name: (cost * scale.get(name, 1.0), term) for name, (cost, term) in Quadruped.rewards.items()
            }
            self.most_speed = (1.5 * speed, 0.8 * speed, 1.2)
            self.swing_height_m, self.air_time_s = 0.1 * size, (0.1 * speed, math.inf)
        height = found.height_m
        self.scene = views.Scene(
            distance=1.4 + 2.0 * height, middle=0.95 * height, arrow=1.8 * height, begins=0.7 * height, ahead_s=0.4
        )
        super().__init__(found.model, always_moving, weights)
        self.task_info = self.task_info._replace(robot=found.found)
