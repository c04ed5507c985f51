"""Find what a joystick task needs in the model of any legged robot: base, joints, feet, standing pose, motor gains.

    robot = find_robot("unitree_go2")                  # a robot of the MuJoCo Menagerie, by name
    robot = find_robot("my_biped.urdf", feet=["sole_l", "sole_r"], gains=[30, 0.6])  # your own MJCF or URDF

What cannot be found raises a `UserError` that names the option to give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mujoco
import numpy as np

from kit.errors import UserError, suggest
from kit.tasks.joystick.model import add_sensors, dress, simplify_physics, stand_on_floor
from kit.tasks.robot_file import FREE, check_ranges, checked_home, compiled, hinges, home_line, load, torque_limits

SAME_HEIGHT = 0.1
"""How much higher than the robot's lowest point a foot may be, as a fraction of the standing height."""
SOLE = 0.03
"""Thickness of a foot's sole, as a fraction of the standing height. Geoms whose lowest point is in this layer touch the
ground."""
STIFFNESS_PER_RAD, DAMPING_S = 1.0, 0.02
"""Default gains of a motor: kp = torque limit / 1 rad, kd = kp * 0.02 s.

Go1: kp 24 to 36 N m/rad (35 in Go1Joystick). G1: 88 at the hips (75 in G1Joystick)."""
FRICTION = 0.6
ORIGIN = (0, 0, 0, 1, 0, 0, 0)
"""Position and quaternion of a free joint at the origin."""


class Legged(NamedTuple):
    """A legged robot on flat ground, ready for a joystick task."""

    model: mujoco.MjModel
    feet: int
    height_m: float
    """Height of the base above the ground in the standing pose."""
    mass_kg: float
    knees: tuple[int, ...]
    """Indices, among the motors, of the last joint of each leg."""
    found: tuple[str, ...]
    """Feet, home pose and gains, a line each."""


def find_robot(
    robot: str,
    feet: Sequence[str] | None = None,
    home: Mapping[str, float] | None = None,
    gains: Sequence[float] | None = None,
) -> Legged:
    """Build the model of `robot`, a name in the MuJoCo Menagerie or the path of an MJCF or URDF file.

    `feet`: names of the bodies that touch the ground. `home`: joint -> angle, rad, of the standing pose; joints that
    are not named are at 0. `gains`: [kp, kd] of all motors, N m/rad and N m s/rad.
    """
    spec = load(robot)
    base = _float(robot, spec)
    original = compiled(robot, spec)
    joints = hinges(robot, original, 1)
    limits = torque_limits(original, joints)
    kp, kd = _gains(robot, joints, limits, gains)
    data = _standing(robot, original, joints, home)
    soles = _soles(robot, original, data, feet)
    height = float(data.qpos[2] - min(low for geoms in soles.values() for low in geoms.values()))
    angles = [float(data.qpos[original.joint(name).qposadr[0]]) for name in joints]
    _replace_motors(spec, joints, kp, kd, limits)
    for number, site in enumerate(spec.sites):
        site.name = f"robot/{number}"  # cannot clash with the names of the task's own sites
    simplify_physics(spec)
    dress(spec)
    for body, geoms in soles.items():
        for geom in geoms:
            stand_on_floor(spec, geom, FRICTION)
        centre_w = np.mean([data.geom(geom).xpos for geom in geoms], 0)
        centre_b = data.body(body).xmat.reshape(3, 3).T @ (centre_w - data.body(body).xpos)
        spec.body(body).add_site(name=f"kit/{body}", pos=centre_b)
    spec.body(base).add_site(name="kit/base")
    sites = [f"kit/{body}" for body in soles]
    add_sensors(spec, "kit/base", "kit/base", sites, list(soles), mujoco.mjtObj.mjOBJ_BODY)
    spec.add_key(name="home", qpos=[0, 0, height, 1, 0, 0, 0, *angles], ctrl=angles)
    knees = tuple(joints.index(_last_joint(original, body)) for body in soles)
    mass_kg = float(original.body_subtreemass[original.body(base).id])
    gains_of = f"gains: kp {_span(kp)} N m/rad, kd {_span(kd)} N m s/rad"
    home_of = f"{home_line(dict(zip(joints, angles, strict=True)))}; {base} {height:.2g} m above the ground"
    found = (f"feet: {', '.join(soles)}", home_of, gains_of)
    return Legged(compiled(robot, spec), len(soles), height, mass_kg, knees, found)


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _float(robot: str, spec: mujoco.MjSpec) -> str:
    """Return the name of the body that moves freely; give a robot that stands fixed in the world a free joint."""
    roots = list(spec.worldbody.bodies)
    floating = [body for body in roots if any(joint.type == FREE for joint in body.joints)]
    if not floating and len(roots) == 1 and not list(roots[0].joints):
        roots[0].add_freejoint()
        for key in spec.keys:
            if len(key.qpos):
                key.qpos = [*ORIGIN, *key.qpos]
        floating = roots
    if len(floating) != 1:
        raise UserError(f"robot {robot!r} has {len(floating)} bodies with a free joint; a legged robot has one.")
    return str(floating[0].name)


def _gains(
    robot: str, joints: list[str], limits: list[float], gains: Sequence[float] | None
) -> tuple[list[float], list[float]]:
    """Return stiffness, N m/rad, and damping, N m s/rad, of each motor."""
    if gains is not None:
        valid = isinstance(gains, list | tuple) and len(gains) == 2 and all(type(x) in (int, float) for x in gains)
        if not valid or not (0 < gains[0] < math.inf and 0 <= gains[1] < math.inf):
            raise UserError(f"env_options gains={gains!r} must be [kp, kd], N m/rad and N m s/rad, such as [35, 0.5].")
        return [float(gains[0])] * len(joints), [float(gains[1])] * len(joints)
    if missing := [name for name, limit in zip(joints, limits, strict=True) if math.isinf(limit)]:
        raise UserError(
            f"robot {robot!r}: joint {missing[0]} has no torque limit, from which its motor's gains follow; set "
            "env_options gains=[kp, kd], N m/rad and N m s/rad, such as [35, 0.5]."
        )
    kp = [STIFFNESS_PER_RAD * limit for limit in limits]
    return kp, [DAMPING_S * stiffness for stiffness in kp]


def _standing(robot: str, model: mujoco.MjModel, joints: list[str], home: Any) -> mujoco.MjData:
    """Return the state of the standing pose: that of `home`, of a keyframe, or all joints at 0."""
    data = mujoco.MjData(model)
    if home is not None:
        for name, angle in checked_home(robot, joints, home).items():
            data.qpos[model.joint(name).qposadr[0]] = angle
    elif model.nkey:
        names = [model.key(i).name for i in range(model.nkey)]
        preferred = [names.index(name) for name in ("home", "stand", "standing") if name in names]
        data.qpos[:] = model.key(preferred[0] if preferred else 0).qpos
    data.qpos[:7] = ORIGIN
    check_ranges(robot, model, {name: float(data.qpos[model.joint(name).qposadr[0]]) for name in joints}, "stand")
    mujoco.mj_kinematics(model, data)
    return data


def _soles(
    robot: str, model: mujoco.MjModel, data: mujoco.MjData, feet: Sequence[str] | None
) -> dict[str, dict[str, float]]:
    """Return body -> its geoms that touch the ground -> their lowest points, m, for each foot."""
    lows = {
        geom: _lowest(model, data, geom) for geom in range(model.ngeom)
        if model.geom_contype[geom] or model.geom_conaffinity[geom]
    }  # fmt: skip
    bodies = {int(model.geom_bodyid[geom]) for geom in lows}
    if feet is not None:
        base = int(model.jnt_bodyid[0])
        names = {model.body(body).name: body for body in bodies if model.body_weldid[body] not in (0, base)}
        valid = isinstance(feet, list | tuple) and all(isinstance(foot, str) for foot in feet)
        if not valid or len(set(feet)) < max(2, len(feet)):
            raise UserError(f"env_options feet={feet!r} must be a list of at least two different bodies of the robot.")
        for foot in feet:
            if foot not in names:
                moved = f"a body of {robot} that a joint moves and that has contacts"
                raise UserError(f"env_options feet: {foot!r} is not {moved}; {suggest(str(foot), names)}.")
        bodies = {names[name] for name in feet}
    else:
        parents = set(model.body_parentid.tolist())
        bodies = {body for body in bodies if body not in parents and model.body_dofnum[body]}
    if not bodies:
        raise UserError(f"robot {robot!r} has no limbs with contacts; name its feet in env_options feet.")
    by_body = {body: {geom: low for geom, low in lows.items() if model.geom_bodyid[geom] == body} for body in bodies}
    ground = min(min(geoms.values()) for geoms in by_body.values())
    height = max(1e-6, -ground)
    found = {
        body: {geom: low for geom, low in geoms.items() if low < min(geoms.values()) + SOLE * height}
        for body, geoms in sorted(by_body.items())
        if feet is not None or min(geoms.values()) < ground + SAME_HEIGHT * height
    }
    if len(found) < 2:
        raise UserError(
            f"robot {robot!r}: only {model.body(next(iter(found))).name} reaches the ground in its standing pose; set "
            "env_options home to the standing pose, joint -> rad, or feet to its feet."
        )
    return {
        model.body(body).name: {model.geom(geom).name: low for geom, low in geoms.items()}
        for body, geoms in found.items()
    }


def _lowest(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """Return the height of a geom's lowest point, m; for cylinders and ellipsoids, of their box."""
    kinds = mujoco.mjtGeom
    kind, size, up = model.geom_type[geom], model.geom_size[geom], data.geom_xmat[geom].reshape(3, 3)[2]
    z = float(data.geom_xpos[geom, 2])
    if kind == kinds.mjGEOM_SPHERE:
        return z - float(size[0])
    if kind == kinds.mjGEOM_CAPSULE:
        return z - float(size[0] + size[1] * abs(up[2]))
    if kind == kinds.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        first = model.mesh_vertadr[mesh]
        return z + float((model.mesh_vert[first : first + model.mesh_vertnum[mesh]] @ up).min())
    return z + float(model.geom_aabb[geom, :3] @ up - model.geom_aabb[geom, 3:] @ abs(up))


def _last_joint(model: mujoco.MjModel, body: str) -> str:
    """Return the joint that is nearest to `body` on the way to the base, the knee of a quadruped."""
    at = model.body(body).id
    while not model.body_jntnum[at]:
        at = int(model.body_parentid[at])
    return str(model.joint(int(model.body_jntadr[at] + model.body_jntnum[at] - 1)).name)


def _replace_motors(
    spec: mujoco.MjSpec, joints: list[str], kp: list[float], kd: list[float], limits: list[float]
) -> None:
    """Replace all actuators by one for the position of each joint, in the order of `joints`."""
    for part in [*spec.actuators, *spec.keys]:
        spec.delete(part)
    for name, stiffness, damping, limit in zip(joints, kp, kd, limits, strict=True):
        joint = spec.joint(name)
        joint.damping, joint.stiffness = [damping, 0, 0], [0, 0, 0]
        motor = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        motor.set_to_position(kp=stiffness)
        if math.isfinite(limit):
            motor.forcelimited, motor.forcerange = True, (-limit, limit)
