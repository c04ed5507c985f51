"""Joystick tasks for Unitree's humanoid G1 and quadruped Go1; base class of the tasks for any legged robot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch.linalg import vecdot

from kit.sim import Simulator
from kit.tasks.joystick import cameras as views
from kit.tasks.joystick import rewards as r
from kit.tasks.joystick.model import g1_model, go1_model
from kit.tasks.joystick.task import Joystick, Rewards, between


def joint_deviation_hip(task: G1Joystick) -> torch.Tensor:
    """Deviation of the hips from the home pose, rad; without hip roll while the command is to move left."""
    deviation = task.joint_offset.abs()
    sideways = (task.command[:, 1] > 0.1).unsqueeze(1)
    return deviation[:, task.hip_yaw].sum(1) + deviation[:, task.hip_roll].masked_fill(sideways, 0.0).sum(1)


def joint_deviation_knee(task: G1Joystick) -> torch.Tensor:
    """Deviation of the knees from the home pose, rad."""
    return task.joint_offset[:, task.knee].abs().sum(1)


def collision(task: G1Joystick) -> torch.Tensor:
    """A hand touches a thigh."""
    return task.touching("touching0", "touching1").to(task.joints.dtype)


class G1Joystick(Joystick):
    """A humanoid with 29 joints walks at a commanded velocity. A fall, or a foot hitting the other foot or a shin, ends
    the episode."""

    name = "G1Joystick"
    ends = "the robot falls, or a foot hits the other foot or a shin"
    train_steps = 100_000_000
    scene = views.G1
    rewards: ClassVar[Rewards] = {
        "tracking_lin_vel": (1.0, r.tracking_lin_vel),
        "tracking_ang_vel": (0.75, r.tracking_ang_vel),
        "ang_vel_xy": (-0.15, r.ang_vel_xy),
        "orientation": (-2.0, r.orientation_leaning),
        "feet_air_time": (2.0, r.feet_air_time),
        "feet_slip": (-0.25, r.feet_slip_base),
        "feet_phase": (1.0, r.feet_phase),
        "stand_still": (-1.0, r.stand_still),
        "termination": (-100.0, r.termination),
        "collision": (-0.1, collision),
        "contact_force": (-0.01, r.contact_force),
        "joint_deviation_knee": (-0.1, joint_deviation_knee),
        "joint_deviation_hip": (-0.25, joint_deviation_hip),
        "dof_pos_limits": (-1.0, r.dof_pos_limits),
        "pose": (-0.1, r.pose),
    }
    swing_height_m = 0.15
    air_time_s = (0.2, 0.5)
    most_foot_force_n = 500.0
    push_speed = (0.1, 2.0)
    start_joint_scale = (0.5, 1.5)
    joint_friction_scale = (0.5, 2.0)
    clocked = True

    most_speed = (1.0, 0.5, 1.0)
    stand_probability = 0.1
    command_chances = 4
    command_s = 10.0

    legs_only = False

    def __init__(self, always_moving: bool = False, weights: Mapping[str, float] | None = None) -> None:
        super().__init__(g1_model(self.legs_only), always_moving, weights)

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)

        def joints(name: str) -> torch.Tensor:
            names = [f"{side}_{name}_joint" for side in ("left", "right")]
            return self.indices([int(self.model.joint(name).qposadr[0]) - 7 for name in names])

        self.hip_roll, self.hip_yaw, self.knee = joints("hip_roll"), joints("hip_yaw"), joints("knee")

    def first_command(self, chance: torch.Tensor) -> torch.Tensor:
        stand = chance[:, 3:] < self.stand_probability
        return (between(chance[:, :3], -1.0, 1.0) * self._most_speed).masked_fill_(stand, 0.0)

    def next_command(self, chance: torch.Tensor) -> torch.Tensor:
        return self.first_command(chance)

    def command_duration(self, chance: torch.Tensor) -> torch.Tensor:
        return torch.full_like(chance, self.command_s)

    def has_fallen(self) -> torch.Tensor:
        return super().has_fallen() | self.touching("crossed0", "crossed1", "crossed2")


class G1Legs(G1Joystick):
    """The humanoid G1 walks with the 12 joints of its legs; waist and arms are fixed.

    It learns sooner than with all joints: its motors are stiffer, starts and pushes are gentler, an episode ends as
    soon as it tips over, and no step has a negative reward. Trained on two cores,
    it stands and walks backwards, and does not walk ahead.
    """

    name = "G1Legs"
    ends = "the torso tilts by more than 45°, or a foot hits the other foot or a shin"
    train_steps = 6_000_000
    rewards: ClassVar[Rewards] = {
        name: term for name, term in G1Joystick.rewards.items() if name not in ("termination", "collision")
    }
    least_reward = 0.0
    most_tilt_rad = math.pi / 4
    push_speed = (0.1, 0.5)
    start_speed = 0.1
    start_joint_scale = (0.9, 1.1)
    legs_only = True

    def has_fallen(self) -> torch.Tensor:
        return super().has_fallen() | (self.sensor("torso_up_w")[:, 2] < math.cos(self.most_tilt_rad))


def pose_kept(task: Quadruped) -> torch.Tensor:
    """Joints close to the home pose, exp(-weighted squared deviation), with a small weight for the knees."""
    return torch.exp(-vecdot(task.joint_offset.square(), task.joint_costs))


def torques(task: Quadruped) -> torch.Tensor:
    """Motor torques, norm plus sum of absolute values, N m."""
    force = task.actuator_force
    return force.norm(dim=1) + force.abs().sum(1)


def energy(task: Quadruped) -> torch.Tensor:
    """Motor power, W."""
    return (task.sim.qvel[:, 6:] * task.actuator_force).abs().sum(1)


class Quadruped(Joystick):
    """Rewards and commands of a robot with four legs, of the size of a Go1."""

    train_steps = 4_000_000
    scene = views.GO1
    rewards: ClassVar[Rewards] = {
        "tracking_lin_vel": (1.0, r.tracking_lin_vel),
        "tracking_ang_vel": (0.5, r.tracking_ang_vel),
        "lin_vel_z": (-0.5, r.lin_vel_z),
        "ang_vel_xy": (-0.05, r.ang_vel_xy),
        "orientation": (-5.0, r.orientation),
        "dof_pos_limits": (-1.0, r.dof_pos_limits),
        "pose": (0.5, pose_kept),
        "termination": (-1.0, r.termination),
        "stand_still": (-1.0, r.stand_still),
        "torques": (-0.0002, torques),
        "action_rate": (-0.01, r.action_rate),
        "energy": (-0.001, energy),
        "feet_clearance": (-2.0, r.feet_clearance),
        "feet_height": (-0.2, r.feet_height),
        "feet_slip": (-0.1, r.feet_slip),
        "feet_air_time": (0.1, r.feet_air_time_moving),
    }
    least_reward = 0.0
    swing_height_m = 0.1
    air_time_s = (0.1, math.inf)
    push_speed = (0.1, 1.0)
    joint_friction_scale = (0.9, 1.1)

    most_speed = (1.5, 0.8, 1.2)
    move_probability = (0.9, 0.25, 0.5)
    """Probability, for each component of a new command, that it is not zero."""
    change_probability = 0.5
    """Probability, for each component, that it changes when a new command is due."""
    command_chances = 9
    mean_command_s = 5.0
    knees: tuple[int, ...] = (2, 5, 8, 11)
    """Indices of the knee joints, whose deviation from the home pose costs only a tenth."""

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        self._move_probability = self.constant(self.move_probability)
        # Before the first step, so that the values never depend on when the field is first used: the first access
        # computes it from the current state, and steps leave values that are one substep old.
        self.actuator_force = sim.actuator_force  # (n, joints), N m
        self.joint_costs = self.constant([0.1 if i in self.knees else 1.0 for i in range(self.model.nu)])

    def first_command(self, chance: torch.Tensor) -> torch.Tensor:
        return between(chance[:, :3], -1.0, 1.0) * self._most_speed

    def next_command(self, chance: torch.Tensor) -> torch.Tensor:
        move, change = chance[:, 3:6] < self._move_probability, chance[:, 6:] < self.change_probability
        return torch.where(change, self.first_command(chance) * move, self.command)

    def command_duration(self, chance: torch.Tensor) -> torch.Tensor:
        return -self.mean_command_s * torch.log1p(-chance)  # exponential


class Go1Joystick(Quadruped):
    """A quadruped with 12 joints trots at a commanded velocity."""

    name = "Go1Joystick"

    def __init__(self, always_moving: bool = False, weights: Mapping[str, float] | None = None) -> None:
        super().__init__(go1_model(), always_moving, weights)
