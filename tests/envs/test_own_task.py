"""Tests of user-defined tasks and envs: names, options, observations, snapshots, wrappers, training in a subprocess."""

from __future__ import annotations

import functools
import importlib
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import kit
from kit import envs, trust
from kit.envs.gym import TaskEnv, TaskVectorEnv
from kit.envs.gymnasium_env import GymnasiumEnv
from kit.envs.options import Options, number
from kit.envs.sb3 import TensorVecEnv
from kit.errors import UserError, explain
from kit.measure import speed
from kit.runs.session import Session
from tests.envs.corridor import PIXELS, Corridor, Walk
from tests.runs.crash import create

OURS = "tests.envs.corridor:Corridor"


def test_a_class_in_a_module_is_found_and_given_its_options() -> None:
    env = kit.make_vec(OURS, 3, env_options={"length": 9})
    assert isinstance(env, envs.TensorEnv) and env.task.length == 9 and env.task.name == OURS
    walk = kit.make_vec("tests.envs.corridor:Walk", 2, env_options={"length": 7})
    assert isinstance(walk, GymnasiumEnv) and walk.observation_space.n == 7
    assert kit.make_vec("tests.envs.corridor:Walk-v0", 1).observation_space.n == 5, "module:id registers the id"


@pytest.mark.parametrize(
    ("env", "options", "says"),
    [
        (OURS, {"length": 99}, "env_options={'length': 99} do not fit env=.*length=99 must be between 2 and 36"),
        (OURS, {"lenght": 5}, "env_options lenght=5 is not one of .*'s; did you mean length"),
        ("tests.envs.corridor:Walk", {"size": 5}, "env='Walk' cannot be made here with env_options={'size': 5}"),
        ("tests.envs.corridor:Nothing", {}, "tests.envs.corridor has no env 'Nothing'; valid are Corridor, Walk"),
        ("CartPole-v1", {"seed": 1}, "env_options seed=1: kit sets this for env='CartPole-v1'; leave it out"),
        ("tests.envs.mistakes:Needy", {}, "env_options={} do not fit env=.*: missing a required argument: 'length'; "),
        ("./pole:Swing", {}, "'./pole' is no module's name; write module:Class, without folder or .py"),
        ("..own:Live", {}, "'..own' is no module's name"),
        (":Live", {}, "'' is no module's name"),
        ("pole.py:Swing", {}, "'pole.py' is no module's name"),
        ("no_such_module:Corridor", {}, "there is no module 'no_such_module' on the path or in .*put no_such"),
    ],
)
def test_bad_names_and_options_are_one_sentence_errors(env: str, options: dict[str, int], says: str) -> None:
    for make in (lambda: kit.make_vec(env, 1, env_options=options), lambda: envs.describe(env, options)):
        with pytest.raises(UserError, match=says):
            make()


@pytest.mark.parametrize("kind", [int, "int"])  # "int": in modules with `from __future__ import annotations`
def test_whole_numbers_among_the_options_are_checked(kind: Any) -> None:
    made: Any = make_dataclass("Mine", [("length", kind, number(5, 2, 9))], bases=(Options,), frozen=True, kw_only=True)
    assert made(length=3).length == 3
    with pytest.raises(UserError, match=r"env_options length=3.5 must be a whole number from 2 to 9"):
        made(length=3.5)


def test_a_module_that_was_edited_and_reloaded_is_described_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook with %autoreload: the panel's plan must be of the task that trains."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    file, code = tmp_path / "hallway.py", "from tests.envs.corridor import Corridor\nclass Hallway(Corridor):\n    {}\n"
    file.write_text(code.format("pass"))
    before = envs.describe("hallway:Hallway")
    assert envs.describe("hallway:Hallway") is before and before.scripts == ()
    file.write_text(code.format("scripts = ('forward', 'backward')"))  # of another length, which Python's cache notices
    importlib.reload(sys.modules["hallway"])
    assert envs.describe("hallway:Hallway").scripts == ("scripted", "scripted:forward", "scripted:backward")


def test_a_mended_task_trains_in_the_same_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is edited between two presses of Train; `%autoreload` would read it again only before a cell."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    file, code = tmp_path / "ramp.py", "from tests.envs.corridor import Corridor\nclass Ramp(Corridor):\n    {}\n"
    file.write_text(code.format("def reward(self, action): return super().reward(action)[:, None]"))
    fields: dict[str, Any] = {"env": "ramp:Ramp", "total_steps": 64, "n_envs": 2, "eval_every": 0, "threads": 1}
    for call in (lambda: kit.train(**fields), lambda: kit.check_task("ramp:Ramp")):
        with pytest.raises(UserError, match=r"reward\(\) returned shape \(3, 1\), expected \(3,\)"):
            call()
    file.write_text(code.format("pass"))
    assert kit.train(**fields).status()["state"] == "finished"
    file.write_text(code.format("def success(self): return 1"))
    with pytest.raises(UserError, match=r"success\(\)"):
        kit.check_task("ramp:Ramp")


def test_a_changed_module_is_read_from_its_own_file_and_objects_of_the_old_one_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `%cd`, the module path finds another file of this name first, which nobody trusts."""
    code = "from tests.envs.corridor import Corridor\nPAYS = {}\n"
    code += "class Slope(Corridor):\n    pays = property(lambda self: PAYS)\n"
    for name, pays in (("mine", 1), ("theirs", 666)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "slope.py").write_text(code.format(pays))
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    config = kit.RunConfig(env="slope:Slope")
    trust.permit(config)
    old: Any = envs.find("slope:Slope")
    monkeypatch.chdir(tmp_path / "theirs")
    monkeypatch.syspath_prepend(tmp_path / "theirs")
    (tmp_path / "mine/slope.py").write_text(code.format(22))
    monkeypatch.setattr(trust, "training", {"a session of this process"})
    trust.refresh(config)
    assert envs.find("slope:Slope") is old, "a run that trains here keeps its task"
    monkeypatch.setattr(trust, "training", set())
    trust.refresh(config)
    new: Any = envs.find("slope:Slope")
    assert (new().pays, old().pays) == (22, 1)
    (tmp_path / "mine/slope.py").write_text("nonsense + 1")
    with pytest.raises(UserError, match=r"env='slope:Slope' cannot be loaded \(NameError: .*; correct .*slope.py"):
        trust.refresh(config)
    assert envs.find("slope:Slope") is new
    (tmp_path / "mine/slope.py").write_text("")
    trust.refresh(config)
    with pytest.raises(UserError, match=r"slope has no env|cannot be loaded|is unknown"):
        envs.find("slope:Slope")


def test_a_task_with_a_syntax_error_is_refused_with_file_and_line_though_an_older_version_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: %autoreload fails, and the class from before stays, whole or half written."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "alley.py"
    half = "from kit.envs import Task\nclass Alley(Task):\n    def observe(self): return 0\n"
    whole = "from tests.envs.corridor import Corridor as Alley\n"
    broken = f"{whole}Alley.distance(\n"
    says = r"^env='alley:Alley' cannot be read: alley.py, line 2: '\(' was never closed\.$"
    refuse: list[Any] = [kit.check_task, lambda env: kit.launch(env=env)]
    file.write_text(broken)
    for call in (*refuse, kit.ui.task):
        with pytest.raises(UserError, match=says):
            call("alley:Alley")
    for code in (half, whole):
        file.write_text(code)
        importlib.invalidate_caches()
        sys.modules.pop("alley", None)
        if code is half:
            lacking = "env='alley:Alley' lacks advance, reset, reward, terminated; write what is missing."
            with pytest.raises(UserError, match=lacking):
                kit.check_task("alley:Alley")
        else:
            envs.describe("alley:Alley")
        file.write_text(broken)
        for call in refuse:
            with pytest.raises(UserError, match=says):
                call("alley:Alley")
    assert not Path("runs").exists()


@pytest.mark.parametrize("field", ["algo", "encoder"])
def test_a_syntax_error_in_an_algorithm_or_an_encoder_names_file_and_line(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    whole = {
        "algo": "from tests.trainers.toy import REINFORCE as MINE\n",
        "encoder": "from tests.encoders.own import Scaled as MINE\n",
    }
    module, asked = f"typed_{field}", {field: f"typed_{field}:MINE"}
    says = rf"^{field}='{module}:MINE' cannot be read: {module}.py, line 2: '\(' was never closed\.$"
    file = tmp_path / f"{module}.py"
    for loaded in (False, True):
        if loaded:  # in a notebook, whose %autoreload then fails
            file.write_text(whole[field])
            importlib.invalidate_caches()
            kit.resolve(kit.RunConfig(env="ReachVision", **asked))
        file.write_text(whole[field] + "MINE(\n")
        with pytest.raises(UserError, match=says):
            kit.launch(env="ReachVision", **asked)
    assert not Path("runs").exists()


def test_observations_of_any_shape_and_type_by_hand() -> None:
    env = kit.make_vec(OURS, 2, seed=0)
    env.task.place.copy_(torch.tensor([0, 3]))
    obs, reward, terminated, _, info = env.step(torch.tensor([0, 1]))
    assert terminated.tolist() == [False, True] and reward.tolist() == pytest.approx([-0.05, 0.95])
    final = info["final_obs"]
    assert final["at"]["place"].tolist() == [0, 4] and final["at"]["place"].dtype == torch.int64
    assert final["at"]["ahead"].tolist() == [[1.0], [0.0]]
    assert final["picture"].dtype == torch.uint8 and final["picture"].shape == (2, PIXELS, PIXELS, 3)
    assert final["picture"][1, 0, :, 0].nonzero().tolist() == [[4]]
    assert obs["at"]["place"][0] == 0 and obs["at"]["place"][1] < 4, "env 1 was reset"
    same = (obs["picture"] == final["picture"]).flatten(1).all(1)
    assert same.tolist() == [True, False]


def test_snapshots_are_exact() -> None:
    env, other = kit.make_vec(OURS, 4, seed=1), kit.make_vec(OURS, 4, seed=2)
    actions = torch.randint(2, (40, 4), generator=torch.Generator().manual_seed(0))
    for action in actions[:5]:
        env.step(action)
    other.restore(env.snapshot())
    for action in actions:
        mine, theirs = env.step(action), other.step(action)
        assert torch.equal(mine[0]["picture"], theirs[0]["picture"]) and torch.equal(mine[1], theirs[1])


def test_sb3_wrapper_flattens_names_and_moves_channels_first() -> None:
    view = TensorVecEnv(kit.make_vec(OURS, 2))
    assert {name: space.shape for name, space in view.observation_space.items()} == {
        "at/ahead": (1,), "at/place": (), "picture": (3, PIXELS, PIXELS),
    }  # fmt: skip
    obs = view.reset()
    assert obs["picture"].shape == (2, 3, PIXELS, PIXELS) and obs["picture"].dtype == np.uint8
    for _ in range(12):
        obs, _, done, infos = view.step(np.array([0, 1]))
    assert done[0] and infos[0]["terminal_observation"]["picture"].shape == (3, PIXELS, PIXELS)


def test_gymnasium_wrappers_keep_the_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    check_env(TaskEnv(OURS, render_mode="rgb_array", height=PIXELS, width=PIXELS), skip_render_check=False)
    many = TaskVectorEnv(OURS, num_envs=3)
    obs, _ = many.reset(seed=0)
    assert many.observation_space.contains(obs) and obs["picture"].shape == (3, PIXELS, PIXELS, 3)
    obs, *_ = many.step(np.array([1, 1, 0]))
    assert many.observation_space.contains(obs)


MODULE = f"""
from tests.envs.corridor import {Corridor.__name__} as Hall, {Walk.__name__}
import gymnasium
gymnasium.register("Beside-v0", "beside_the_notebook:Walk", max_episode_steps=9)
"""


def test_the_training_process_finds_the_notebooks_modules_and_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Envs: a task in a module next to the notebook, and an id that only the notebook's process has registered.

    The first is edited before it is resumed.
    """
    file = tmp_path / "beside_the_notebook.py"
    file.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook
    importlib.import_module("beside_the_notebook")
    small: dict[str, Any] = {"env_options": {"length": 4}, "total_steps": 64, "n_envs": 2, "eval_every": 0}
    small |= {"overrides": {"n_steps": 16, "batch_size": 32, "n_epochs": 1}}
    envs = {"task": "beside_the_notebook:Hall", "id": "Beside-v0"}
    for run in [kit.launch(env=env, run_name=name, **small) for name, env in envs.items()]:
        assert run.wait(100)["state"] == "finished", run.log()
        assert (run.status()["step"], run.config.env_options) == (64, {"length": 4})
        assert kit.evaluate(run, episodes=2)["episodes"] == 2
    with file.open("a") as code:
        code.write("# edited")
    run = kit.resume("runs/task", total_steps=128, background=True)
    assert run.wait(100)["state"] == "finished", run.log()
    assert "resumed from step 64; beside_the_notebook.py was edited" in run.log()


def test_an_env_class_defined_in_the_notebook_is_refused_before_a_run_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(Walk):
        pass

    Local.__module__ = "__main__"  # as in a notebook
    monkeypatch.chdir(tmp_path)
    for env, made in (("test/Inline-v0", Local), ("test/Partial-v0", functools.partial(Local))):
        gymnasium.register(env, made)
        with pytest.raises(UserError, match=f"env='{env}' is defined in this notebook"):
            kit.launch(env=env)
    assert not (tmp_path / "runs").exists()


def test_ids_registered_in_the_process_train_in_the_foreground(tmp_path: Path) -> None:
    class Local(Walk):
        pass

    gymnasium.register("test/Local-v0", Local, max_episode_steps=9)
    run = kit.train(
        env="test/Local-v0", total_steps=64, n_envs=2, runs_dir=str(tmp_path), eval_every=0,
        overrides={"n_steps": 16, "batch_size": 32, "n_epochs": 1},
    )  # fmt: skip
    assert run.status()["state"] == "finished"


BROKEN = """
from tests.envs.slide import Slide

class Broken(Slide):
    def reward(self, action):
        return {"a": 1.0}["b"]
"""


def test_an_error_in_an_own_task_names_file_line_and_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    where = "broken.py, line 6, in reward: KeyError: 'b'"
    run = create(tmp_path / "runs", "run", env="broken:Broken")
    assert Session(run.path)() == 1
    assert run.status()["message"].startswith(f"{where}; ")
    config = kit.resolve(kit.RunConfig(env="broken:Broken", n_envs=2, threads=1))
    with pytest.raises(speed.NotMeasured, match=where):
        speed.wait_for_probe(speed.start_probe(config, seconds=0.5), config)
    assert explain(UserError("gamma=2 is wrong.")) == "gamma=2 is wrong."
    assert explain(OSError("no room")) == "OSError: no room" and explain(KeyError()) == "KeyError"


def raised_in(file: str, error: Exception) -> BaseException:
    try:
        exec(compile("def reward(e):\n    raise e\nreward(e)", file, "exec"), {"e": error})
    except Exception as caught:
        caught.__traceback__ = caught.__traceback__.tb_next if caught.__traceback__ else None  # without this file
        return caught
    raise AssertionError


def test_an_error_names_no_line_of_a_package_and_the_line_of_a_cell(tmp_path: Path) -> None:
    for folder in ("site-packages", "dist-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").touch()
        assert explain(raised_in(str(tmp_path / folder / "module.py"), ValueError("shapes:\n  (8, 1)"))) == (
            "ValueError: shapes: (8, 1)"
        )
    (tmp_path / "own.py").touch()
    assert explain(raised_in(str(tmp_path / "own.py"), KeyError("b"))) == "own.py, line 2, in reward: KeyError: 'b'"
    cell = raised_in("/tmp/ipykernel_77/123.py", KeyError("b"))
    assert explain(cell) == "line 2 of a cell, in reward: KeyError: 'b'"
