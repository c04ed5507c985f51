"""Tests of the env registry: names, suggestions for unknown names, `n_envs`, former module paths."""

from __future__ import annotations

import importlib
import subprocess
import sys

import gymnasium
import pytest

import kit.envs
from kit.envs import TensorEnv, make_vec
from kit.envs.gymnasium_env import GymnasiumEnv
from kit.errors import UserError


def test_names_are_registered_with_gymnasium():
    assert {"Ant", "Reach"} <= set(kit.envs.names())
    for name in kit.envs.names():
        assert gymnasium.spec(f"kit/{name}-v0")


def test_gymnasium_makes_a_task_of_kit_in_a_process_that_has_not_imported_kit():
    code = "import gymnasium; print(gymnasium.make('kit.envs:kit/Reach-v0').spec.id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "kit/Reach-v0"


def test_kits_tasks_by_either_name_and_gymnasium_envs_by_id():
    assert type(make_vec("Reach", 2)) is type(make_vec("kit/Reach-v0", 2)) is TensorEnv
    assert type(make_vec("CartPole-v1", 2)) is GymnasiumEnv


@pytest.mark.parametrize(
    ("name", "suggestion"), [("reech", "Reach"), ("ant", "Ant"), ("HalfCheeta-v5", "HalfCheetah-v5")]
)  # fmt: skip
def test_an_unknown_name_comes_with_a_suggestion(name, suggestion):
    with pytest.raises(UserError, match=rf"env='{name}'.*did you mean.*{suggestion}"):
        make_vec(name, 1)


def test_a_name_unlike_any_other_lists_the_known_names():
    with pytest.raises(UserError, match=r"Ant, .*Reach.*any registered Gymnasium id"):
        make_vec("qqqqqqqq", 1)


def test_a_misspelt_class_comes_with_the_envs_of_its_module():
    with pytest.raises(UserError, match=r"tests.envs.chase has no env 'Chas'; did you mean Chase\? valid are Chase"):
        make_vec("tests.envs.chase:Chas", 1)


@pytest.mark.parametrize("n_envs", [0, -1, 1.5, "8"])
def test_invalid_n_envs_are_refused(n_envs):
    with pytest.raises(UserError, match="n_envs"):
        make_vec("Reach", n_envs)


def test_names_can_be_looked_up_without_torch():
    heavy = "('torch', 'mujoco', 'stable_baselines3')"
    code = f"import sys, kit.envs; kit.envs.find('Ant-v5'); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_former_module_of_a_task_is_still_found() -> None:
    """Configs of runs made with kit up to 0.2 may contain it."""
    from kit.envs.registry import MOVED, find

    assert find("kit.envs.reach:Reach") is find("Reach") and find("kit.envs.mission:Mission") is find("Mission")
    assert all(importlib.import_module(module) for module in MOVED.values())
