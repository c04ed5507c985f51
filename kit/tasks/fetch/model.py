"""MuJoCo models of a Fetch arm with an object on a table, from Gymnasium-Robotics' files, and their start states."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import mujoco
import numpy as np

from kit.sim.studio import looking, studio
from kit.tasks.reach.model import FINGERS, GOAL, HAND, drive_the_arm, fetch_assets

OBJECT = "object0"
MOCAP, HAND_BODY = "robot0:mocap", "robot0:gripper_link"
"""The body that pulls the hand, and the body that it pulls (a weld constraint)."""
HAND_QUAT = np.array([1.0, 0.0, 1.0, 0.0])
"""Orientation of the hand, pointing down (w, x, y, z; not normalised)."""
SETTLE_STEPS, SUBSTEPS = 10, 20
"""Env steps until the hand is at its start position, and physics steps per env step."""

_FIXED = {"torso_lift_joint": 0.0013, "head_pan_joint": 0.0, "head_tilt_joint": 0.0}
"""Joint -> fixed position relative to its `ref`, m or rad. In the originals these joints exist, but dampings of 1e3 to
1e11 keep them still. The three slide joints of the base are removed too."""
_CAMERA_POSES = {  # camera position and target, world frame, m
    "view": ((2.45, -0.15, 1.35), (1.2, 0.75, 0.5)),
    "front": ((2.6, 0.75, 0.95), (1.1, 0.75, 0.5)),
    "side": ((1.3, -0.75, 0.8), (1.3, 0.75, 0.5)),
    "top": ((1.3, 0.75, 2.2), (1.3, 0.75, 0.4)),
}
CAMERAS = tuple(_CAMERA_POSES)


class Scene(NamedTuple):
    """A model, and the state in which its episodes begin."""

    model: mujoco.MjModel
    qpos: np.ndarray
    qvel: np.ndarray
    hand_w: np.ndarray
    """Position of the hand at the start, m."""
    object_z: float
    """Height of the object that lies on the table, m."""


@cache
def build_scene(
    file: str, base_x: float, object_w: tuple[float, float, float], hand_above_m: float, joints: bool = False
) -> Scene:
    """Build the scene of `file`, such as "push.xml", with the base at `base_x`, and move the hand to its start.

    `object_w`: where the object is dropped. `hand_above_m`: `gripper_extra_height` of the originals. `joints`: the
    arm has motors in its joints, as in Reach, instead of a weld that pulls its hand.
    """
    if joints:
        pulled = build_scene(file, base_x, object_w, hand_above_m)
        return pulled._replace(model=_build(file, base_x, joints), qvel=np.zeros_like(pulled.qvel))
    return _settled(_build(file, base_x, joints), object_w, hand_above_m)


def _build(file: str, base_x: float, joints: bool) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_file(str(fetch_assets() / file))
    fingers = FINGERS if spec.actuators else ()
    spec.geom("floor0").size = (0, 0, 1)  # infinite
    studio(spec, floor="floor0")
    _fix(spec, base_x, () if fingers else FINGERS)
    if joints:
        for part in [*spec.equalities, *spec.actuators, spec.body(MOCAP)]:
            spec.delete(part)
        drive_the_arm(spec, fingers)
    _mark_the_goal(spec)
    for name, (eye, target) in _CAMERA_POSES.items():
        spec.worldbody.add_camera(name=name, pos=eye, fovy=45, quat=looking(np.subtract(target, eye)))
    model = spec.compile()
    model.eq_data[:, :7] = 0, 0, 0, 0, 0, 0, 1  # as the originals: the weld without offset
    return model


def _fix(spec: mujoco.MjSpec, base_x: float, fingers: tuple[str, ...]) -> None:
    """Remove the joints of base, torso and head, and `fingers`, which some tasks keep closed."""
    for name in ("slide0", "slide1", "slide2"):
        spec.delete(spec.joint(f"robot0:{name}"))
    base = spec.body("robot0:base_link")
    base.pos = np.add(base.pos, (base_x, 0.48, 0.0))
    spec.body("robot0:torso_lift_link").pos[2] += _FIXED["torso_lift_joint"]
    for name in _FIXED:
        spec.delete(spec.joint(f"robot0:{name}"))
    for name in fingers:
        spec.delete(spec.joint(name))


def _mark_the_goal(spec: mujoco.MjSpec) -> None:
    """Replace the goal's site, which the renderer does not draw, and hide the body that pulls the hand."""
    spec.delete(spec.site("target0"))
    if (mocap := spec.body(MOCAP)) is not None:
        for geom in list(mocap.geoms):
            spec.delete(geom)
    goal = spec.worldbody.add_body(name=GOAL, mocap=True, pos=(1.3, 0.75, 0.45))
    ball = goal.add_geom(name=GOAL, type=mujoco.mjtGeom.mjGEOM_SPHERE, size=(0.02, 0, 0), rgba=(0.9, 0.1, 0.1, 1))
    ball.contype = ball.conaffinity = 0
    block = spec.geom(OBJECT)
    block.material, block.rgba = "", (0.95, 0.70, 0.15, 1)


def _settled(model: mujoco.MjModel, object_w: tuple[float, float, float], hand_above_m: float) -> Scene:
    """Move the hand to its start position by the weld, and let the object come to rest on the table."""
    data = mujoco.MjData(model)
    object_at = int(model.joint(f"{OBJECT}:joint").qposadr[0])
    data.qpos[object_at : object_at + 3] = object_w
    mujoco.mj_forward(model, data)
    mocap, hand = int(model.body(MOCAP).mocapid[0]), model.site(HAND).id
    data.mocap_pos[mocap] = data.site_xpos[hand] + (-0.498, 0.005, -0.431 + hand_above_m)
    data.mocap_quat[mocap] = HAND_QUAT
    mujoco.mj_step(model, data, nstep=SETTLE_STEPS * SUBSTEPS)
    hand_w, object_z = data.site_xpos[hand].copy(), float(data.site(OBJECT).xpos[2])
    return Scene(model, data.qpos.copy(), data.qvel.copy(), hand_w, object_z)
