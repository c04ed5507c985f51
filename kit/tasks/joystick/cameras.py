"""Videos of legged robots: cameras that follow the robot, and an arrow along the commanded path.

The simulation does not move cameras and arrow: `poses` computes their poses for the renderer. In the model, the arrow
is below the ground and has no contacts.
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import torch

from kit.sim import Simulator

CAMERAS = ("view", "side", "front")
"""Cameras that follow the robot: "view" from a fixed direction in the world, "side" from its right, "front" from its
front."""
ARROW_RGB = (0.96, 0.45, 0.10)
LINKS, LINK_M, TIP_M, RADIUS_M = 8, 0.08, 0.12, 0.014
"""Size of the arrow, a chain of capsules with a tip: number of capsules, their length (so long that no gaps appear),
length of the tip, and radius."""
UNDERGROUND_M = -5.0


class Scene(NamedTuple):
    """Placement of cameras and arrow for one robot, m."""

    distance: float
    """Distance of the cameras from the point that they look at."""
    middle: float
    """Height above the ground of the point that the cameras look at."""
    arrow: float
    """Height of the arrow."""
    begins: float
    """Distance of the arrow's start ahead of the robot's centre."""
    ahead_s: float
    """Duration of the path that the arrow shows, s."""


GO1 = Scene(distance=1.9, middle=0.25, arrow=0.48, begins=0.2, ahead_s=0.3)
G1 = Scene(distance=3.0, middle=0.75, arrow=1.45, begins=0.0, ahead_s=0.6)
LOOKS_FROM = {"view": (0.66, -0.66, 0.36), "side": (0.0, -0.98, 0.2), "front": (0.98, 0.0, 0.2)}
"""Camera -> direction from its target to the camera: world x, y, z for "view", else (ahead, left, up) of the robot."""


def add_arrow(spec: mujoco.MjSpec) -> None:
    """Add the arrow's geoms, hidden below the ground."""
    tip = spec.add_mesh(name="kit/arrow", scale=[0.38 * TIP_M, 0.38 * TIP_M, TIP_M / 2])
    tip.make_cone(nedge=24, radius=0)
    kinds = mujoco.mjtGeom
    for i in range(LINKS + 1):
        shape = {"type": kinds.mjGEOM_CAPSULE, "size": [RADIUS_M, LINK_M / 2, 0]}
        if i == LINKS:
            shape = {"type": kinds.mjGEOM_MESH, "meshname": "kit/arrow"}
        spec.worldbody.add_geom(name=f"kit/arrow{i}", rgba=[*ARROW_RGB, 1], pos=[0, 0, UNDERGROUND_M], contype=0,
                                conaffinity=0, **shape)  # fmt: skip


def poses(
    sim: Simulator, scene: Scene, heading_w: torch.Tensor, command: torch.Tensor, moving: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return poses of geoms and cameras for the renderer: name of MjData's field -> values of all envs.

    `heading_w` (n, 2): direction that the robot faces. The arrow shows `command` (n, 3) where `moving` (n,) is True.
    """
    model, n = sim.model, sim.n
    fields = {name: sim.field(name).clone() for name in ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat")}
    robot, ahead = sim.qpos[:, :2], heading_w
    left = torch.stack([-ahead[:, 1], ahead[:, 0]], 1)

    time = torch.linspace(0, scene.ahead_s, LINKS + 1, dtype=sim.dtype, device=sim.device).unsqueeze(1)
    points_b = path(command, scene.begins, time)
    points_w = robot + points_b[..., :1] * ahead + points_b[..., 1:] * left  # (points, n, 2)
    steps = points_w.diff(dim=0)
    along = torch.where(steps.norm(dim=2, keepdim=True) > 1e-6, steps, ahead.expand_as(steps))
    angles = torch.atan2(along[..., 1], along[..., 0])  # (links, n)
    centres = torch.cat([(points_w[1:] + points_w[:-1]) / 2, points_w[-1:]])
    height = torch.where(moving, scene.arrow, UNDERGROUND_M).expand(LINKS + 1, n)
    positions = torch.cat([centres, height.unsqueeze(2)], 2)
    for i, angle in enumerate([*angles, angles[-1]]):
        geom = model.geom(f"kit/arrow{i}").id
        fields["geom_xpos"][:, geom], fields["geom_xmat"][:, geom] = positions[i], lying(angle)

    for name in CAMERAS:
        camera = model.camera(name).id
        x, y, z = LOOKS_FROM[name]
        horizontal = torch.stack([torch.full_like(robot[:, 0], x), torch.full_like(robot[:, 0], y)], 1)
        if name != "view":
            horizontal = x * ahead + y * left
        to_camera = torch.cat([horizontal, torch.full_like(horizontal[:, :1], z)], 1)
        to_camera = to_camera / to_camera.norm(dim=1, keepdim=True)
        middle = torch.cat([robot, torch.full_like(horizontal[:, :1], scene.middle)], 1)
        fields["cam_xpos"][:, camera] = middle + scene.distance * to_camera
        fields["cam_xmat"][:, camera] = looking(to_camera)
    return fields


def path(command: torch.Tensor, begins: float, time: torch.Tensor) -> torch.Tensor:
    """Return the path (times, n, 2), m, of a point `begins` m ahead of a robot that follows `command` (n, 3).

    `time` (times, 1) is in s. In the robot's frame at time 0, the path is R(ωt) (begins, 0) + ∫ R(ωs) v ds.
    """
    ahead, left, turning = command.unbind(1)
    angle = turning * time
    sine = time * torch.sinc(angle / torch.pi)  # sin(ωt) / ω
    versine = time * torch.sinc(angle / (2 * torch.pi)) * torch.sin(angle / 2)  # (1 - cos(ωt)) / ω
    x = begins * angle.cos() + ahead * sine - left * versine
    y = begins * angle.sin() + ahead * versine + left * sine
    return torch.stack([x, y], 2)


def lying(angle: torch.Tensor) -> torch.Tensor:
    """Return rotations (n, 3, 3) that turn the z axis to the horizontal direction `angle` (n,), rad from world x."""
    zero = torch.zeros_like(angle)
    along = torch.stack([angle.cos(), angle.sin(), zero], 1)
    up = torch.stack([zero, zero, zero + 1], 1)
    return torch.stack([up, torch.linalg.cross(along, up), along], 2)


def looking(back: torch.Tensor) -> torch.Tensor:
    """Return rotations (n, 3, 3) of upright cameras from unit vectors `back` (n, 3), which point backwards.

    The columns are right, up, back.
    """
    up = torch.tensor([0.0, 0.0, 1.0], dtype=back.dtype, device=back.device).expand_as(back)
    right = torch.nn.functional.normalize(torch.linalg.cross(up, back), dim=1)
    return torch.stack([right, torch.linalg.cross(back, right), back], 2)
