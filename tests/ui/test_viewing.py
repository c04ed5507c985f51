"""Tests of the live viewer: in Chromium, recording by hand, several envs, gamepad, refusals, joystick."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.envs import make_task
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from kit.runs.demonstrations import read
from kit.tasks.fetch.task import PickAndPlace
from kit.tasks.joystick.task import Joystick
from kit.tasks.reach.task import Reach
from kit.ui.gamepad import Gamepad
from kit.ui.viewing import by_hand, frame
from tests.runs.crash import create
from tests.ui.fabricate import connect, wait_for

pytestmark = pytest.mark.timeout(120)


LAZY = '''
import torch
from kit.tasks.ant import Ant

class Lazy(Ant):
    def scripted(self):
        return torch.zeros(self.n, 8)
'''


def shows(page: Any) -> tuple[int, int]:
    """Return episode and step from the caption."""
    caption = page.get_by_text(re.compile(r"^episode \d+, step \d+")).inner_text(timeout=60_000)
    episode, step = re.findall(r"\d+", caption)[:2]
    return int(episode), int(step)


def test_a_policy_plays_while_a_browser_is_connected(tmp_path: Path, page: Any) -> None:
    pytest.importorskip("mjviser")
    threads = torch.get_num_threads()
    shown = kit.ui.view(create(tmp_path, "arm"), 0, port=8890)
    try:
        assert shown._caption.content == "", "no browser is connected yet"
        page.set_viewport_size({"width": 720, "height": 300})  # Chromium draws the scene on the CPU
        page.goto(shown.url)
        wait_for(lambda: shows(page)[1] > 0)
        scene = page.locator("canvas").first.bounding_box()
        button = page.get_by_text("new episode").bounding_box()
        assert scene["x"] + scene["width"] <= button["x"], "the controls must not cover the robot"
        page.get_by_label("pause").click(timeout=60_000)
        before, _ = shows(page)
        page.get_by_text("new episode").click(timeout=60_000)
        wait_for(lambda: shows(page)[0] > before and shows(page)[1] == 0)
        assert repr(shown) == f"arm plays at {shown.url}"
    finally:
        shown.close()
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("text", "suffix"), [("rgb(250,250,250)", "?darkMode"), ("rgba(0,0,0,.87)", "")])
def test_the_viewer_is_dark_on_a_dark_page(text: str, suffix: str, page: Any) -> None:
    pytest.importorskip("mjviser")
    shown = kit.ui.view(env="Reach", port=8898)
    try:
        page.set_content(f"<body style='color:{text}'></body>")
        page.evaluate("html => { document.body.innerHTML = html }", frame(shown.url))
        page.locator(f"iframe[src='{shown.url}{suffix}']").wait_for(timeout=20_000)
        scheme = "dark" if suffix else "light"
        page.frame_locator("iframe").locator(f"html[data-mantine-color-scheme={scheme}]").wait_for(timeout=60_000)
    finally:
        shown.close()


def test_an_episode_moved_by_hand_is_saved_as_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mjviser")
    pytest.importorskip("minari")
    threads = torch.get_num_threads()
    shown = kit.ui.view(env="Reach", port=8891, n_envs=2)
    try:
        connect(shown, monkeypatch)
        shown._folder.value, shown._recording.value, shown._speed.value = str(tmp_path / "mine"), True, 3.0
        task = shown._task
        assert isinstance(task, Reach)

        def dragged() -> bool:
            shown._target.position = task.sim.mocap_pos[0, 0].numpy()
            return bool(shown._episodes) and int(shown._totals.episode[1]) > 1

        wait_for(dragged)
        assert all(
            f">{text}<" in shown._bars.content for text in ("reward", "joint velocities of the arm, rad/s", "a6")
        )
        shown._save()
        assert "episodes saved: " in shown._recorded.content
    finally:
        shown.close()
        torch.set_num_threads(threads)
    env = kit.make_vec("Reach", 1)
    first, *others = read(kit.RunConfig(dataset=str(tmp_path / "mine")), env)
    env.close()
    assert not any(len(episode.rewards) == 100 for episode in others), "only the first arm is moved and recorded"
    assert first.rewards.sum() > 0.5, "the hand came closer to the goal by at least 10 cm"


@pytest.mark.parametrize("control", ["hand", "joints"])
def test_a_block_is_lifted_by_hand(control: str) -> None:
    env = TensorEnv(make_task("PickAndPlace", control=control), 2)
    obs, task = env.reset(seed=0), env.task
    assert isinstance(task, PickAndPlace)
    hand, fingers = SimpleNamespace(position=task.hand_w[0].numpy()), SimpleNamespace(value=False)
    player = by_hand(task, hand, fingers)
    above, on, away = (task.object_w[0].numpy() + np.array([0, 0, z]) for z in (0.1, 0.0, 0.2))
    for target_w, closed, steps in ((above, False, 15), (on, False, 8), (on, True, 5), (away, True, 15)):
        hand.position, fingers.value = target_w, closed
        for _ in range(steps):
            action, _ = player(obs, ())
            obs = env.step(action)[0]
            assert not action[1].any(), "only the first arm is moved"
    lifted = task.object_w[0, 2] - on[2]
    env.close()
    assert lifted > 0.1


def test_episodes_are_slow_enough_to_act_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mjviser")
    shown = kit.ui.view(env="PickAndPlace", port=8899)
    try:
        assert (shown._policy.value, shown._speed.value) == ("by hand", 0.2), "two seconds take ten"
        assert not shown._fingers.value, "the hand begins open"
        shown._policy.value = "scripted: grasp"
        assert shown._speed.value == 1.0
    finally:
        shown.close()


def test_several_envs_are_side_by_side_or_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mjviser")
    threads = torch.get_num_threads()
    shown = kit.ui.view(env="Reach", port=8893, n_envs=2)
    try:
        camera = connect(shown, monkeypatch)
        wait_for(lambda: bool(shown._bars.content))
        shown._paused.value = True

        def apart() -> float:
            first, second = shown._scene._last_body_xpos[:, shown._robot]
            return float(abs(second - first).max())

        assert apart() > 1.0
        shown._shown_envs.value = "env 1"
        wait_for(lambda: apart() < 0.3)
        assert shown._scene.show_only_selected and shown._scene.env_idx == 1
        shown._follow.value = True
        wait_for(lambda: bool(abs(shown._scene._scene_offset).max() > 0.1))
        assert shown._scene._scene_offset == pytest.approx(-shown._robot_position(), abs=1e-6)
        assert camera.look_at == pytest.approx(1 - shown._robot_position(), abs=1e-6), "moved along"
    finally:
        shown.close()
        torch.set_num_threads(threads)


def test_a_gamepad_moves_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in JupyterLab, but the sticks are set from Python: left one half ahead (its axis counts down as positive)."""
    pytest.importorskip("mjviser")
    widgets = pytest.importorskip("ipywidgets")
    threads = torch.get_num_threads()
    shown = kit.ui.view(env="Reach", port=8895)
    try:
        pad = Gamepad(widgets)
        pad.widget.set_trait("axes", [axis_of(widgets, value) for value in (0.05, -0.5, 0.0, 0.0)])
        assert not pad.sticks().any(), "not connected"
        pad.widget.set_trait("connected", True)
        assert pad.sticks().tolist() == [0.0, 0.5, 0.0, 0.0]
        shown._paused.value = True  # a new episode would put the target back
        connect(shown, monkeypatch)
        wait_for(lambda: shown._caption.content.startswith("episode 1, step 0"))
        start, shown._gamepad = shown._target.position.copy(), pad
        wait_for(lambda: shown._target.position[0] > start[0] + 0.199)
        assert shown._target.position == pytest.approx([start[0] + 0.2, *start[1:]], abs=1e-6), "no more ahead"
    finally:
        shown.close()
        torch.set_num_threads(threads)


def axis_of(widgets: Any, value: float) -> Any:
    axis = widgets.widget_controller.Axis()
    axis.set_trait("value", value)
    return axis


def test_a_cell_that_is_run_again_replaces_its_viewer() -> None:
    pytest.importorskip("mjviser")
    threads = torch.get_num_threads()
    first = kit.ui.view(env="Reach", port=8896)
    second = kit.ui.view(env="Reach", port=8896)
    try:
        assert first.port == second.port == 8896 and not first._thread.is_alive()
    finally:
        second.close()
        torch.set_num_threads(threads)


@pytest.mark.parametrize("port", [0, 99_999])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(UserError, match=f"port={port} must be a whole number from 1 to 65535"):
        kit.ui.view(env="Reach", port=port)


def test_an_env_without_scripted_policy_or_hand_control_is_refused() -> None:
    pytest.importorskip("mjviser")
    with pytest.raises(UserError, match="no scripted policy and cannot be moved by hand; name a run"):
        kit.ui.view(env="Ant")


def test_a_task_that_overrides_scripted_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mjviser")
    threads = torch.get_num_threads()
    (tmp_path / "lazy.py").write_text(LAZY)
    monkeypatch.chdir(tmp_path)
    viewer = kit.ui.view(env="lazy:Lazy", port=8897)
    try:
        assert list(viewer._policies) == ["scripted"]
    finally:
        viewer.close()
        torch.set_num_threads(threads)


def test_steer_holds_its_command_until_the_env_is_reset() -> None:
    try:
        task = make_task("Go1Joystick")
    except UserError as error:
        pytest.skip(f"no model of the Go1: {error}")
    assert isinstance(task, Joystick)
    env = TensorEnv(task, 2, seed=0)
    asked = torch.tensor([0.5, -0.2, 0.1], dtype=task.command.dtype)
    task.steer(asked)
    for _ in range(700):  # 14 s without a fall; without `steer`, the command would have changed
        env.step(torch.zeros(2, 12))
    assert torch.equal(task.command, asked.expand(2, -1))
    env.reset(seed=1)
    assert not torch.equal(task.command[0], asked)


def test_a_task_without_a_mujoco_scene_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("mjviser")
    with pytest.raises(UserError, match="has no MuJoCo scene to view; `kit video` records a video of it"):
        kit.ui.view(create(tmp_path, "walk", env="tests.envs.corridor:Corridor"), 0)
