"""Tests of the joystick and reach tasks for any robot: what is found in its model, what must be given, training."""

from __future__ import annotations

import math
import os
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import kit
from kit.envs import describe, make_vec
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from kit.tasks.joystick.legged import find_robot
from kit.tasks.reach.arm import find_arm
from kit.tasks.robot_file import torque_limits
from tests.tasks.robots import HOME, LEG, arm, dog, urdf_dog

HEIGHT_M = 2 * 0.2 * math.cos(0.8) + 0.02
"""Height of the trunk of `dog` in its standing pose."""


def menagerie(robot: str):
    try:
        return find_robot(robot)
    except UserError as error:
        pytest.skip(f"no model of the robot: {error}")


def test_a_motor_at_a_site_limits_no_joint():
    """Site and joint both have number 0."""
    model = mujoco.MjModel.from_xml_string("""<mujoco>
      <worldbody><body><joint name="knee"/><geom size=".1"/><site name="foot"/></body></worldbody>
      <actuator>
        <motor site="foot" forcelimited="true" forcerange="-3 3"/>
        <motor joint="knee" forcelimited="true" forcerange="-40 40"/>
      </actuator>
    </mujoco>""")
    assert torque_limits(model, ["knee"]) == [40.0]


def test_an_edited_robot_file_is_read_again(tmp_path):
    path = arm(tmp_path / "arm.xml")
    assert describe(f"reach:{path}").action_space.shape == (4,)
    path.write_text(path.read_text().replace('<joint name="wrist" axis="0 1 0" range="-2 2"/>', ""))
    os.utime(path, ns=(0, 10**9))  # at another time
    assert describe(f"reach:{path}").action_space.shape == (3,)


@pytest.fixture(params=["mjcf", "urdf"])
def my_dog(request, tmp_path: Path) -> Path:
    return dog(tmp_path / "dog.xml") if request.param == "mjcf" else urdf_dog(tmp_path / "dog.urdf")


def test_feet_joints_pose_and_gains_are_found(my_dog):
    found = find_robot(str(my_dog), home=HOME)
    model = found.model
    assert (found.feet, model.nu, model.nq) == (4, 12, 19)
    assert found.height_m == pytest.approx(HEIGHT_M, abs=1e-3) and found.mass_kg == pytest.approx(10.4)
    assert [model.actuator(i).name for i in found.knees] == [f"{leg}_knee" for leg in ("fl", "fr", "rl", "rr")]
    assert model.actuator_gainprm[:, 0] == pytest.approx(35.0), "the torque limit per radian"
    assert model.dof_damping[6:] == pytest.approx(0.7)
    assert model.key("home").qpos[7:10] == pytest.approx([0, 0.8, -1.6])
    assert model.npair == 4, "only the feet touch the ground: neither shins nor trunk"


def test_the_keyframe_of_a_robot_that_is_fixed_in_the_world_is_its_standing_pose(tmp_path):
    pose = [0, 0.8, -1.6] * 4
    key = f'<keyframe><key name="home" qpos="{" ".join(map(str, pose))}"/></keyframe>'
    path = dog(tmp_path / "dog.xml", extra=key)
    path.write_text(path.read_text().replace("<freejoint/>", ""))
    found = find_robot(str(path))
    assert found.model.key("home").qpos[7:] == pytest.approx(pose)
    assert found.height_m == pytest.approx(HEIGHT_M, abs=1e-3)


def test_names_of_the_robots_parts_may_be_those_that_kit_gives(tmp_path):
    own = """<freejoint/><site name="base"/><site name="torso"/><site name="foot0"/><geom name="floor" size="0.01"/>
      <geom name="arrow0" size="0.01"/><geom type="mesh" mesh="arrow"/>"""
    mesh = '<asset><mesh name="arrow" scale="0.1 0.1 0.1" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>'
    pairs = '<contact><pair geom1="ground" geom2="arrow0"/><pair geom1="floor" geom2="arrow0"/></contact>'
    path = dog(tmp_path / "dog.xml", extra=mesh + pairs)
    text = path.read_text().replace("<freejoint/>", own)
    text = text.replace('<joint name="fl_hip"', "<joint").replace('<joint name="fl_thigh"', '<joint name="joint1"')
    path.write_text(text)
    home = {name.replace("fl_thigh", "joint1"): angle for name, angle in HOME.items()}
    model = find_robot(str(path), home=home).model
    assert [model.actuator(i).name for i in range(3)] == ["joint1_", "joint1", "fl_knee"] and model.npair == 4


def test_a_joint_without_limits_is_never_beyond_them(tmp_path):
    """Such as a continuous joint in URDF."""
    free = dog(tmp_path / "dog.xml", LEG.replace(' range="-0.8 0.8"', ""))
    env = make_vec(f"joystick:{free}", 1, env_options={"home": HOME | {"fl_hip": 0.3}})
    assert env.step(torch.zeros(1, 12))[4]["reward/dof_pos_limits"] == 0


def test_the_knee_is_the_last_of_a_bodys_joints(tmp_path):
    knee = '<joint name="{name}_knee"'
    twist = '<joint name="{name}_twist" axis="0 0 1" range="-1 1" actuatorfrcrange="-35 35"/>' + knee
    found = find_robot(str(dog(tmp_path / "dog.xml", LEG.replace(knee, twist))), home=HOME)
    assert [found.model.actuator(i).name for i in found.knees] == [f"{leg}_knee" for leg in ("fl", "fr", "rl", "rr")]


def test_the_menageries_robots_are_understood_without_options():
    """The Go1 as its own task has it: feet, knees and height; the G1 stands on four spheres per foot."""
    go1, g1 = menagerie("unitree_go1"), menagerie("unitree_g1")
    assert (go1.feet, go1.model.nu, round(go1.mass_kg, 1)) == (4, 12, 12.7) and go1.knees == (2, 5, 8, 11)
    own = make_vec("Go1Joystick", 1).task.model
    assert go1.height_m == pytest.approx(own.key("home").qpos[2], abs=0.03)
    assert go1.model.key("home").qpos[7:] == pytest.approx(own.key("home").qpos[7:])
    assert (g1.feet, g1.model.nu, g1.model.npair) == (2, 29, 8) and g1.height_m == pytest.approx(0.79, abs=0.01)


@pytest.mark.parametrize("robot", ["unitree_go1", "unitree_g1", "dog"])
def test_robots_stand_and_observe_what_their_feet_do(robot, tmp_path):
    name = str(dog(tmp_path / "dog.xml")) if robot == "dog" else robot
    if robot != "dog":
        menagerie(robot)
    env = make_vec(f"joystick:{name}", 3, threads=1, env_options={"home": HOME} if robot == "dog" else {})
    assert isinstance(env, TensorEnv) and env.task.name == f"joystick:{name}"
    task, still = env.task, torch.zeros(3, *env.action_space.shape)
    home = task.constant(task.model.key("home").qpos).repeat(3, 1)
    task.sim.reset(torch.ones(3, dtype=torch.bool), qpos=home, ctrl=home[:, 7:])
    timers = {name: torch.full((3, 1), 9.0) for name in ("push_left", "command_left")}
    task.load_state({**task.state(), **timers, "command": torch.zeros(3, 3)})
    for _ in range(50):
        obs, reward, terminated, _, info = env.step(still)
        assert not terminated.any() and obs.isfinite().all() and reward.isfinite().all()
    height = home[0, 2].item()
    assert (task.sim.qpos[:, 2] > 0.75 * height).all(), "it stands for a second"
    assert task.contact.all()
    weight = task.feet_force_w[..., 2].abs().sum(1)
    assert weight == pytest.approx(9.81 * float(task.model.body_mass.sum()), rel=0.2)
    assert info["reward/tracking_lin_vel"].min() > 0.5 * 0.02


def test_a_dog_of_twice_the_size_gets_faster_commands(tmp_path):
    """Speeds grow with the square root of the height: equal Froude numbers."""
    small = make_vec(f"joystick:{dog(tmp_path / 'a.xml')}", 1, env_options={"home": HOME}).task
    tall = LEG.replace("-0.2\"", "-0.4\"").replace("0 0 -0.2", "0 0 -0.4")
    large = make_vec(f"joystick:{dog(tmp_path / 'b.xml', tall)}", 1, env_options={"home": HOME}).task
    ratio = math.sqrt((2 * 0.4 * math.cos(0.8) + 0.02) / HEIGHT_M)
    assert np.divide(large.most_speed, small.most_speed) == pytest.approx([ratio, ratio, 1], rel=1e-3)
    assert large.swing_height_m == pytest.approx(ratio**2 * small.swing_height_m, rel=1e-3)


def test_a_robot_of_ones_own_trains_resumes_and_is_judged(tmp_path, monkeypatch):
    """A few steps only: a walking policy needs millions. The path is relative, as in a notebook."""
    monkeypatch.chdir(tmp_path)
    dog(Path("dog.xml"))
    options = {"home": HOME, "randomize": {"friction": [0.2, 1.2], "motor_gains": True}}
    run = kit.train(
        env="joystick:dog.xml", env_options=options, n_envs=4, total_steps=512, device="cpu", threads=1, eval_every=0,
        overrides={"n_steps": 64, "batch_size": 128}, runs_dir="runs",
    )  # fmt: skip
    assert run.config.env == "joystick:dog.xml" and run.name.startswith("joystick-dog-xml-ppo")
    assert run.config.overrides["gamma"] == 0.97, "the preset of the joystick tasks"
    run = kit.resume(run.path, total_steps=1024)
    assert run.status()["step"] == 1024
    assert kit.evaluate(run, episodes=2)["mean_length"] > 0
    Path("dog.xml").unlink()
    with pytest.raises(UserError, match=r"the robot's file dog\.xml does not exist"):
        kit.resume(run.path, total_steps=2048)


MESH = '<asset><mesh name="hull" file="hull.stl"/></asset>'
TENDON = '<tendon><fixed name="belt"><joint joint="fl_hip" coef="1"/><joint joint="fr_hip" coef="1"/></fixed></tendon>'
WELD = '<equality><weld body1="fl_shin" body2="fr_shin"/></equality>'


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (lambda at: at / "no.xml", {}, "the robot's file"),
        (lambda at: "unitree_goo2", {}, "robot 'unitree_goo2' is not in the MuJoCo Menagerie, nor a .xml or .mjcf"),
        (lambda at: arm(at / "arm.xml"), {}, "joint left slides, and only hinges are supported"),
        (lambda at: dog(at / "dog.xml", extra=TENDON), {}, "has tendons, which are not supported"),
        (lambda at: dog(at / "dog.xml", extra=WELD), {}, "has equality constraints, such as closed loops"),
        (lambda at: dog(at / "dog.xml", LEG.replace('"{name}_hip" axis', '"{name}_hip" type="ball" axis')
                        .replace(' range="-0.8 0.8" actuatorfrcrange="-35 35"', "")), {},
         "joint fl_hip is a ball joint, and only hinges are supported"),
        (lambda at: dog(at / "dog.xml", names=()), {}, "has no joints, so it cannot move"),
        (lambda at: dog(at / "dog.xml", LEG.replace("<geom ", '<geom contype="0" conaffinity="0" ')), {"home": HOME},
         "has no limbs with contacts; name its feet in env_options feet"),
        (lambda at: dog(at / "dog.xml"), {}, "joint fl_knee would stand at 0 rad, outside its range of -2.6 to -0.2"),
        (lambda at: dog(at / "dog.xml", LEG.replace(' actuatorfrcrange="-35 35"', "")), {"home": HOME},
         "joint fl_hip has no torque limit, from which its motor's gains follow; set env_options gains"),
        (lambda at: dog(at / "dog.xml"), {"home": {"fl_ankle": 1}}, "home fl_ankle=1 is not one of"),
        (lambda at: dog(at / "dog.xml"), {"home": [0.1]}, "home=[0.1] must map joints to angles"),
        (lambda at: dog(at / "dog.xml"), {"home": HOME, "feet": ["fl_shin", "paw"]}, "feet: 'paw' is not a body of"),
        (lambda at: dog(at / "dog.xml"), {"home": HOME, "feet": ["fl_shin", "trunk"]},
         "feet: 'trunk' is not a body of"),
        *((lambda at: dog(at / "dog.xml"), {"home": HOME, "feet": feet}, "must be a list of at least two different")
          for feet in ([["a"], 3], [1, 2], ["fl_shin", "fl_shin"], "fl_shin")),
        (lambda at: dog(at / "dog.xml"), {"home": HOME, "gains": [1]}, "gains=[1] must be [kp, kd]"),
        (lambda at: dog(at / "dog.xml"), {"home": HOME, "gains": [math.nan, 1]}, "gains=[nan, 1] must be [kp, kd]"),
        (lambda at: dog(at / "dog.xml"), {"home": HOME, "gains": [1, math.inf]}, "gains=[1, inf] must be [kp, kd]"),
        (lambda at: dog(at / "dog.xml", extra=MESH), {}, "cannot read the model of"),
        (lambda at: dog(at / "dog.xml", names=("fl",)), {"home": {"fl_thigh": 0.8, "fl_knee": -1.6}},
         "only fl_shin reaches the ground in its standing pose"),
        (lambda at: dog(at / "dog.xml"), {"home": HOME, "randomize": {"ice": True}}, "randomize 'ice' is not one of"),
        (lambda at: dog(at / "dog.xml"), {"home": HOME, "randomize": {"friction": [1, 0.2]}}, "is not a range"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_sentence(make, options, sentence, tmp_path):
    robot = make(tmp_path)
    with pytest.raises(UserError) as refused:
        kit.train(env=f"joystick:{robot}", env_options=options, total_steps=100, runs_dir=str(tmp_path / "runs"))
    assert sentence in str(refused.value) and not (tmp_path / "runs").exists()


def test_an_arms_hand_joints_and_goals_are_found(tmp_path):
    """The chain of joints branches into fingers at the palm. The farthest goal is near arms' length from the middle."""
    found = find_arm(str(arm(tmp_path / "arm.xml")))
    model = found.model
    assert [model.joint(i).name for i in range(model.njnt)] == ["pan", "shoulder", "elbow", "wrist"]
    assert model.site("kit/hand").bodyid == model.body("palm").id
    assert model.actuator_forcerange[:, 1] == pytest.approx([30, 30, 15, 50]), "motor, gear, force, none"
    assert found.found == ("hand: palm", "home: all joints at 0")
    assert found.goals.shape == (1024, 3) and (found.goals[:, 2] > 0.05).all()
    from_shoulder = np.linalg.norm(found.goals - [0, 0, 0.2], axis=1)
    assert from_shoulder.max() <= 0.58 + 1e-6 and from_shoulder.max() > 0.5


def test_names_of_an_arms_parts_may_be_those_that_kit_gives(tmp_path):
    path = arm(tmp_path / "arm.xml")
    path.write_text(path.read_text().replace('"turret"', '"goal"').replace('<geom type="box"', '<geom name="floor"'))
    assert find_arm(str(path)).model.body("goal").id


def test_an_arm_whose_mesh_is_missing_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the model of .*hull\.stl"):
        find_arm(str(arm(tmp_path / "arm.xml", MESH)))


def test_any_arm_is_moved_to_its_goals_by_script_and_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arm(Path("arm.xml"))
    env = make_vec("reach:arm.xml", 32, threads=1)
    env.reset(seed=0)
    reached = torch.zeros(32, dtype=torch.bool)
    for _ in range(100):
        _, _, terminated, _, _ = env.step(env.scripted())
        reached |= terminated
    assert reached.double().mean() > 0.6, "straight to the goal, though not around singular poses"
    run = kit.train(env="reach:arm.xml", total_steps=2048, device="cpu", threads=1, runs_dir="runs", eval_every=0)
    assert run.config.overrides["batch_size"] == 256, "Reach's preset; 80 % after 100,000 steps"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hand": "claw"}, "hand='claw' is neither a body nor a site of"),
        ({"home": {"elbow": 9.0}}, "joint elbow would start at 9 rad, outside its range of -2 to 2"),
        ({"home": "up"}, "home='up' must map joints to angles"),
        ({"hand": "base"}, "hand='base' is moved by no joint of"),
        ({"hand": "left"}, "joint left slides, and only hinges are supported"),
    ],
)
def test_wrong_options_of_an_arm_are_refused(options, sentence, tmp_path):
    with pytest.raises(UserError) as refused:
        make_vec(f"reach:{arm(tmp_path / 'arm.xml')}", env_options=options)
    assert sentence in str(refused.value)


def test_a_robot_with_legs_is_not_an_arm(tmp_path):
    with pytest.raises(UserError, match="is not fixed to the world; use env='joystick:"):
        make_vec(f"reach:{dog(tmp_path / 'dog.xml')}")


@pytest.mark.live
@pytest.mark.parametrize(
    ("robot", "feet", "options"),
    [
        ("unitree_go2", 4, {}),
        ("anybotics_anymal_c", 4, {}),
        ("boston_dynamics_spot", 4, {"gains": [120, 2.4]}),
        ("robotis_op3", 2, {"gains": [10, 0.2]}),
    ],
)
def test_downloaded_robots_stand(robot, feet, options):
    """Downloads the models. Each robot stands for half a second while it is told to."""
    env = make_vec(f"joystick:{robot}", 2, env_options=options)
    task = env.task
    home = task.constant(task.model.key("home").qpos).repeat(2, 1)
    task.sim.reset(torch.ones(2, dtype=torch.bool), qpos=home, ctrl=home[:, 7:])
    for _ in range(25):
        assert not env.step(torch.zeros(2, task.model.nu))[2].any()
    assert task.feet_velocity_w.shape[1] == feet and (task.sim.qpos[:, 2] > 0.7 * home[0, 2]).all()


@pytest.mark.live
def test_a_downloaded_arm_reaches_its_goals():
    env = make_vec("reach:franka_emika_panda", 16)
    env.reset(seed=0)
    reached = torch.zeros(16, dtype=torch.bool)
    for _ in range(100):
        reached |= env.step(env.scripted())[2]
    assert env.action_space.shape == (7,) and reached.double().mean() > 0.5
