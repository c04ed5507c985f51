"""Load a robot by its name in the MuJoCo Menagerie, or from an MJCF or URDF file of your own."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from kit.errors import UserError, check_names, need

SUFFIXES = (".xml", ".mjcf", ".urdf")
HINGE, FREE = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_FREE
JOINT_MOTORS = mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT
_KINDS = {mujoco.mjtJoint.mjJNT_SLIDE: "slides", mujoco.mjtJoint.mjJNT_BALL: "is a ball joint", FREE: "moves freely"}


def load(robot: str) -> mujoco.MjSpec:
    """Load a robot's model, delete its sensors, cameras, contact pairs and the world's geoms (the floor), and name
    unnamed parts."""
    path = Path(robot).expanduser()
    if path.suffix not in SUFFIXES:
        spec = fetch(robot)
    elif not path.is_file():
        where = "" if path.is_absolute() else f" in {Path.cwd()}; put it there"
        raise UserError(f"the robot's file {robot} does not exist{where}.")
    else:
        try:
            spec = mujoco.MjSpec.from_file(str(path))
        except ValueError as error:
            raise _unreadable(robot, error) from None
        delete_sensors(spec)
    for part in [*spec.pairs, *spec.worldbody.geoms]:  # pairs first: deleting a geom also deletes its pairs
        spec.delete(part)
    if (geom := spec.geom("floor")) is not None:
        geom.name = ""  # the task's ground has this name
    for kind, parts in (("geom", spec.geoms), ("joint", spec.joints), ("body", spec.bodies)):
        taken = {part.name for part in parts}
        for number, part in enumerate(parts):
            name = f"{kind}{number}"
            while name in taken:
                name += "_"
            part.name = part.name or name
    return spec


def compiled(robot: str, spec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile a robot's model. Raises `UserError` if MuJoCo cannot, for example because a mesh is missing."""
    try:
        return spec.compile()
    except ValueError as error:
        raise _unreadable(robot, error) from None


def _unreadable(robot: str, error: ValueError) -> UserError:
    reason = " ".join(str(error).split()).removeprefix("Error: ").rstrip(".")
    return UserError(f"MuJoCo cannot read the model of {robot}: {reason}; correct the file.")


def fetch(robot: str, entry: str | None = None) -> mujoco.MjSpec:
    """Load a robot's model from the Menagerie without its sensors and cameras.

    `entry`: the name of one of the robot's models there; default: its main one. The Menagerie's package downloads a
    robot on first use and caches it. If the environment variable `MENAGERIE_ROOT` names a folder, the robot is read
    from this folder.
    """
    menagerie = need("mujoco_menagerie", "all")
    if robot not in (names := menagerie.names()):
        close = difflib.get_close_matches(robot.lower(), names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "names there look like unitree_go2."
        files = " or ".join(SUFFIXES)
        raise UserError(f"robot {robot!r} is not in the MuJoCo Menagerie, nor a {files} file; {hint}")
    try:
        spec: mujoco.MjSpec = menagerie.get(robot).spec(entry)
    except (menagerie.MenagerieError, OSError) as error:
        raise UserError(
            f"the model of {robot} could not be fetched ({error}); connect to the internet once, or set MENAGERIE_ROOT "
            "to a folder that holds it."
        ) from error
    delete_sensors(spec)
    return spec


def delete_sensors(spec: mujoco.MjSpec) -> None:
    """Delete the sensors and cameras of `spec`."""
    for part in [*spec.sensors, *spec.cameras]:
        spec.delete(part)


def hinges(robot: str, model: mujoco.MjModel, first: int = 0) -> list[str]:
    """Return the names of the joints from number `first` on, in the order of qpos.

    Raises `UserError` if they are not all hinges, or if tendons or equality constraints tie them together.
    """
    if model.ntendon or model.neq:
        what = "tendons" if model.ntendon else "equality constraints, such as closed loops"
        raise UserError(f"robot {robot!r} has {what}, which are not supported; remove them from a copy of its file.")
    for joint in map(model.joint, range(first, model.njnt)):
        if joint.type[0] != HINGE:
            kind = _KINDS[mujoco.mjtJoint(joint.type[0])]
            raise UserError(
                f"robot {robot!r}: joint {joint.name} {kind}, and only hinges are supported; "
                "delete the joint from a copy of the file, which fixes its body to the parent."
            )
    if model.njnt <= first:
        raise UserError(f"robot {robot!r} has no joints, so it cannot move.")
    return [model.joint(i).name for i in range(first, model.njnt)]


def torque_limits(model: mujoco.MjModel, joints: list[str]) -> list[float]:
    """Return the greatest torque of each joint, N m; infinite if the model has no limit."""
    limits, of_joint = [], np.isin(model.actuator_trntype, JOINT_MOTORS)  # the others turn sites, tendons or bodies
    for name in joints:
        joint = model.joint(name).id
        found = [float(model.jnt_actfrcrange[joint, 1])] if model.jnt_actfrclimited[joint] else []
        for motor in np.flatnonzero(of_joint & (model.actuator_trnid[:, 0] == joint)):
            gear = abs(float(model.actuator_gear[motor, 0]))
            if model.actuator_forcelimited[motor]:
                found.append(gear * float(model.actuator_forcerange[motor, 1]))
            elif model.actuator_biastype[motor] == mujoco.mjtBias.mjBIAS_NONE and model.actuator_ctrllimited[motor]:
                found.append(gear * float(model.actuator_gainprm[motor, 0] * model.actuator_ctrlrange[motor, 1]))
        limits.append(min([limit for limit in found if limit > 0], default=math.inf))
    return limits


def ranges(model: mujoco.MjModel, joints: list[str]) -> list[tuple[float, float]]:
    """Return the range of each joint, rad; infinite if it has no limits."""
    found = [model.joint(name) for name in joints]
    return [
        (float(joint.range[0]), float(joint.range[1])) if model.jnt_limited[joint.id] else (-math.inf, math.inf)
        for joint in found
    ]


def checked_home(robot: str, joints: Sequence[str], home: Any) -> Mapping[str, float]:
    """Check the env option `home`, a mapping joint -> angle in rad, and return it. Raises `UserError`."""
    if not isinstance(home, Mapping) or any(type(angle) not in (int, float) for angle in home.values()):
        raise UserError(f"env_options home={home!r} must map joints to angles in rad, such as knee: 0.8.")
    check_names("env_options home", home, robot, joints)
    return home


def home_line(angles: Mapping[str, float]) -> str:
    """Describe a home pose, joint -> rad, in a line; joints at 0 are not named."""
    bent = [f"{name} {angle:.3g}" for name, angle in angles.items() if abs(angle) > 5e-4]
    if not bent:
        return "home: all joints at 0"
    rest = ", the others 0" if len(bent) < len(angles) else ""
    return f"home: {', '.join(bent)}{rest} (rad)"


def check_ranges(robot: str, model: mujoco.MjModel, angles: Mapping[str, float], verb: str) -> None:
    """Raise `UserError` if an angle (joint -> rad) is out of its joint's range. `verb`, "stand" or "start", is for the
    message."""
    for (name, angle), (low, high) in zip(angles.items(), ranges(model, list(angles)), strict=True):
        if not low - 1e-6 <= angle <= high + 1e-6:
            raise UserError(
                f"robot {robot!r}: joint {name} would {verb} at {angle:g} rad, outside its range of {low:g} to "
                f"{high:g}; set env_options home, joint -> rad."
            )
