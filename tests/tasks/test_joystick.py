"""Tests of the joystick tasks: falls, reward terms, commands, pushes, randomisation, snapshots, a trained example."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch

import kit
from kit.envs import make_task, make_vec
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from kit.sim.capacity import touching_pairs
from kit.sim.warp import WarpSim
from kit.tasks.joystick import rewards as r
from kit.tasks.joystick.robots import pose_kept
from kit.tasks.joystick.task import CONTROL_DT_S, SUCCESS_MPS, Joystick

ROBOTS = {"G1Joystick": (29, 103), "Go1Joystick": (12, 48)}


def make_joystick(name: str) -> Joystick:
    try:
        task = make_task(name)
    except UserError as error:
        pytest.skip(f"no model of the robot: {error}")
    assert isinstance(task, Joystick)
    return task


@pytest.fixture(params=ROBOTS)
def env(request) -> TensorEnv:
    return TensorEnv(make_joystick(request.param), 4, threads=1)


@pytest.fixture
def go1() -> TensorEnv:
    return TensorEnv(make_joystick("Go1Joystick"), 4, threads=1)


@pytest.fixture
def g1() -> TensorEnv:
    return TensorEnv(make_joystick("G1Joystick"), 4, threads=1)


def random_actions(env: TensorEnv, steps: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(env.num_envs, *env.action_space.shape, generator=generator) * 2 - 1 for _ in range(steps)]


def change(task: Any, **values: torch.Tensor) -> None:
    """Replace entries of the task's state, such as command_left and push_left (4, 1), s."""
    task.load_state({**task.state(), **values})


def feet_contact(task: Any) -> list[torch.Tensor]:
    """Return each foot's contact sensor (n, 4): number of contacts with the ground, and the force, N."""
    return [task.sensor(f"foot{foot}_contact") for foot in range(task.feet_velocity_w.shape[1])]


def stand(env: TensorEnv, qpos: torch.Tensor | None = None) -> torch.Tensor:
    """Put every robot into its home pose, or into `qpos`, at rest; return the home pose (n, nq)."""
    home = env.task.constant(env.task.model.key("home").qpos).repeat(env.num_envs, 1)
    env.task.sim.reset(torch.ones(env.num_envs, dtype=torch.bool), qpos=home if qpos is None else qpos)
    env.task.measure()
    return home


def test_robots_are_as_documented(env):
    joints, width = ROBOTS[env.task.name]
    assert env.action_space.shape == (joints,) and env.observation_space.shape == (width,)
    assert env.control_dt_s == pytest.approx(0.02)
    model = env.task.model
    assert touching_pairs(model) == []  # contacts by explicit pairs only
    ground = [i for i in range(model.npair) if "floor" in (model.geom(model.pair_geom1[i]).name,
                                                           model.geom(model.pair_geom2[i]).name)]  # fmt: skip
    assert len(ground) == env.task.feet_velocity_w.shape[1] and env.task.cameras[0] == "view"
    assert env.reset(seed=0).shape == (4, width)


def test_steps_are_finite_and_continue_after_a_fall(env):
    env.reset(seed=0)
    ended = torch.zeros(4, dtype=torch.bool)
    for step, action in enumerate(random_actions(env, 150)):
        if step == 75:  # a quadruped does not fall by itself
            tipped, sim = env.task.sim.qpos.clone(), env.task.sim
            tipped[1, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])
            sim.reset(torch.tensor([False, True, False, False]), qpos=tipped)
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs.isfinite().all() and reward.isfinite().all()
        assert (reward >= env.task.least_reward).all()
        assert not (terminated & truncated).any() and info["velocity_error"].shape == (4,)
        ended |= terminated
    assert ended[1] and info["episode_length"][1] < 75, "env 1 was reset"


def test_a_robot_on_its_back_has_fallen(env):
    qpos = stand(env)
    qpos[1, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # half a turn about x
    stand(env, qpos)
    assert env.task.terminated().tolist() == [False, True, False, False]
    assert r.termination(env.task).tolist() == [0, 1, 0, 0]


def test_crossed_feet_end_the_humanoids_episode(g1):
    qpos = stand(g1)
    for side, sign in (("left", -1), ("right", 1)):
        qpos[2, g1.task.model.joint(f"{side}_hip_roll_joint").qposadr[0]] = 0.25 * sign
    stand(g1, qpos)
    assert g1.task.terminated().tolist() == [False, False, True, False]


def test_the_humanoid_with_legs_only_is_the_same_body_with_fixed_arms():
    whole, legs = (make_joystick(name).model for name in ("G1Joystick", "G1Legs"))
    data = [mujoco.MjData(model) for model in (whole, legs)]
    for model, state in zip((whole, legs), data, strict=True):
        mujoco.mj_resetDataKeyframe(model, state, 0)
        mujoco.mj_forward(model, state)
    assert legs.nu == 12 and legs.njnt == 13
    assert data[1].xpos == pytest.approx(data[0].xpos, abs=1e-9), "every body is where it is in the home pose"
    assert data[1].subtree_com[1] == pytest.approx(data[0].subtree_com[1]) and data[1].ctrl == pytest.approx(
        data[0].ctrl[:12]
    )
    left = ["left_hip_pitch", "left_hip_roll", "left_hip_yaw", "left_knee", "left_ankle_pitch", "left_ankle_roll"]
    assert [legs.actuator(i).name.removesuffix("_joint") for i in range(6)] == left
    assert legs.actuator_gainprm[:6, 0].tolist() == [100, 100, 100, 150, 40, 40], "N m/rad"
    assert legs.actuator_biasprm[:6, 2].tolist() == [-2, -2, -2, -4, -2, -2], "N m s/rad"


@pytest.mark.parametrize(("degrees", "falls"), [(44.0, False), (46.0, True)])
def test_the_humanoid_with_legs_only_falls_when_it_tips_over(degrees, falls):
    env = TensorEnv(make_joystick("G1Legs"), 2, threads=1)
    qpos = env.task.sim.qpos.clone()
    half = math.radians(degrees) / 2
    qpos[:, 2], qpos[:, 3:7] = 2.0, torch.tensor([math.cos(half), math.sin(half), 0.0, 0.0])
    env.task.sim.reset(torch.ones(2, dtype=torch.bool), qpos=qpos, qvel=torch.zeros(2, 18), ctrl=qpos[:, 7:])
    env.task.measure()
    assert env.task.terminated().tolist() == [falls] * 2


def test_tracking_is_paid_in_full_when_the_command_is_followed(env):
    stand(env)
    task = env.task
    task.command.copy_(torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.3, 0.4, 0.0], [0.0, 0.0, 1.0]]))
    task.measure()
    e = math.exp(-0.25 / 0.25)  # an error of 0.5 m/s
    assert torch.allclose(r.tracking_lin_vel(task), torch.tensor([1, e, e, 1], dtype=torch.float64), atol=1e-6)
    turning = torch.tensor([1, 1, 1, math.exp(-4)], dtype=torch.float64)
    assert torch.allclose(r.tracking_ang_vel(task), turning, atol=1e-6)
    assert task.moving.tolist() == [False, True, True, True]


def test_success_depends_on_mean_errors_and_falls(go1, monkeypatch):
    go1.reset(seed=0)
    stand(go1)
    task = go1.task
    task.command.zero_()
    change(task, command_left=torch.ones(4, 1), push_left=torch.ones(4, 1))
    velocity = {0: [0.0, 0.3, 0.3, 0.0], 1: [0.0, 0.1, 0.3, 0.0]}  # step -> forward velocity of envs 0 to 3, m/s
    seen = []

    def in_place_of_the_physics(_):
        step = len(seen)
        task.sensor("linvel_b").zero_()[:, 0] = torch.tensor(velocity[step])
        task.sensor("linvel_b")[1, 1] = 0.4 if step == 0 else 0.0
        task.sensor("gyro_b").zero_()[0, 2] = -0.6 if step == 0 else 0.2
        if step == 1:
            task.sensor("torso_up_w")[3] = torch.tensor([0.0, 0.0, -1.0])

    monkeypatch.setattr(task.sim, "step", in_place_of_the_physics)
    for _ in range(2):
        seen.append(go1.step(torch.zeros(4, 12)))
    (_, _, _, _, first), (_, reward, terminated, _, info) = seen
    assert first["velocity_error"].tolist() == pytest.approx([0, 0.5, 0.3, 0])
    assert info["velocity_error"].tolist() == pytest.approx([0, 0.3, 0.3, 0])
    assert info["turning_error"].tolist() == pytest.approx([0.4, 0, 0, 0])
    assert info["falls_per_minute"].tolist() == terminated.tolist() == [False, False, False, True]
    assert info["success"].tolist() == [True, False, False, False]
    tracked = [0.02 * math.exp(-v * v / 0.25) for v in velocity[1]]
    assert info["reward/tracking_lin_vel"].tolist() == pytest.approx(tracked)
    assert info["reward/termination"].tolist() == pytest.approx([0, 0, 0, -0.02])
    terms = sum(value for name, value in info.items() if name.startswith("reward/"))
    assert torch.allclose(terms.clamp(min=0.0), reward.double()) and len(task.rewards) == 16
    assert task.info()["velocity_error"].tolist() == pytest.approx([0, 0.3, 0.3, 0])
    assert task.state()["errors"][3].tolist() == [0, 0, 0], "a new episode has started"


def test_most_commands_are_not_to_stand(env):
    """Standing still must rarely be a success. Draws the commands of 200 robots for an episode, without physics."""
    task = env.task
    generator = torch.Generator().manual_seed(0)

    def chance(width: int) -> torch.Tensor:
        return torch.rand(200, width, generator=generator, dtype=task.dtype)

    task.command = task.first_command(chance(task.command_chances))
    left, speeds = task.command_duration(chance(1)), []
    for _ in range(task.episode_steps):
        left -= CONTROL_DT_S
        changed, again = task.next_command(chance(task.command_chances)), chance(1)
        task.command = torch.where(left <= 0, changed, task.command)
        left = torch.where(left <= 0, task.command_duration(again), left)
        speeds.append(task.command[:, :2].norm(dim=1))
    asked = torch.stack(speeds)
    assert asked.mean() > 0.5 and (asked == 0).double().mean() < 0.15
    assert (asked.mean(0) < SUCCESS_MPS).double().mean() < 0.12, "episodes in which standing still is a success"


def test_penalties_by_hand(go1):
    qpos = stand(go1)
    qpos[1, 7:] += 0.1
    stand(go1, qpos)
    task = go1.task
    task.command.zero_()
    task.command[2, 0] = 1.0
    task.measure()
    assert torch.allclose(r.stand_still(task), torch.tensor([0, 1.2, 0, 0], dtype=torch.float64))
    assert torch.allclose(r.pose(task), torch.tensor([0, 0.12, 0, 0], dtype=torch.float64))
    assert pose_kept(task)[1] == pytest.approx(math.exp(-(8 * 0.01 + 4 * 0.001)))
    task.action.fill_(0.5)
    task.previous_action.fill_(0.25)
    assert torch.allclose(r.action_rate(task), torch.full((4,), 12 / 16, dtype=torch.float64))
    qpos[:, 7] = task.model.jnt_range[1, 1]  # at its hard limit: 2.5 % of the range beyond the soft one
    stand(go1, qpos)
    assert r.dof_pos_limits(task)[0] == pytest.approx(0.025 * (0.863 * 2), rel=1e-6)


def test_the_humanoid_leans_forward_in_any_heading(g1):
    qpos = stand(g1)
    half_yaw = torch.tensor([0.0, 0.5, 1.0, -0.3]) * math.pi / 2
    qpos[:, 3], qpos[:, 6] = half_yaw.cos(), half_yaw.sin()
    stand(g1, qpos)
    assert g1.task.heading_w[1].tolist() == pytest.approx([0, 1])
    assert (r.orientation_leaning(g1.task) < 1e-5).all(), "in the home pose"
    g1.task.sensor("torso_up_w")[:] = torch.tensor([0.0, 0.0, 1.0])
    assert r.orientation_leaning(g1.task).tolist() == pytest.approx([0.073**2] * 4)


def test_contact_force_counts_only_the_vertical_force(g1):
    for sensor, force in zip(feet_contact(g1.task), ([400.0, 300.0, -510.0], [0.0, 0.0, -499.0]), strict=True):
        sensor[:, 1:] = torch.tensor(force)  # N, world frame
    assert r.contact_force(g1.task).tolist() == [10.0] * 4


def test_the_gait_clock_starts_with_the_first_step(g1):
    g1.reset(seed=0)
    for step in range(2):
        g1.step(torch.zeros(4, 29))
        swung = g1.task.state()["phase_rate"] * CONTROL_DT_S * step
        assert torch.allclose(g1.task.phase, torch.cat([swung, swung - math.pi], 1), atol=1e-9)


def test_swing_curve():
    phase = torch.tensor([-1.0, -0.5, 0.0, 0.5, 0.999999]) * math.pi
    assert torch.allclose(r.swing(phase, 0.15), 0.15 * torch.tensor([0.0, 0.5, 1.0, 0.5, 0.0]), atol=1e-4)


def test_time_in_the_air_is_counted_and_paid_on_landing(go1):
    stand(go1)
    task = go1.task
    task.command.fill_(0.5)
    contacts = [1, 1, 0, 0, 0, 0, 0, 0, 1, 1]  # the feet leave the ground for six control steps
    seen, paid = [], []
    for found in contacts:
        task.act(torch.zeros(4, 12, dtype=torch.float64))
        for sensor in feet_contact(task):
            sensor[:, 0] = found  # instead of the physics
        task.measure()
        seen.append(round(float(task.air_time[0, 0]) / CONTROL_DT_S))
        paid.append(float(r.feet_air_time(task)[0]))
    assert seen[1:] == [1, 1, 2, 3, 4, 5, 6, 7, 1]  # includes the step in which the feet touch down
    assert paid[:8] == [0] * 8 and paid[9] == 0
    assert paid[8] == pytest.approx(4 * (7 * 0.02 - 0.1))  # each of four feet, for the time above 0.1 s


def test_commands_stay_in_range_and_change(env):
    env.reset(seed=0)
    task = env.task
    drawn = task.first_command(torch.rand(2000, task.command_chances, generator=torch.Generator().manual_seed(0)))
    assert (drawn.abs() <= task.constant(task.most_speed)).all()
    assert drawn.abs().amax(0).allclose(task.constant(task.most_speed), rtol=0.02)
    if env.task.name == "G1Joystick":
        assert 0.07 < (drawn == 0).all(1).double().mean() < 0.13
    before = task.command.clone()
    for _ in range(3):
        change(task, command_left=torch.tensor([[0.01], [1.0], [1.0], [1.0]]))
        env.step(random_actions(env, 1)[0] * 0)
    assert torch.equal(task.command[1:], before[1:]) and not torch.equal(task.command[0], before[0])


def test_always_moving_commands_are_medium_speeds_in_all_directions(env):
    lesson = TensorEnv(make_task(env.task.name, always_moving=True), 200, threads=1)
    lesson.reset(seed=0)
    task = lesson.task
    for _ in range(2):  # the first command, and the next one
        shares = task.command / task.constant(task.most_speed)
        speed, way = shares[:, :2].norm(dim=1), torch.atan2(shares[:, 1], shares[:, 0])
        assert 1 / 3 <= speed.min() < 0.36 and 0.64 < speed.max() <= 2 / 3
        assert all(((way - to).cos() > 0.9).any() for to in (0, math.pi / 2, math.pi, -math.pi / 2))
        assert 0.45 < shares[:, 2].abs().max() <= 0.5
        before = task.command.clone()
        change(task, command_left=torch.full((200, 1), 0.01))
        lesson.step(torch.zeros(200, *lesson.action_space.shape))
        assert (task.command != before).any(1).all()


def test_training_starts_with_medium_speeds(env):
    """In the first stage commands are those of `always_moving`; in the second they are the task's own."""
    crowd = TensorEnv(make_task(env.task.name), 200, threads=1)
    crowd.start_training(seed=0)
    task = crowd.task
    shares = (task.command / task.constant(task.most_speed))[:, :2].norm(dim=1)
    assert int(crowd.stage) == 0 and shares.min() >= 1 / 3 and shares.max() <= 2 / 3
    task.stage.fill_(1)
    crowd.reset(seed=0)
    shares = (task.command / task.constant(task.most_speed))[:, :2].norm(dim=1)
    assert shares.min() < 0.2 and shares.max() > 0.9
    crowd.start_training(seed=0)
    change(task, command_left=torch.full((200, 1), 0.01))
    crowd.step(torch.zeros(200, *crowd.action_space.shape))
    shares = (task.command / task.constant(task.most_speed))[:, :2].norm(dim=1)
    assert shares.min() >= 1 / 3 and shares.max() <= 2 / 3, "commands that change too"
    assert make_task(env.task.name, always_moving=True).curriculum is None


def test_the_go1_example_walks(tmp_path: Path):
    make_joystick("Go1Joystick")
    example = kit.example("go1", tmp_path)
    assert example.find("best").step == 8_003_584
    for terms in ({}, {"delay": [1, 1]}):  # as usual, and motors 20 ms late, with which a dog that never met them falls
        reached = kit.evaluate(example, episodes=32, env_options={"randomize": terms})
        assert reached["success_rate"] > 0.8 and reached["velocity_error"] < 0.2  # a robot that stands: 0.05 and 0.8


def test_always_moving_must_be_a_bool():
    make_joystick("Go1Joystick")
    with pytest.raises(UserError, match="always_moving='yes' must be true or false"):
        make_task("Go1Joystick", always_moving="yes")


def test_a_reward_term_is_switched_off_by_its_name():
    weights = {"pose": 0, "orientation": -2.5}
    tasks = [make_joystick("Go1Joystick"), make_task("Go1Joystick", weights=weights)]
    plain, changed = (TensorEnv(task, 2, threads=1).step(torch.zeros(2, 12))[-1] for task in tasks)
    assert (changed["reward/pose"] == 0).all() and (plain["reward/pose"] > 0).all()
    assert torch.allclose(changed["reward/orientation"], plain["reward/orientation"] / 2)
    assert [weight for weight, _ in tasks[1].task_info.pays].count(-2.5) == 1, "the task's description says so"
    with pytest.raises(UserError, match="weights poze=0 is not one of the task's; did you mean pose"):
        make_task("Go1Joystick", weights={"poze": 0})
    with pytest.raises(UserError, match="weights pose='no' must be a number"):
        make_task("Go1Joystick", weights={"pose": "no"})


def test_a_push_changes_the_speed_of_the_whole_robot(env):
    qpos = stand(env)
    qpos[:, 2] += 2.0  # in the air
    stand(env, qpos)
    task = env.task
    change(task, push_left=torch.tensor([[0.01], [1.0], [1.0], [1.0]]))
    env.step(torch.zeros(4, task.model.nu))
    pushed, others = env.task.sim.qvel[0, :2].norm(), env.task.sim.qvel[1:, :2].norm(dim=1)
    low, high = task.push_speed
    assert (others < 0.02).all() and low - 0.02 < pushed < high + 0.02 and pushed > 0.05
    speed = env.task.sim.qvel[0, :2].clone()
    env.step(torch.zeros(4, task.model.nu))
    assert torch.allclose(env.task.sim.qvel[0, :2], speed, atol=0.02)  # the push lasts one step
    assert 5.0 - 2 * CONTROL_DT_S <= task.state()["push_left"][0] <= 10.0


def test_snapshots_are_exact(env):
    """A snapshot continues bit for bit through falls, commands, pushes and noise."""
    env.reset(seed=1)
    actions = random_actions(env, 90)
    left = torch.tensor([[0.9, 0.3], [1.0, 0.7], [0.35, 0.9], [0.5, 1.3]])
    change(env.task, command_left=left[:, :1], push_left=left[:, 1:])
    for action in actions[:30]:
        env.step(action)
    saved = env.snapshot()
    other = TensorEnv(make_joystick(env.task.name), 4, seed=7, threads=1)
    other.restore(saved)
    for action in actions[30:]:
        one, two = env.step(action), other.step(action)
        assert all(torch.equal(a, b) for a, b in zip(one[:4], two[:4], strict=True))
        assert all(torch.equal(one[4][name], two[4][name]) for name in one[4])
    one, two = env.snapshot(), other.snapshot()
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_an_older_snapshot_without_errors_is_restored(go1):
    go1.reset(seed=0)
    saved = go1.snapshot()
    saved.pop("task.errors")
    go1.step(random_actions(go1, 1)[0])
    go1.restore(saved)
    assert (go1.task.state()["errors"] == 0).all() and torch.equal(go1.task.command, saved["task.command"])


@pytest.mark.parametrize("simulator", ["C", "Warp"])
def test_randomize_changes_friction_and_mass_per_env(simulator, monkeypatch):
    if simulator == "Warp":
        monkeypatch.setattr("kit.envs.task.make_sim", lambda model, n, *_: WarpSim(model, n, "cpu"))
    env = make_vec("Go1Joystick", 3, env_options={"randomize": True})
    task = env.task
    friction, mass = env.task.sim.parameter("pair_friction"), env.task.sim.parameter("body_mass")
    assert friction.shape == (3, 4, 5) and (friction[:, :, :2] == friction[:, :1, :1]).all()
    assert len(friction[:, 0, 0].unique()) == 3
    assert ((friction[:, 0, 0] >= 0.4) & (friction[:, 0, 0] <= 1.0)).all()
    compiled, torso = task.constant(task.model.body_mass), task.model.body("trunk").id
    change = mass - compiled
    most = 0.1 * compiled + 1e-6
    most[torso] += 1.0
    assert (change.abs() <= most).all() and change[:, torso].abs().max() > 0.1
    before = friction.clone(), mass.clone()
    env.restore({**env.snapshot(), "limit": torch.tensor([1000, 1, 1000])})  # time limits, steps
    truncated = env.step(random_actions(env, 1)[0])[3]
    assert truncated.tolist() == [False, True, False]
    for old, new in zip(before, (friction, mass), strict=True):
        assert torch.equal(old[[0, 2]], new[[0, 2]]) and not torch.equal(old[1], new[1])
    for action in random_actions(env, 3):
        obs, reward, *_ = env.step(action)
        assert obs.isfinite().all() and reward.isfinite().all()
    saved, action = env.snapshot(), random_actions(env, 1, seed=1)[0]
    other = make_vec("Go1Joystick", 3, seed=5, env_options={"randomize": True})
    other.restore(saved)
    assert torch.equal(env.step(action)[0], other.step(action)[0])
