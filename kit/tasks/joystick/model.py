"""MuJoCo models of Unitree's G1 and Go1 from the MuJoCo Menagerie, with flat ground, foot contacts and sensors."""

from __future__ import annotations

import mujoco
import numpy as np

from kit.sim.studio import studio
from kit.tasks.joystick.cameras import CAMERAS, add_arrow
from kit.tasks.robot_file import fetch

SITE_BASE, SITE_TORSO, FEET = "base", "torso", "foot{}"
"""Names of sites, the same for every robot; see `add_sensors`."""

_GEOM, _SITE = mujoco.mjtObj.mjOBJ_GEOM, mujoco.mjtObj.mjOBJ_SITE
_FOUND, _FORCE = (1 << int(field) for field in (mujoco.mjtConDataField.mjCONDATA_FOUND,
                                                mujoco.mjtConDataField.mjCONDATA_FORCE))  # fmt: skip
_NET_FORCE = 3  # reduction mode of a contact sensor: the sum over all contacts


def g1_model(legs_only: bool = False) -> mujoco.MjModel:
    """Build the G1: humanoid, 29 joints, 33 kg, standing with bent knees in key frame "home"; physics at 250 Hz.

    Contacts: feet with floor, feet with each other and with the shins, hands with thighs. With `legs_only`, waist and
    arms are fixed in their home pose, and the 12 joints of the legs have stiffer motors.
    """
    spec = fetch("unitree_g1", "scene_mjx")
    spec.delete(spec.geom("floor"))  # also deletes its contact pairs
    for pair in list(spec.pairs):
        spec.delete(pair)
    dress(spec)
    sides = ("left", "right")
    feet = [f"{side}_foot_box_collision" for side in sides]
    for foot in feet:
        stand_on_floor(spec, foot, friction=0.6)
    crossed = [(feet[0], feet[1]), (feet[0], "right_shin_collision"), (feet[1], "left_shin_collision")]
    touching = [(f"{side}_hand_collision", f"{side}_thigh_collision") for side in sides]
    for one, two in crossed + touching:
        spec.add_pair(geomname1=one, geomname2=two, condim=1)
    add_sensors(spec, base="imu_in_pelvis", torso="imu_in_torso", feet=[f"{side}_foot" for side in sides], soles=feet)
    for number, pair in enumerate(crossed):
        _add_contact_sensor(spec, f"crossed{number}", *pair)
    for number, pair in enumerate(touching):
        _add_contact_sensor(spec, f"touching{number}", *pair)
    for key in list(spec.keys):
        if key.name != "knees_bent":
            spec.delete(key)
    spec.key("knees_bent").name = "home"
    return _legs_only(spec).compile() if legs_only else spec.compile()


G1_LEG_GAINS = {"hip": (100.0, 2.0), "knee": (150.0, 4.0), "ankle": (40.0, 2.0)}
"""Part of a joint's name -> stiffness, N m/rad, and damping, N m s/rad: those of Unitree's own walking example for the
G1 with 12 joints (unitree_rl_gym, legged_gym/envs/g1/g1_config.py)."""


def _legs_only(spec: mujoco.MjSpec) -> mujoco.MjSpec:
    """Fix all hinges except the legs' at their angle in key frame "home", and set `G1_LEG_GAINS`."""
    model = spec.compile()
    home, ctrl = model.key("home").qpos, model.key("home").ctrl

    def gains(joint: str) -> tuple[float, float] | None:
        return next((values for part, values in G1_LEG_GAINS.items() if part in joint), None)

    targets = [float(ctrl[model.actuator(actuator.name).id]) for actuator in spec.actuators if gains(actuator.target)]
    for actuator in list(spec.actuators):
        if values := gains(actuator.target):
            actuator.set_to_position(kp=values[0], kv=values[1])
        else:
            spec.delete(actuator)
    angles = list(home[:7])
    for joint in list(spec.joints):
        angle = float(home[int(model.joint(joint.name).qposadr[0])])
        if gains(joint.name):
            angles.append(angle)
        elif joint.type == mujoco.mjtJoint.mjJNT_HINGE:  # its anchor is the body's origin
            turn, turned = np.zeros(4), np.zeros(4)
            mujoco.mju_axisAngle2Quat(turn, joint.axis, angle)
            mujoco.mju_mulQuat(turned, joint.parent.quat, turn)
            joint.parent.quat = turned
            spec.delete(joint)
    spec.delete(spec.key("home"))
    spec.add_key(name="home", qpos=angles, ctrl=targets)
    return spec


def go1_model() -> mujoco.MjModel:
    """Build the Go1: quadruped, 12 joints, 13 kg, standing in key frame "home"; physics at 250 Hz."""
    spec = fetch("unitree_go1", "go1")
    simplify_physics(spec)
    for actuator in spec.actuators:  # gains of walking controllers for the real Go1
        actuator.set_to_position(kp=35.0)
        spec.joint(actuator.target).damping = [0.5, 0, 0]
    spec.material("dark").rgba = [0.32, 0.33, 0.35, 1]
    feet = ["FR", "FL", "RR", "RL"]
    dress(spec)
    for foot in feet:
        stand_on_floor(spec, foot, friction=0.6)
    add_sensors(spec, base="imu", torso="imu", feet=feet, soles=feet)
    return spec.compile()


def simplify_physics(spec: mujoco.MjSpec) -> None:
    """Set physics of 250 Hz with few solver iterations, and switch all contacts off; explicit pairs come later."""
    spec.option.timestep, spec.option.integrator = 0.004, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone, spec.option.impratio = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1.0
    spec.option.iterations, spec.option.ls_iterations = 5, 8
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 0


def dress(spec: mujoco.MjSpec) -> None:
    """Add lights, ground, cameras and the command arrow. `kit.tasks.joystick.cameras` moves cameras and arrow."""
    studio(spec, soft=True)
    spec.geom("floor").contype = spec.geom("floor").conaffinity = 0  # contacts only by explicit pairs
    add_arrow(spec)
    for name in CAMERAS:
        spec.worldbody.add_camera(name=name, fovy=45)


def stand_on_floor(spec: mujoco.MjSpec, geom: str, friction: float) -> None:
    spec.add_pair(name=f"{geom}_floor", geomname1=geom, geomname2="floor", condim=3,
                  friction=[friction, friction, 0.005, 0.0001, 0.0001])  # fmt: skip


def add_sensors(
    spec: mujoco.MjSpec, base: str, torso: str, feet: list[str], soles: list[str], sole: mujoco.mjtObj = _GEOM
) -> None:
    """Add sites and sensors, with the same names for every robot.

    `base`, `torso` and `feet` are names of sites of the robot; `soles` are names of geoms, or of bodies (`sole`).
    """
    for name, original in {
        SITE_BASE: base,
        SITE_TORSO: torso,
        **{FEET.format(i): f for i, f in enumerate(feet)},
    }.items():
        site = spec.site(original)
        site.parent.add_site(name=name, pos=site.pos, quat=site.quat, group=5)
    kinds = mujoco.mjtSensor
    for name, kind, place in (
        ("linvel_b", kinds.mjSENS_VELOCIMETER, SITE_BASE),  # m/s, in the base's frame
        ("gyro_b", kinds.mjSENS_GYRO, SITE_BASE),  # rad/s, in the base's frame
        ("linvel_w", kinds.mjSENS_FRAMELINVEL, SITE_BASE),
        ("angvel_w", kinds.mjSENS_FRAMEANGVEL, SITE_BASE),
        ("torso_angvel_w", kinds.mjSENS_FRAMEANGVEL, SITE_TORSO),
        ("torso_up_w", kinds.mjSENS_FRAMEZAXIS, SITE_TORSO),
        *((f"foot{i}_linvel_w", kinds.mjSENS_FRAMELINVEL, FEET.format(i)) for i in range(len(feet))),
    ):
        spec.add_sensor(name=name, type=kind, objtype=_SITE, objname=place)
    for i, name in enumerate(soles):
        _add_contact_sensor(spec, f"foot{i}_contact", name, "floor", force=True, kind=sole)


def _add_contact_sensor(
    spec: mujoco.MjSpec, name: str, one: str, other: str, force: bool = False, kind: mujoco.mjtObj = _GEOM
) -> None:
    """Add a sensor of contacts between a geom or body (`kind`) and a geom: number of contacts and, with `force`, their
    net force (3,), N."""
    spec.add_sensor(name=name, type=mujoco.mjtSensor.mjSENS_CONTACT, objtype=kind, objname=one, reftype=_GEOM,
                    refname=other, intprm=[_FOUND | (_FORCE if force else 0), _NET_FORCE, 1])  # fmt: skip
