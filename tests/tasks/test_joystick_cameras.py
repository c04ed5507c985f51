"""Tests of videos of joystick robots: cameras follow, an arrow shows the command, rendering changes no state."""

from __future__ import annotations

import math

import pytest
import torch

from kit.envs import make_task
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from kit.tasks.joystick import cameras as views


@pytest.fixture
def env() -> TensorEnv:
    try:
        return TensorEnv(make_task("Go1Joystick"), 3, threads=1)
    except UserError as error:
        pytest.skip(f"no model of the robot: {error}")


def test_path_of_a_command_by_hand():
    quarter = math.pi / 2
    command = torch.tensor([[1.0, -0.5, 0.0], [0.0, 0.0, quarter], [1.0, 0.0, quarter]], dtype=torch.float64)
    ends = views.path(command, 0.2, torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    assert ends[0].tolist() == [[0.2, 0.0]] * 3
    r = 1 / quarter  # a circle of 4 m in 4 s
    assert ends[1].flatten().tolist() == pytest.approx([1.2, -0.5, 0.0, 0.2, r, r + 0.2])


def test_cameras_and_arrow_follow_the_robot(env):
    env.reset(seed=0)
    task, sim = env.task, env.task.sim
    qpos = task.constant(task.model.key("home").qpos).repeat(3, 1)
    qpos[:, 0], qpos[:, 1] = torch.tensor([0.0, 5.0, -7.0]), torch.tensor([0.0, 1.0, 3.0])
    half_yaw = torch.tensor([0.0, math.pi / 4, math.pi / 2])
    qpos[:, 3], qpos[:, 6] = half_yaw.cos(), half_yaw.sin()
    sim.reset(torch.ones(3, dtype=torch.bool), qpos=qpos)
    task.command.copy_(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    task.measure()
    before, seen = env.snapshot(), env.render(("side",), 96, 96)
    assert all(torch.equal(value, before[name]) for name, value in env.snapshot().items() if name in before)

    places = views.poses(task.sim, task.scene, task.heading_w, task.command, task.moving)
    tip = places["geom_xpos"][:, task.model.geom(f"kit/arrow{views.LINKS}").id]
    assert tip[0].tolist() == pytest.approx([0.2 + 0.3, 0.0, 0.48])
    assert tip[1].tolist() == pytest.approx([5.0, 1.5, 0.48]) and tip[2, 2] < -1, "no arrow without a command"
    side = places["cam_xpos"][:, task.model.camera("side").id] - qpos[:, :3]
    assert side[1, 0] == pytest.approx(1.9 * 0.98, abs=0.02) and side[1, 1].abs() < 1e-9, "this robot faces +y"

    red, _, blue = seen[:, 0].int().unbind(-1)
    orange = red - blue > 80
    assert (orange.sum((1, 2)) > 10).tolist() == [True, True, False]
    dark = seen[:, 0].float().mean(3) < 90
    for world in range(3):
        rows, columns = dark[world].nonzero().double().mean(0)
        assert 35 < rows < 65 and 38 < columns < 58, "the robot is in the middle of the image"
