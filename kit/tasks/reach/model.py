"""MuJoCo model of a Fetch arm at a table, from Gymnasium-Robotics' files, and goal positions within its reach."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import mujoco
import numpy as np

from kit.errors import UserError
from kit.sim.studio import looking, studio

ARM = tuple(
    f"robot0:{joint}_joint"
    for joint in (
        "shoulder_pan", "shoulder_lift", "upperarm_roll", "elbow_flex", "forearm_roll", "wrist_flex", "wrist_roll",
    )
)  # fmt: skip
EFFORT_LIMITS_NM = (33.8, 131.8, 76.9, 66.2, 29.4, 25.7, 7.4)  # joint torque limits of the real arm
FINGERS = ("robot0:r_gripper_finger_joint", "robot0:l_gripper_finger_joint")
HAND = "robot0:grip"
GOAL = "goal"

REST = np.array([0.0, -0.6, 0.0, 1.4, 0.0, 0.8, 0.0])
"""Joint angles at the start of an episode, rad: arm bent, hand above the table, pointing down."""
FINGER_OPEN_M = 0.05
"""Joint position of each finger of the open gripper; closed is 0."""
TABLE_TOP_M = 0.4

CAMERAS = ("view", "front", "side", "top")
_CAMERA_POSES = {  # camera position and target, world frame, m
    "view": ((2.7, -0.65, 1.75), (1.15, 0.75, 0.85)),
    "front": ((3.5, 0.75, 1.2), (1.0, 0.75, 0.95)),
    "side": ((1.25, -1.45, 1.0), (1.25, 0.75, 0.9)),
    "top": ((1.25, 0.75, 3.0), (1.25, 0.75, 0.4)),
}


def fetch_assets() -> Path:
    """Return the folder of the Fetch model, without importing Gymnasium-Robotics: its envs need an older MuJoCo."""
    spec = importlib.util.find_spec("gymnasium_robotics")
    folder = Path(spec.origin).parent / "envs" / "assets" / "fetch" if spec and spec.origin else None
    if folder is None or not (folder / "reach.xml").is_file():
        raise UserError("the Fetch arm's model files are missing; they come with `pip install gymnasium-robotics`.")
    return folder


@cache
def build_model(goal_radius_m: float = 0.03) -> mujoco.MjModel:
    """Build the model: fixed base, velocity-controlled arm, goal marker without contacts.

    Gravity is compensated, as in the real arm.
    """
    spec = mujoco.MjSpec.from_file(str(fetch_assets() / "reach.xml"))
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.geom("floor0").size = (0, 0, 1)  # infinite
    studio(spec, floor="floor0")
    _fix_the_base(spec)
    drive_the_arm(spec)
    goal = spec.worldbody.add_body(name=GOAL, mocap=True, pos=(1.3, 0.75, 0.8))
    sphere, size = mujoco.mjtGeom.mjGEOM_SPHERE, (goal_radius_m, 0, 0)
    ball = goal.add_geom(name=GOAL, type=sphere, size=size, rgba=(0.9, 0.1, 0.1, 1))
    ball.contype = ball.conaffinity = 0
    for name, (eye, target) in _CAMERA_POSES.items():
        spec.worldbody.add_camera(name=name, pos=eye, fovy=45, quat=looking(np.subtract(target, eye)))
    return spec.compile()


def _fix_the_base(spec: mujoco.MjSpec) -> None:
    """Remove the hand's mocap weld and the joints of base, torso and head, and place the robot at the table."""
    for equality in list(spec.equalities):
        spec.delete(equality)
    spec.delete(spec.body("robot0:mocap"))
    spec.delete(spec.site("target0"))
    for joint in ("slide0", "slide1", "slide2", "torso_lift_joint", "head_pan_joint", "head_tilt_joint"):
        spec.delete(spec.joint(f"robot0:{joint}"))
    spec.body("robot0:base_link").pos = (0.69, 0.75, 0.0)
    spec.body("robot0:torso_lift_link").pos[2] += 0.2


def drive_the_arm(spec: mujoco.MjSpec, fingers: tuple[str, ...] = FINGERS) -> None:
    """Add motors for joint velocities and for the positions of `fingers`; compensate the gravity of the robot."""
    for body in spec.bodies:
        if body.name.startswith("robot0:"):
            body.gravcomp = 1
    for name, effort in zip(ARM, EFFORT_LIMITS_NM, strict=True):
        joint = spec.joint(name)
        joint.damping, joint.stiffness, joint.armature = [1, 0, 0], [0, 0, 0], 0.1
        motor = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        motor.set_to_velocity(kv=100)
        motor.ctrllimited, motor.ctrlrange = True, (-1, 1)  # rad/s
        motor.forcelimited, motor.forcerange = True, (-effort, effort)
    for name in fingers:
        joint = spec.joint(name)
        joint.parent.mass, joint.parent.inertia = 0.1, [1e-4, 1e-4, 1e-4]  # instead of 4 kg: too heavy without the weld
        joint.damping, joint.armature = [200, 0, 0], 1
        motor = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        motor.set_to_position(kp=1000)
        motor.ctrllimited, motor.ctrlrange = True, (0, FINGER_OPEN_M)


@cache
def goal_bank(size: int = 1024) -> np.ndarray:
    """Return random goal positions (size, 3), world frame, m, that the hand can reach; the same on every machine.

    Each position is that of the hand in a random arm pose without contacts. It is above the table, in front of the
    robot, and at least 0.3 m from the hand's position in the start pose.
    """
    model = build_model()
    data = mujoco.MjData(model)
    hand = model.site(HAND).id
    joints = [model.joint(name) for name in ARM]
    limits = np.array([joint.range if model.jnt_limited[joint.id] else (-np.pi, np.pi) for joint in joints])
    arm = [int(joint.qposadr[0]) for joint in joints]
    fingers = [int(model.joint(name).qposadr[0]) for name in FINGERS]

    data.qpos[arm], data.qpos[fingers] = REST, FINGER_OPEN_M
    mujoco.mj_kinematics(model, data)
    rest_w = data.site_xpos[hand].copy()

    rng = np.random.default_rng(0)
    bank: list[np.ndarray] = []
    while len(bank) < size:
        data.qpos[arm] = rng.uniform(*limits.T)
        mujoco.mj_kinematics(model, data)
        position_w = data.site_xpos[hand].copy()
        forward, sideways, up = position_w - (0.0, rest_w[1], TABLE_TOP_M)
        in_front = forward > 1.0 and abs(sideways) < 0.6 and 0.05 < up < 0.85
        if not in_front or np.linalg.norm(position_w - rest_w) < 0.3:
            continue
        mujoco.mj_fwdPosition(model, data)
        if data.ncon == 0:
            bank.append(position_w)
    return np.array(bank)
