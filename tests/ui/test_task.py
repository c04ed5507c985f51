"""Tests of the description page of a task: Reach, stages, options, all tasks, Gymnasium envs."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from gymnasium.spaces import Box

from kit import check_task
from kit.envs import names
from kit.envs.task_info import TaskInfo
from kit.errors import UserError
from kit.ui import task
from kit.ui.fold import PageFold
from kit.ui.style import Page
from kit.ui.task import observation_fields
from tests.tasks.robots import HOME, dog
from tests.ui.fabricate import wait_for


def lines(page) -> list[str]:
    """The page's lines, without markup."""
    return [html.unescape(re.sub("<[^>]+>", "", line)) for line in re.split("<br>|</?div[^>]*>", page._repr_html_())]


def test_the_page_of_reach_has_observation_reward_and_end_of_episode():
    page = lines(task("Reach"))
    assert "7 joint angles of the arm rad" in page and "3 vector from the hand to the goal in units of 0.25 m" in page
    assert "7 joint velocities of the arm rad/s" in page
    assert "+5 per metre that the hand moves closer to the goal" in page
    assert "-0.002 per step, times the sum of squared actions" in page
    assert "ends after 100 steps, 5 s, or earlier: the gripper has closed" in page
    assert "the hand has come within 15 cm of the goal" in page and "100,000 steps" in page
    assert page[page.index("100,000 steps") - 1] == "Recommended", "the panel above may ask for others"


def test_a_task_with_a_curriculum_names_its_stages():
    stages = "40,000,000 steps, in stages: first the zone must be held for a tenth of the time"
    assert any(line.startswith(stages) for line in lines(task("Mission")))


def test_the_page_of_a_robots_file_says_what_was_found_in_it(tmp_path, capsys):
    """35 N m are the dog's torque limit; its trunk is at 2 * 0.2 m * cos 0.8 + 0.02 m = 0.30 m."""
    env, options = f"joystick:{dog(tmp_path / 'dog.xml')}", {"home": HOME}
    legs = [f"{leg}_thigh 0.8, {leg}_knee -1.6" for leg in ("fl", "fr", "rl", "rr")]
    found = [
        "feet: fl_shin, fr_shin, rl_shin, rr_shin",
        f"home: {', '.join(legs)}, the others 0 (rad); trunk 0.3 m above the ground",
        "gains: kp 35 N m/rad, kd 0.7 N m s/rad",
    ]
    page = lines(task(env, options))
    assert [line for line in page if line in found] == found
    check_task(env, options, steps=1)
    out = capsys.readouterr().out
    assert all(f"the robot's {line}\n" in out for line in found)


def test_options_change_the_page():
    page = lines(task("ReachVision", {"cameras": ["top"], "size": 32, "frames": 2, "joints": False}))
    assert " top: images of 32 × 32 pixels, the latest 2" in page and not any("angles" in line for line in page)
    assert "at least 2 attackers have held the zone for 9 s" in lines(task("Mission", {"hold_s": 9.0}))


@pytest.mark.parametrize("name", names())
def test_every_task_of_the_library_has_a_complete_page(name):
    page = task(name)
    said = page._repr_html_()
    assert all(f"<b>{what}</b>" in said for what in ("Observation", "Action", "Reward", "Episode", "Recommended"))
    assert "data:image/png;base64" in said and len(page.text) > 30


def test_pages_of_a_gymnasium_env_and_of_a_users_task():
    said = lines(task("CartPole-v1"))
    assert "4 numbers" in said and "1 one of 2 choices" in said and "ends after 500 steps, 10 s" in said
    said = lines(task("tests.envs.corridor:Corridor"))
    assert " picture: images of 36 × 36 pixels" in said and "ends after 12 steps, 1.2 s" in said


@pytest.mark.parametrize("shape", [(210, 160, 3), (3, 210, 160), (4, 210, 160)])
def test_images_are_described_by_width_and_height(shape):
    (field,) = observation_fields(Box(0, 255, shape, np.uint8), TaskInfo())
    assert field.what == "images of 160 × 210 pixels"


def test_a_page_that_failed_is_made_again():
    made = []

    def make(name):
        made.append(name)
        if len(made) == 1:
            raise ValueError("no connection")
        return Page(name, f"about {name}")

    fold = PageFold(pytest.importorskip("ipywidgets"), "title", "name", make)
    fold.choose("Reach")
    fold.is_open = True
    wait_for(lambda: "no connection" in fold.page.value)
    fold.is_open = False
    fold.is_open = True
    wait_for(lambda: "about Reach" in fold.page.value)


def test_an_unknown_task_is_refused():
    with pytest.raises(UserError, match="Raech"):
        task("Raech")
