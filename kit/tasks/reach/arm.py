"""Build the model of any robot arm for reaching: a fixed base, velocity-controlled joints, a hand and a goal marker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import mujoco
import numpy as np

from kit.errors import UserError, suggest
from kit.sim.studio import looking, studio
from kit.tasks.robot_file import (
    HINGE,
    check_ranges,
    checked_home,
    compiled,
    hinges,
    home_line,
    load,
    ranges,
    torque_limits,
)  # fmt: skip

HAND, GOAL = "kit/hand", "kit/goal"
GOALS, FLOOR_M = 1024, 0.05
"""Number of goal positions, and their least height above the floor."""
GAIN_S, ARMATURE = 2.0, 0.002
"""Per N m of a joint's torque limit: gain of its velocity motor, N m s/rad, and least armature, kg m²."""
TORQUE_NM = 50.0
"""Torque limit of joints whose model has none."""
FAR = 0.2
"""Least distance of a goal from the hand's start, as a fraction of the greatest distance in the random poses."""


class Arm(NamedTuple):
    """A robot arm on the floor, with a marker for the goal."""

    model: mujoco.MjModel
    home: np.ndarray
    """Joint angles at the start of an episode, rad."""
    goals: np.ndarray
    """Positions (GOALS, 3) that the hand can reach, world frame, m; the same on every machine."""
    centre: np.ndarray
    """Mean of the goals (3,), world frame, m."""
    reach_m: float
    """Greatest distance of a goal from the centre."""
    found: tuple[str, ...]
    """Hand and home pose, a line each."""


def find_arm(robot: str, hand: str | None = None, home: Mapping[str, float] | None = None) -> Arm:
    """Build the arm of `robot`, a name in the MuJoCo Menagerie or the path of an MJCF or URDF file.

    `hand`: name of a body or site; default: where the chain of joints ends or branches into fingers. `home`: joint ->
    angle, rad, of the start; default: a keyframe, or the middle of the joints' ranges. Joints that are not on the way
    to the hand, such as fingers, are welded.
    """
    spec = load(robot)
    original = compiled(robot, spec)
    if original.njnt and original.jnt_type[0] != HINGE and original.body_parentid[original.jnt_bodyid[0]] == 0:
        raise UserError(f"robot {robot!r} is not fixed to the world; use env='joystick:{robot}' if it has legs.")
    position_b, body = _hand(robot, original, hand)
    chain = _chain(original, body)
    if hand is not None and not chain:
        raise UserError(f"env_options hand={hand!r} is moved by no joint of {robot}; name a body or site of the arm.")
    keys = [original.key(i) for i in range(original.nkey)]
    start = {name: float(keys[0].qpos[original.joint(name).qposadr[0]]) for name in chain} if keys else {}
    for part in [*spec.actuators, *spec.keys, *spec.equalities, *spec.tendons]:
        spec.delete(part)
    for joint in list(spec.joints):
        if joint.name not in chain:
            spec.delete(joint)
    limits = torque_limits(original, chain)
    for name, limit in zip(chain, limits, strict=True):
        _drive(spec, name, limit if math.isfinite(limit) else TORQUE_NM)
    for part in spec.bodies:
        part.gravcomp = 1
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 0
    spec.option.timestep, spec.option.integrator = 0.002, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.body(original.body(body).name).add_site(name=HAND, pos=position_b)
    model = compiled(robot, spec)
    joints = hinges(robot, model)
    angles = _start(robot, model, joints, start, {} if home is None else home)
    goals = _goals(robot, model, joints, angles)
    centre = goals.mean(0)
    reach_m = float(np.linalg.norm(goals - centre, axis=1).max())
    _show(spec, centre, reach_m)
    found = (f"hand: {hand or original.body(body).name}", home_line(dict(zip(joints, angles, strict=True))))
    return Arm(compiled(robot, spec), angles, goals, centre, reach_m, found)


def _hand(robot: str, model: mujoco.MjModel, hand: str | None) -> tuple[np.ndarray, int]:
    """Return the position of the hand in the frame of its body, and the body's id."""
    if hand is not None:
        sites = {model.site(i).name: i for i in range(model.nsite)}
        bodies = {model.body(i).name: i for i in range(1, model.nbody)}
        if hand in sites:
            return model.site_pos[sites[hand]].copy(), int(model.site_bodyid[sites[hand]])
        if hand not in bodies:
            known = suggest(str(hand), [*sites, *bodies])
            raise UserError(f"env_options hand={hand!r} is neither a body nor a site of {robot}; {known}.")
        return np.zeros(3), bodies[hand]
    moving = {int(model.body_rootid[body]) for body in model.jnt_bodyid}
    if len(moving) != 1:
        raise UserError(f"robot {robot!r} has {len(moving)} arms; name one hand in env_options hand, a body or site.")
    at = moving.pop()
    while True:
        below = [
            child for child in range(1, model.nbody) if model.body_parentid[child] == at and child != at
            and any(_is_below(model, int(body), child) for body in model.jnt_bodyid)
        ]  # fmt: skip
        if len(below) != 1:
            return np.zeros(3), at
        at = below[0]


def _is_below(model: mujoco.MjModel, body: int, ancestor: int) -> bool:
    while body and body != ancestor:
        body = int(model.body_parentid[body])
    return body == ancestor


def _chain(model: mujoco.MjModel, body: int) -> list[str]:
    """Return the names of the joints on the way from the base to `body`."""
    names: list[str] = []
    while body:
        first = int(model.body_jntadr[body])
        names = [model.joint(first + i).name for i in range(int(model.body_jntnum[body]))] + names
        body = int(model.body_parentid[body])
    return names


def _drive(spec: mujoco.MjSpec, name: str, limit: float) -> None:
    joint = spec.joint(name)
    joint.stiffness, joint.armature = [0, 0, 0], max(float(joint.armature), ARMATURE * limit)
    motor = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    motor.set_to_velocity(kv=GAIN_S * limit)
    motor.ctrllimited, motor.ctrlrange = True, (-1, 1)  # rad/s
    motor.forcelimited, motor.forcerange = True, (-limit, limit)


def _start(
    robot: str, model: mujoco.MjModel, joints: list[str], start: Mapping[str, float], home: Mapping[str, float]
) -> np.ndarray:
    """Return the start angles: those in `home`, else those in `start`, else the middle of the range."""
    middles = ((low + high) / 2 if math.isfinite(low + high) else 0.0 for low, high in ranges(model, joints))
    angles = {**dict(zip(joints, middles, strict=True)), **start, **checked_home(robot, joints, home)}
    check_ranges(robot, model, angles, "start")
    return np.array([angles[name] for name in joints], dtype=float)


def _goals(robot: str, model: mujoco.MjModel, joints: list[str], home: np.ndarray) -> np.ndarray:
    """Return positions (GOALS, 3) of the hand in random poses, above the floor and far from its start."""
    data, hand, rng = mujoco.MjData(model), model.site(HAND).id, np.random.default_rng(0)
    low, high = np.clip(ranges(model, joints), -np.pi, np.pi).T

    def position_w(angles: np.ndarray) -> np.ndarray:
        data.qpos[:] = angles
        mujoco.mj_kinematics(model, data)
        return data.site_xpos[hand].copy()

    start_w = position_w(home)
    tried = np.array([position_w(angles) for angles in rng.uniform(low, high, (8 * GOALS, len(joints)))])
    distance = np.linalg.norm(tried - start_w, axis=1)
    kept = tried[(tried[:, 2] > FLOOR_M) & (distance > FAR * distance.max())]
    if len(kept) < GOALS:
        raise UserError(
            f"robot {robot!r}: its hand is above the floor and far from its start in only {len(kept)} of {len(tried)} "
            "poses; raise its base, or name another hand in env_options hand."
        )
    return kept[:GOALS]


def _show(spec: mujoco.MjSpec, centre: np.ndarray, reach_m: float) -> None:
    """Add the floor, light, the goal marker and cameras."""
    studio(spec)
    spec.geom("floor").contype = spec.geom("floor").conaffinity = 0
    goal = spec.worldbody.add_body(name=GOAL, mocap=True, pos=centre)
    size = (0.04 * reach_m, 0, 0)
    ball = goal.add_geom(name=GOAL, type=mujoco.mjtGeom.mjGEOM_SPHERE, size=size, rgba=(0.9, 0.1, 0.1, 1))
    ball.contype = ball.conaffinity = 0
    for name, direction in {"view": (2.0, -2.0, 1.2), "front": (3.0, 0.0, 0.4), "side": (0.0, -3.0, 0.4)}.items():
        away = np.array(direction) * reach_m
        spec.worldbody.add_camera(name=name, pos=centre + away, fovy=45, quat=looking(-away))
