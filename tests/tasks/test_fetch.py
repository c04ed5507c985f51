"""Tests of Push, PickAndPlace and Slide: dynamics, observations and rewards against Gymnasium-Robotics' originals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from kit.envs import make_vec
from kit.errors import UserError
from kit.tasks.fetch.model import OBJECT
from kit.tasks.fetch.task import CLEAR_M, LIFT_M, SUCCESS_M

TASKS = ("Push", "PickAndPlace", "Slide")


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """The original env of the test's task. It compares joint types in a way that MuJoCo 4 does not allow."""
    robotics = pytest.importorskip("gymnasium_robotics")
    from gymnasium_robotics.utils import mujoco_utils

    types = SimpleNamespace(**{name: int(value) for name, value in mujoco.mjtJoint.__members__.items()})
    patched = SimpleNamespace(**{**{name: getattr(mujoco, name) for name in dir(mujoco)}, "mjtJoint": types})
    monkeypatch.setattr(mujoco_utils, "mujoco", patched)
    gymnasium.register_envs(robotics)
    return gymnasium.make(f"Fetch{request.getfixturevalue('name')}-v4").unwrapped


def place(env: Any, original: Any) -> None:
    """Put the only env of `env` into the state of `original`: arm, fingers (if they move), object and goal."""
    task, sim, data, model = env.task, env.task.sim, original.data, original.model

    def rows(values: np.ndarray, address: str, width: int) -> torch.Tensor:
        joint = model.joint(f"{OBJECT}:joint")
        arm = int(getattr(model.joint("robot0:shoulder_pan_joint"), address)[0])
        start = int(getattr(joint, address)[0])
        last = arm + (9 if task.model.nu else 7)
        return torch.as_tensor(np.concatenate([values[arm:last], values[start : start + width]])).unsqueeze(0)

    qpos, qvel = rows(data.qpos, "qposadr", 7), rows(data.qvel, "dofadr", 6)
    goal = sim.mocap_pos.clone()
    goal[0, task._goal_mocap] = torch.as_tensor(original.goal)
    sim.reset(torch.ones(1, dtype=torch.bool), qpos=qpos, qvel=qvel, mocap_pos=goal)
    task.measure()


@pytest.mark.parametrize("name", TASKS)
def test_start_states_are_those_of_the_original(name: str, original: Any) -> None:
    start = make_vec(name, 1).task.start
    assert np.allclose(start.hand_w, original.initial_gripper_xpos, atol=0.002)
    assert start.object_z == pytest.approx(original.height_offset, abs=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_steps_are_those_of_the_original(name: str, original: Any) -> None:
    """From the same state, with the same actions, as far as contacts leave the motion predictable.

    The originals move the closed fingers of Push and Slide back into place after a step; here they are fixed, and their
    columns (9, 10, 23, 24) are not compared.
    """
    env, rng = make_vec(name, 1, threads=1), np.random.default_rng(0)
    fingers = [] if name == "PickAndPlace" else [9, 10, 23, 24]
    original.reset(seed=1)
    env.reset(seed=0)
    place(env, original)
    ours, theirs = env.task.observe(), original._get_obs()
    for entry in ("observation", "achieved_goal", "desired_goal"):
        assert np.allclose(ours[entry][0], theirs[entry], atol=0.002), entry
    for step in range(20):
        away = 1.0 if step < 10 else -1.0  # up and down again, without touching the object
        action = np.array([*rng.uniform(-1, 1, 2), 0.5 * away, rng.uniform(-1, 1)])
        theirs, their_reward, *_ = original.step(action)
        ours, our_reward, *_ = env.step(torch.as_tensor(action).unsqueeze(0))
        error = np.abs(ours["observation"][0].numpy() - theirs["observation"])
        error[fingers] = 0
        assert error.max() < 0.006, (step, error.round(4))
        assert our_reward.item() == pytest.approx(their_reward, abs=1e-5)


@pytest.mark.parametrize("name", ["Push", "PickAndPlace"])
def test_a_pushed_object_moves_as_in_the_original(name: str, original: Any) -> None:
    """The hand comes down beside the object and pushes it 9 cm in 0.16 s."""
    env = make_vec(name, 1, threads=1)
    original.reset(seed=2)
    env.reset(seed=0)
    place(env, original)
    before = original._get_obs()["achieved_goal"].copy()
    for step in range(34):  # a few steps later it falls off the table, and falls differ
        seen = original._get_obs()["observation"]
        hand, thing = seen[:3], seen[3:6]
        beside = np.add(thing, (-0.08, 0.0, 0.0))
        target = np.add(thing, (0.1, 0.0, 0.0)) if step >= 30 else beside if step >= 15 else (*beside[:2], 0.55)
        action = np.append(np.clip((np.asarray(target) - hand) / 0.05, -1, 1), -1.0)
        theirs, *_ = original.step(action)
        ours, *_ = env.step(torch.as_tensor(action).unsqueeze(0))
    moved = theirs["achieved_goal"] - before
    assert moved[0] > 0.03, "the object was pushed"
    assert np.allclose(ours["achieved_goal"][0], theirs["achieved_goal"], atol=0.02), (moved, ours, theirs)


@pytest.mark.parametrize("name", TASKS)
def test_objects_and_goals_are_drawn_as_in_the_original(name: str, original: Any) -> None:
    env = make_vec(name, 500, threads=1)
    task = env.task
    obs: Any = env.reset(seed=0)
    hand = torch.as_tensor(task.start.hand_w)
    offset = (obs["achieved_goal"] - hand)[:, :2]
    assert offset.norm(dim=1).min() > CLEAR_M - 0.001 and offset.abs().max() < original.obj_range + 0.001
    goal = obs["desired_goal"] - hand
    center = torch.tensor([0.4 if name == "Slide" else 0.0, 0.0])
    assert (goal[:, :2] - center).abs().max() < original.target_range + 1e-6
    height = obs["desired_goal"][:, 2] - task.start.object_z
    theirs = np.array([original._sample_goal()[2] - original.height_offset for _ in range(500)])
    assert (height > 0.01).float().mean() == pytest.approx((theirs > 0.01).mean(), abs=0.08)
    assert height.max() <= LIFT_M and height.min() > -1e-6


def test_rewards_and_success() -> None:
    achieved = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.03, 0.0], [0.0, 0.0, 0.5]])
    desired = torch.zeros(3, 3)
    sparse, dense = make_vec("Push", 1), make_vec("Push", 1, env_options={"reward": "dense"})
    assert sparse.compute_reward(achieved, desired).tolist() == [0.0, 0.0, -1.0]
    assert torch.allclose(dense.compute_reward(achieved, desired), torch.tensor([0.0, -0.03, -0.5]))
    env = make_vec("Push", 2, seed=0)
    env.task.goal_w[0] = env.task.object_w[0] + torch.tensor([0.0, SUCCESS_M - 0.01, 0.0])
    env.task.goal_w[1] = env.task.object_w[1] + torch.tensor([0.0, SUCCESS_M + 0.01, 0.0])
    for _ in range(env.episode_steps):
        _, reward, terminated, truncated, info = env.step(torch.zeros(2, 4))
        assert reward.tolist() == [0.0, -1.0] and not terminated.any()
    assert truncated.all() and info["success"].tolist() == [True, False]


@pytest.mark.parametrize(("name", "at_least"), [("Push", 0.9), ("PickAndPlace", 0.95)])
def test_the_scripted_policy_succeeds(name: str, at_least: float) -> None:
    env = make_vec(name, 50, seed=0, threads=1)
    for _ in range(env.episode_steps):
        action = env.scripted()
        assert action is not None
        *_, info = env.step(action)
    assert info["success"].float().mean() >= at_least


def test_slide_has_no_scripted_policy() -> None:
    assert make_vec("Slide", 1).scripted() is None


@pytest.mark.parametrize("name", TASKS)
def test_joint_velocities_as_actions(name: str) -> None:
    """Each env turns another joint; the hand starts where the hand control's does, and the object stays at rest."""
    env = make_vec(name, 7, threads=1, env_options={"control": "joints"})
    first: Any = env.reset(seed=0)
    assert (first["observation"][:, :3] - torch.as_tensor(env.task.start.hand_w)).abs().max() < 0.002
    up = torch.cat([-0.5 * torch.eye(7), -torch.ones(7, 1)], dim=1)
    for _ in range(10):
        last, *_ = env.step(up)
    turned = env.task.sim.qvel[:, :7]
    if name == "PickAndPlace":  # the hand is above the object; elsewhere, some joints push the hand into the table
        assert torch.allclose(turned.diagonal(), torch.tensor(-0.5).double(), rtol=0.1)
        assert (turned - turned.diagonal().diag()).abs().max() < 0.05
        assert (last["achieved_goal"] - first["achieved_goal"]).abs().max() < 0.002
    assert env.scripted() is None


@pytest.mark.parametrize("options", [{"reward": "shaped"}, {"control": "torques"}])
def test_an_unknown_option_is_one_sentence(options: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"env_options \w+='\w+' must be \w+ or \w+\.$"):
        make_vec("Slide", 1, env_options=options)
