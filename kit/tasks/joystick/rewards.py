"""Reward terms of the joystick tasks, each (n,), as MuJoCo Playground documents them; their weights are the task's.
Terms about parts that one robot alone has stand beside it, in robots.py.

Suffixes: _w world frame, _b the base's own frame. SI units.
"""

from __future__ import annotations

import torch
from torch.linalg import vecdot

from kit.tasks.joystick.task import Joystick

TRACKING_SIGMA = 0.25
"""Squared velocity error at which a tracking reward has fallen to 1/e, (m/s)² or (rad/s)²."""
LEAN = 0.073
"""How far ahead the humanoid's torso points where it is up by 1; its waist is bent by as many rad at home."""
PHASE_SIGMA = 0.01
"""Squared foot height error at which `feet_phase` has fallen to 1/e, m²."""


def tracking_lin_vel(task: Joystick) -> torch.Tensor:
    """Velocity along the ground as commanded: 1 when it is, less with the squared error."""
    return torch.exp(squared(task.command[:, :2] - task.sensor("linvel_b")[:, :2]) / -TRACKING_SIGMA)


def tracking_ang_vel(task: Joystick) -> torch.Tensor:
    """Turning as commanded: 1 when it is, less with the squared error."""
    return torch.exp((task.command[:, 2] - task.sensor("gyro_b")[:, 2]).square() / -TRACKING_SIGMA)


def lin_vel_z(task: Joystick) -> torch.Tensor:
    """Squared velocity up or down."""
    return task.sensor("linvel_w")[:, 2].square()


def ang_vel_xy(task: Joystick) -> torch.Tensor:
    """Squared velocity of rolling and pitching."""
    return squared(task.sensor("torso_angvel_w")[:, :2])


def orientation(task: Joystick) -> torch.Tensor:
    """Squared sine of the torso's tilt."""
    return squared(task.sensor("torso_up_w")[:, :2])


def orientation_leaning(task: Joystick) -> torch.Tensor:
    """Squared tilt of the torso from leaning a little forward, as at home."""
    off = task.sensor("torso_up_w").clone()
    off[:, :2] -= LEAN * task.heading_w
    off[:, 2] -= 1.0
    return squared(off)


def termination(task: Joystick) -> torch.Tensor:
    """A fall."""
    return task.terminated().to(task.joints.dtype)


def stand_still(task: Joystick) -> torch.Tensor:
    """Radians that the joints are away from home while the command is to stand."""
    return task.joint_offset.abs().sum(1) * ~task.moving


def pose(task: Joystick) -> torch.Tensor:
    """Squared radians that the joints are away from home."""
    return squared(task.joint_offset)


def dof_pos_limits(task: Joystick) -> torch.Tensor:
    """Radians that joints are beyond their soft limits."""
    return (task.joints - task.joints.clamp(task.soft_low, task.soft_high)).abs().sum(1)


def action_rate(task: Joystick) -> torch.Tensor:
    """Squared change of the action."""
    return squared(task.action - task.previous_action)


def feet_air_time(task: Joystick) -> torch.Tensor:
    """Long steps, paid when a foot comes down: seconds above the least, up to the most that is paid."""
    least, most = task.air_time_s
    return ((task.air_time - least) * task.first_contact).clamp(max=most - least).sum(1)


def feet_air_time_moving(task: Joystick) -> torch.Tensor:
    """Long steps, paid in seconds when a foot comes down; nothing for steps nobody asked for."""
    return feet_air_time(task) * task.moving


def feet_slip(task: Joystick) -> torch.Tensor:
    """Squared speed of feet on the ground, while the command is to move."""
    return (squared(task.feet_velocity_w[..., :2]) * task.contact).sum(1) * task.moving


def feet_slip_base(task: Joystick) -> torch.Tensor:
    """The base's speed, counted once for every foot on the ground."""
    return task.sensor("linvel_w")[:, :2].norm(dim=1) * task.contact.sum(1)


def feet_clearance(task: Joystick) -> torch.Tensor:
    """Feet that move off the height they should swing at."""
    root_speed = task.feet_velocity_w[..., :2].norm(dim=2).sqrt()
    return ((task.feet_z_w - task.swing_height_m).abs() * root_speed).sum(1)


def feet_height(task: Joystick) -> torch.Tensor:
    """Squared share by which a step was too low or too high, when the foot comes down."""
    error = task.swing_peak / task.swing_height_m - 1.0
    return squared(error * task.first_contact) * task.moving


def feet_phase(task: Joystick) -> torch.Tensor:
    """The feet rise and fall with the gait's clock, whenever the robot moves or should."""
    error = squared(task.feet_z_w - swing(task.phase, task.swing_height_m))
    drifting = (task.sensor("linvel_w")[:, :2].norm(dim=1) > 0.1) | (task.sensor("angvel_w")[:, 2].abs() > 0.1)
    return torch.exp(error / -PHASE_SIGMA) * (drifting | task.moving)


def contact_force(task: Joystick) -> torch.Tensor:
    """Newtons by which the load on a foot exceeds what it should bear."""
    return (task.feet_force_w[..., 2].abs() - task.most_foot_force_n).clamp(min=0.0).sum(1)


def squared(vectors: torch.Tensor) -> torch.Tensor:
    """Squared lengths of `vectors` (..., size)."""
    return vecdot(vectors, vectors)


def swing(phase: torch.Tensor, height_m: float) -> torch.Tensor:
    """Height of a foot at `phase` (...,) in [-π, π): up along a smooth curve in the first half, down in the second."""
    x = phase / torch.pi + 1.0  # 0 ... 2
    x = torch.where(x <= 1.0, x, 2.0 - x)
    return height_m * (x**3 + 3 * x**2 * (1 - x))
