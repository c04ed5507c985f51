"""Reward terms of the joystick tasks, each (n,), as documented by MuJoCo Playground.

robots.py has the weights, and the terms that only one robot uses. The first line of each docstring is shown in
the task info. Suffixes: _w world frame, _b frame of the robot's base. SI units.
"""

from __future__ import annotations

import torch
from torch.linalg import vecdot

from kit.tasks.joystick.task import Joystick

TRACKING_SIGMA = 0.25
"""Squared velocity error at which a tracking reward falls to 1/e, (m/s)² or (rad/s)²."""
LEAN = 0.073
"""Angle, rad, by which the humanoid's torso leans forward in the home pose, because its waist is bent. The target of
the torso's up vector is (LEAN, 0, 1) in a frame turned to the robot's heading."""
PHASE_SIGMA = 0.01
"""Squared foot height error at which `feet_phase` falls to 1/e, m²."""


def tracking_lin_vel(task: Joystick) -> torch.Tensor:
    """Tracking of the commanded velocity along the ground, exp(-squared error / 0.25)."""
    return torch.exp(squared(task.command[:, :2] - task.sensor("linvel_b")[:, :2]) / -TRACKING_SIGMA)


def tracking_ang_vel(task: Joystick) -> torch.Tensor:
    """Tracking of the commanded turning speed, exp(-squared error / 0.25)."""
    return torch.exp((task.command[:, 2] - task.sensor("gyro_b")[:, 2]).square() / -TRACKING_SIGMA)


def lin_vel_z(task: Joystick) -> torch.Tensor:
    """Squared vertical velocity of the base."""
    return task.sensor("linvel_w")[:, 2].square()


def ang_vel_xy(task: Joystick) -> torch.Tensor:
    """Squared angular velocity of the torso about the horizontal axes (roll and pitch)."""
    return squared(task.sensor("torso_angvel_w")[:, :2])


def orientation(task: Joystick) -> torch.Tensor:
    """Squared sine of the torso's tilt."""
    return squared(task.sensor("torso_up_w")[:, :2])


def orientation_leaning(task: Joystick) -> torch.Tensor:
    """Squared deviation of the torso from the slight forward lean of the home pose."""
    error = task.sensor("torso_up_w").clone()
    error[:, :2] -= LEAN * task.heading_w
    error[:, 2] -= 1.0
    return squared(error)


def termination(task: Joystick) -> torch.Tensor:
    """1 in the step in which the robot falls, else 0."""
    return task.terminated().to(task.joints.dtype)


def stand_still(task: Joystick) -> torch.Tensor:
    """Deviation of the joints from the home pose, rad, while the command is to stand."""
    return task.joint_offset.abs().sum(1) * ~task.moving


def pose(task: Joystick) -> torch.Tensor:
    """Squared deviation of the joints from the home pose, rad²."""
    return squared(task.joint_offset)


def dof_pos_limits(task: Joystick) -> torch.Tensor:
    """Joint angles beyond the soft limits, rad."""
    return (task.joints - task.joints.clamp(task.soft_low, task.soft_high)).abs().sum(1)


def action_rate(task: Joystick) -> torch.Tensor:
    """Squared change of the action since the last step."""
    return squared(task.action - task.previous_action)


def feet_air_time(task: Joystick) -> torch.Tensor:
    """When a foot touches down: its time in the air minus a minimum, capped, s."""
    low, high = task.air_time_s
    return ((task.air_time - low) * task.first_contact).clamp(max=high - low).sum(1)


def feet_air_time_moving(task: Joystick) -> torch.Tensor:
    """When a foot touches down and the command is to move: its air time minus a minimum, capped, s."""
    return feet_air_time(task) * task.moving


def feet_slip(task: Joystick) -> torch.Tensor:
    """Squared horizontal speed of feet on the ground, while the command is to move."""
    return (squared(task.feet_velocity_w[..., :2]) * task.contact).sum(1) * task.moving


def feet_slip_base(task: Joystick) -> torch.Tensor:
    """Horizontal speed of the base, times the number of feet on the ground."""
    return task.sensor("linvel_w")[:, :2].norm(dim=1) * task.contact.sum(1)


def feet_clearance(task: Joystick) -> torch.Tensor:
    """Deviation of each foot from the swing height, times the square root of the foot's horizontal speed."""
    sqrt_speed = task.feet_velocity_w[..., :2].norm(dim=2).sqrt()
    return ((task.feet_z_w - task.swing_height_m).abs() * sqrt_speed).sum(1)


def feet_height(task: Joystick) -> torch.Tensor:
    """Squared relative error of a foot's peak height, when the foot touches down, while the command is to move."""
    error = task.swing_peak / task.swing_height_m - 1.0
    return squared(error * task.first_contact) * task.moving


def feet_phase(task: Joystick) -> torch.Tensor:
    """Tracking of the gait clock's foot heights, exp(-squared error / 0.01), while the robot moves or should move."""
    error = squared(task.feet_z_w - swing(task.phase, task.swing_height_m))
    drifting = (task.sensor("linvel_w")[:, :2].norm(dim=1) > 0.1) | (task.sensor("angvel_w")[:, 2].abs() > 0.1)
    return torch.exp(error / -PHASE_SIGMA) * (drifting | task.moving)


def contact_force(task: Joystick) -> torch.Tensor:
    """Part of the vertical force on each foot that exceeds a limit, N."""
    return (task.feet_force_w[..., 2].abs() - task.most_foot_force_n).clamp(min=0.0).sum(1)


def squared(vectors: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of `vectors` (..., size)."""
    return vecdot(vectors, vectors)


def swing(phase: torch.Tensor, height_m: float) -> torch.Tensor:
    """Return the target height of a foot at gait `phase` (...,) in [-π, π).

    The height rises smoothly in the first half of the cycle and falls in the second half.
    """
    x = phase / torch.pi + 1.0  # 0 ... 2
    x = torch.where(x <= 1.0, x, 2.0 - x)
    return height_m * (x**3 + 3 * x**2 * (1 - x))
