"""Tests of Reach: joint control, goals, start states, success, rewards, time limit, cameras, scripted policy."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from kit.envs import make_vec
from kit.envs.play import play
from kit.runs.evaluation import Script
from kit.sim import make_sim
from kit.tasks.reach.model import ARM, CAMERAS, FINGER_OPEN_M, HAND, REST, TABLE_TOP_M, build_model, goal_bank
from kit.tasks.reach.task import PRECISION_BONUS, PROGRESS_PER_M, SUCCESS_BONUS, SUCCESS_M

STILL = torch.zeros(1, 7)


def place_goal(env, offset_m: tuple[float, float, float]) -> None:
    """Put the goal at `offset_m` from the hand of the only env."""
    env.task.sim.mocap_pos[0, 0] = hand(env) + torch.tensor(offset_m, dtype=torch.float64)
    env.task.measure()


def hand(env) -> torch.Tensor:
    """Return the position of the only env's hand, m."""
    return env.task.sim.site_xpos[0, env.task.model.site(HAND).id].clone()


def distance(env) -> float:
    """Return the distance from the only env's hand to its goal, m."""
    return (env.task.sim.mocap_pos[0, 0] - hand(env)).norm().item()


def test_each_joint_moves_at_the_commanded_velocity_and_the_others_stay():
    env = make_vec("Reach", len(ARM), seed=0, threads=1)
    for speed in (1.0, -0.5):
        env.reset(seed=0)
        start = env.task.sim.qpos.clone()
        for _ in range(10):  # half a second
            env.step(speed * torch.eye(7))
        velocity, moved = env.task.sim.qvel[:, :7], (env.task.sim.qpos - start)[:, :7]
        assert torch.allclose(velocity.diagonal(), torch.tensor(speed).double(), rtol=0.03)
        assert torch.allclose(moved.diagonal(), torch.tensor(speed / 2).double(), rtol=0.15)
        assert (velocity - velocity.diagonal().diag()).abs().max() < 0.05
        assert (moved - moved.diagonal().diag()).abs().max() < 0.05


def test_the_arm_stays_in_place_with_zero_actions():
    env = make_vec("Reach", 4, seed=0, threads=1)
    start = env.task.sim.qpos[:, :7].clone()
    for _ in range(20):
        env.step(torch.zeros(4, 7))
    assert (env.task.sim.qpos[:, :7] - start).abs().max() < 1e-3
    assert (start - torch.as_tensor(REST)).abs().max() <= 0.1


def test_a_control_step_is_50_ms():
    task = make_vec("Reach", 1).task
    assert task.substeps == 25 and task.control_dt_s == pytest.approx(0.05)


def test_goals_are_in_reach_and_deterministic():
    bank, model = goal_bank(), build_model()
    assert bank.shape == (1024, 3) and len(np.unique(bank, axis=0)) == 1024
    data = mujoco.MjData(model)
    data.qpos[:7], data.qpos[7:] = REST, FINGER_OPEN_M
    mujoco.mj_forward(model, data)
    hand, shoulder = data.site(HAND).xpos, data.body("robot0:shoulder_pan_link").xpos
    assert data.ncon == 0
    assert np.linalg.norm(bank - hand, axis=1).min() > SUCCESS_M + 0.1, "no goal is reached at the start"
    assert np.linalg.norm(bank - shoulder, axis=1).max() < 1.14, "within the length of the arm"
    assert bank[:, 2].min() > TABLE_TOP_M and bank[:, 0].min() >= 1.0
    goal_bank.cache_clear()
    assert np.array_equal(goal_bank(), bank), "the same goals every time"


def test_goals_differ_between_envs_and_episodes():
    env = make_vec("Reach", 64, seed=0, threads=1)
    first = env.task.sim.mocap_pos[:, 0].clone()
    assert len(first.unique(dim=0)) > 55
    env.reset()
    assert not torch.equal(first, env.task.sim.mocap_pos[:, 0])


def contacts(model: mujoco.MjModel, state: torch.Tensor) -> int:
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state.numpy(), mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)
    return int(data.ncon)


def test_nothing_is_touched_at_the_start():
    env = make_vec("Reach", 64, seed=3, threads=1)
    for state in env.snapshot()["sim.state"]:
        assert contacts(env.task.model, state) == 0


def test_success_closes_the_gripper_then_ends_the_episode():
    env = make_vec("Reach", 1, seed=0, threads=1)
    stretch = torch.tensor([[0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0]])
    start = hand(env)
    place_goal(env, (0, 0, 0.5))
    _, _, terminated, _, info = env.step(stretch)
    assert not info["success"] and not terminated and env.task.sim.qpos[0, 7] == pytest.approx(FINGER_OPEN_M, abs=1e-3)

    way = hand(env) - start
    ahead = (SUCCESS_M + 0.005) * way / way.norm()
    place_goal(env, tuple(ahead.tolist()))
    obs, reward, terminated, _, info = env.step(stretch)
    assert info["success"] and not terminated and not info["within_5cm"]
    progress = SUCCESS_M + 0.005 - info["distance"].item()
    assert reward.item() == pytest.approx(SUCCESS_BONUS + PROGRESS_PER_M * progress - 0.002 * 2, abs=1e-5)
    terms = {"progress": PROGRESS_PER_M * progress, "success": SUCCESS_BONUS, "precision": 0, "effort": -0.002 * 2}
    assert {name: info[f"reward/{name}"].item() for name in terms} == pytest.approx(terms, abs=1e-5)
    assert obs[0, -1] == pytest.approx(1, abs=0.02), "the gripper is still open"

    obs, reward, terminated, _, info = env.step(STILL)
    assert info["success"] and not terminated and obs[0, -1] < 0.95 and reward.item() < SUCCESS_BONUS / 2

    place_goal(env, (0, 0, 0.4))  # once reached, it stays a success, however far the goal
    assert env.step(STILL)[4]["success"]
    place_goal(env, (0.03, 0, 0))
    for steps in range(3, 30):  # noqa: B007
        _, reward, terminated, truncated, info = env.step(STILL)
        if terminated:
            break
    assert terminated and not truncated and 6 <= steps <= 14, "about half a second"
    assert info["success"] and info["within_5cm"] and info["episode_length"] == steps + 2
    assert reward.item() == pytest.approx(PRECISION_BONUS * (1 - info["distance"].item() / SUCCESS_M), abs=0.01)
    assert env.task.sim.qpos[0, 7] == pytest.approx(FINGER_OPEN_M), "the next episode starts with an open gripper"


def test_reward_for_moving_closer():
    env = make_vec("Reach", 1, seed=0, threads=1)
    place_goal(env, (0.5, 0, 0))
    before = distance(env)
    _, reward, _, _, info = env.step(torch.tensor([[0.0, 1.0, 0, -1.0, 0, 0, 0]]))
    assert abs(before - distance(env)) > 0.005 and info["distance"].item() == pytest.approx(distance(env))
    assert reward.item() == pytest.approx(PROGRESS_PER_M * (before - distance(env)) - 0.002 * 2, abs=1e-5)


def test_time_limit_without_success():
    env = make_vec("Reach", 2, seed=0, threads=1)
    for _ in range(100):
        _, _, terminated, truncated, info = env.step(torch.zeros(2, 7))
    assert truncated.all() and not terminated.any() and not info["success"].any()


def test_random_actions_rarely_succeed():
    env = make_vec("Reach", 64, seed=0)
    generator = torch.Generator().manual_seed(0)
    episodes = successes = 0
    for _ in range(100):
        action = torch.rand(64, 7, generator=generator) * 2 - 1
        _, _, terminated, truncated, info = env.step(action)
        done = terminated | truncated
        episodes, successes = episodes + done.sum().item(), successes + (done & info["success"]).sum().item()
    assert episodes >= 64 and successes / episodes < 0.1
    env.close()


def test_the_goal_is_seen_but_not_touched():
    model = build_model()
    ball = model.geom("goal")
    assert ball.contype == ball.conaffinity == 0 and model.geom_rgba[ball.id, 3] == 1
    sim = make_sim(model, 1)
    hand = sim.site_xpos[:, model.site(HAND).id].clone()
    sim.mocap_pos[:, 0] = hand
    sim.step(50)
    assert contacts(model, sim.snapshot()["state"][0]) == 0


def test_every_goal_is_in_every_image():
    model = build_model()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    for name in CAMERAS:
        camera = model.camera(name).id
        seen = (goal_bank() - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)  # x right, y up, z backward
        half = np.tan(np.radians(model.cam_fovy[camera]) / 2) * -seen[:, 2]
        assert (half > 0).all() and (np.abs(seen[:, :2]).max(1) < 0.95 * half).all(), name


@pytest.mark.parametrize("camera", CAMERAS)
def test_every_camera_shows_different_goals_in_different_places(camera):
    env = make_vec("Reach", 2, seed=0, threads=1)
    env.task.sim.mocap_pos[:, 0] = torch.tensor([[1.3, 0.35, 1.0], [1.6, 1.2, 0.7]])
    env.task.sim.step()
    pictures = env.render((camera,), 64, 64)
    assert pictures.shape == (2, 1, 64, 64, 3) and pictures.dtype == torch.uint8
    red = (pictures[:, 0, :, :, 0].int() - pictures[:, 0, :, :, 1].int()) > 60
    first, second = (torch.nonzero(r).double().mean(0) for r in red)
    assert (first - second).norm() > 8, "the goals are more than 8 pixels apart"


def test_the_scripted_arm_reaches_every_goal_in_a_straight_line() -> None:
    env = make_vec("Reach", 32, "cpu", 0)
    obs = env.reset(seed=5)
    reached = [now.info["success"][now.ended] for now in play(env, Script(env, "straight"), obs, 1)]
    env.close()
    assert torch.cat(reached).all()
