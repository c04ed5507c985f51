"""What people see of a legged robot: cameras that go with it, and an arrow along the way that the command asks for.

Nothing of it is physics. The arrow's parts are fixed geoms under the ground, without contacts; they and the cameras are
put in their places in the poses handed to the renderer, and in no state.
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import torch

from kit.sim import Simulator

CAMERAS = ("view", "side", "front")
"""Beside the robot: from a corner that stays the same, however it turns; from its right; from ahead."""
ARROW_RGB = (0.96, 0.45, 0.10)
LINKS, LINK_M, TIP_M, RADIUS_M = 8, 0.08, 0.12, 0.014
"""The arrow: capsules one behind the other, how far apart at most; its tip's length; half its thickness."""
UNDERGROUND_M = -5.0


class Scene(NamedTuple):
    """Where things are, m."""

    distance: float
    """Of the cameras from the middle of the picture."""
    middle: float
    """Height of the picture's middle above the ground."""
    arrow: float
    """Height of the arrow, and how far ahead of the robot's middle it begins."""
    begins: float
    ahead_s: float
    """How much of the way it shows, s."""


GO1 = Scene(distance=1.9, middle=0.25, arrow=0.48, begins=0.2, ahead_s=0.3)
G1 = Scene(distance=3.0, middle=0.75, arrow=1.45, begins=0.0, ahead_s=0.6)
LOOKS_FROM = {"view": (0.66, -0.66, 0.36), "side": (0.0, -0.98, 0.2), "front": (0.98, 0.0, 0.2)}
"""Directions from the middle to the cameras: ahead, left, up."""


def add_arrow(spec: mujoco.MjSpec) -> None:
    tip = spec.add_mesh(name="arrow", scale=[0.38 * TIP_M, 0.38 * TIP_M, TIP_M / 2])
    tip.make_cone(nedge=24, radius=0)
    kinds = mujoco.mjtGeom
    for i in range(LINKS + 1):
        shape = {"type": kinds.mjGEOM_CAPSULE, "size": [RADIUS_M, LINK_M / 2, 0]}
        if i == LINKS:
            shape = {"type": kinds.mjGEOM_MESH, "meshname": "arrow"}
        spec.worldbody.add_geom(name=f"arrow{i}", rgba=[*ARROW_RGB, 1], pos=[0, 0, UNDERGROUND_M], contype=0,
                                conaffinity=0, **shape)  # fmt: skip


def poses(
    sim: Simulator, scene: Scene, heading_w: torch.Tensor, command: torch.Tensor, moving: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Geoms and cameras as they are to be drawn: MjData's fields, each of leading size n. `heading_w` (n, 2) is
    where the robot faces; the arrow shows its `command` (n, 3) where that says to be `moving` (n,)."""
    model, n = sim.model, sim.n
    found = {name: sim.field(name).clone() for name in ("geom_xpos", "geom_xmat", "cam_xpos", "cam_xmat")}
    here, ahead = sim.qpos[:, :2], heading_w
    left = torch.stack([-ahead[:, 1], ahead[:, 0]], 1)

    time = torch.linspace(0, scene.ahead_s, LINKS + 1, dtype=sim.dtype, device=sim.device).unsqueeze(1)
    way = path(command, scene.begins, time)
    points_w = here + way[..., :1] * ahead + way[..., 1:] * left  # (points, n, 2)
    steps = points_w.diff(dim=0)
    along = torch.where(steps.norm(dim=2, keepdim=True) > 1e-6, steps, ahead.expand_as(steps))
    angles = torch.atan2(along[..., 1], along[..., 0])  # (links, n)
    middles = torch.cat([(points_w[1:] + points_w[:-1]) / 2, points_w[-1:]])
    height = torch.where(moving, scene.arrow, UNDERGROUND_M).expand(LINKS + 1, n)
    places = torch.cat([middles, height.unsqueeze(2)], 2)
    for i, angle in enumerate([*angles, angles[-1]]):
        geom = model.geom(f"arrow{i}").id
        found["geom_xpos"][:, geom], found["geom_xmat"][:, geom] = places[i], lying(angle)

    for name in CAMERAS:
        camera = model.camera(name).id
        x, y, z = LOOKS_FROM[name]
        level = torch.stack([torch.full_like(here[:, 0], x), torch.full_like(here[:, 0], y)], 1)
        if name != "view":
            level = x * ahead + y * left
        to_camera = torch.cat([level, torch.full_like(level[:, :1], z)], 1)
        to_camera = to_camera / to_camera.norm(dim=1, keepdim=True)
        middle = torch.cat([here, torch.full_like(level[:, :1], scene.middle)], 1)
        found["cam_xpos"][:, camera] = middle + scene.distance * to_camera
        found["cam_xmat"][:, camera] = looking(to_camera)
    return found


def path(command: torch.Tensor, begins: float, time: torch.Tensor) -> torch.Tensor:
    """Where a point that is `begins` m ahead of the robot's middle is after `time` (times, 1), s, if the robot does as
    `command` (n, 3) says: (times, n, 2), m, in the robot's frame of now. The integral of a constant twist:
    R(ωt) (b, 0) + ∫ R(ωs) v ds."""
    ahead, left, turning = command.unbind(1)
    angle = turning * time
    sine = time * torch.sinc(angle / torch.pi)  # sin(ωt) / ω
    versine = time * torch.sinc(angle / (2 * torch.pi)) * torch.sin(angle / 2)  # (1 - cos(ωt)) / ω
    x = begins * angle.cos() + ahead * sine - left * versine
    y = begins * angle.sin() + ahead * versine + left * sine
    return torch.stack([x, y], 2)


def lying(angle: torch.Tensor) -> torch.Tensor:
    """Rotations (n, 3, 3) that lay what stands along z down to point along `angle` (n,), rad from the world's x."""
    zero = torch.zeros_like(angle)
    along = torch.stack([angle.cos(), angle.sin(), zero], 1)
    up = torch.stack([zero, zero, zero + 1], 1)
    return torch.stack([up, torch.linalg.cross(along, up), along], 2)


def looking(back: torch.Tensor) -> torch.Tensor:
    """Rotations (n, 3, 3) of upright cameras behind which unit vectors `back` (n, 3) point: columns right, up, back."""
    up = torch.tensor([0.0, 0.0, 1.0], dtype=back.dtype, device=back.device).expand_as(back)
    right = torch.nn.functional.normalize(torch.linalg.cross(up, back), dim=1)
    return torch.stack([right, torch.linalg.cross(back, right), back], 2)
