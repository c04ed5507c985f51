"""Tests of own/, a run's copies of one's own task or robot: it is resumed where the originals are missing."""

from __future__ import annotations

import importlib
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kit
from kit import cli, envs, trust
from kit.runs import own_files
from kit.runs.fingerprint import fingerprint
from kit.runs.run import opened
from kit.stores import open_store, pull
from kit.stores.copier import Copier
from tests.stores.fabricate import make_run
from tests.tasks.robots import arm

MINE = """from tests.envs.corridor import Corridor as E
from tests.trainers.toy import REINFORCE as TOY
"""
FEW: dict[str, Any] = {
    "total_steps": 64, "n_envs": 2, "threads": 1, "device": "cpu", "eval_every": 0, "run_name": "own",
    "overrides": {"n_steps": 16, "batch_size": 32, "n_epochs": 1},
}  # fmt: skip
MESH = '<asset><mesh name="hull" file="hull.stl"/></asset><worldbody><geom type="mesh" mesh="hull"/></worldbody>'


@pytest.fixture
def new_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """new_machine(name): a process that trusts nothing, in a new folder."""
    path = [*sys.path]

    def begin(name: str) -> Path:
        monkeypatch.setattr(sys, "path", [*path])
        monkeypatch.setattr(trust, "_trusted", set())
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state-{name}"))
        trust._remember.cache_clear()
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()
        (place := tmp_path / name).mkdir()
        monkeypatch.chdir(place)
        return place

    return begin


def kit_says(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that is refused; return its line."""
    with pytest.raises(SystemExit) as ended:
        cli.main(command.split())
    err = capsys.readouterr().err
    assert ended.value.code == 2 and err.startswith("kit: ") and err.count("\n") == 1, err
    return err


def test_a_run_of_ones_own_module_goes_on_where_the_module_is_missing(
    new_machine: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker of the second machine loads the run's config by itself."""
    store, here = str(tmp_path / "store"), new_machine("a")
    (here / "mine.py").write_text(MINE)
    fields = {**FEW, "env": "mine:E", "algo": "mine:TOY", "overrides": {}}
    assert kit.train(**fields, store=store).status()["state"] == "finished"
    assert (here / "runs/own/own/mine.py").read_text() == MINE
    shutil.rmtree(here)

    there = new_machine("b")
    said = kit_says(f"resume {store} --total-steps 128", capsys)
    assert "names the module 'mine'" in said and "the run keeps a copy, own/own/mine.py in" in said
    assert said.endswith("if you trust its code, pass trust=True (--trust).\n") and not list(there.glob("runs/*"))
    run = kit.resume(store, total_steps=128, trust=True, background=True)
    assert run.wait(300)["state"] == "finished" and run.status()["step"] >= 128, run.log()
    assert (there / "runs/own/own/mine.py").read_text() == MINE

    new_machine("c")
    said = kit_says(f"evaluate {run.path}", capsys)
    assert f"the run keeps a copy, {run.path}/own/mine.py: if you trust" in said
    assert kit.evaluate(run.path, 1, trust=True)["episodes"] == 1
    (run.path / "own/mine.py").write_text(f"{MINE}\n")  # other code
    sys.modules.pop("mine")
    trust._trusted.clear()
    sys.path.remove(str(run.path / "own"))
    assert "the run keeps a copy" in kit_says(f"evaluate {run.path}", capsys)


def test_a_run_of_ones_own_robot_goes_on_without_asking(new_machine: Callable[[str], Path], tmp_path: Path) -> None:
    store, here = str(tmp_path / "store"), new_machine("a")
    (here / "robots/meshes").mkdir(parents=True)
    made = here / "robots/my_arm.xml"
    arm(made, MESH)
    made.write_text(made.read_text().replace("<compiler", '<compiler meshdir="meshes"'))
    (made.parent / "meshes/hull.stl").write_bytes(_tetrahedron())
    fields = {**FEW, "env": "reach:robots/my_arm.xml"}
    whole = kit.train(**{**fields, "run_name": "whole", "total_steps": 128})
    run = kit.train(**fields, store=store)
    names = {path.relative_to(run.path / "own").as_posix() for path in (run.path / "own").rglob("*.*")}
    assert names == {"my_arm.xml", "meshes/hull.stl"}
    assert (run.path / "own/my_arm.xml").read_bytes() == made.read_bytes()
    expected = fingerprint(whole)
    shutil.rmtree(here)

    new_machine("b")
    run = kit.resume(store, total_steps=128, background=True)
    assert run.wait(300)["state"] == "finished" and run.status()["step"] >= 128, run.log()
    assert fingerprint(run) == expected
    assert kit.evaluate(run, 1)["episodes"] == 1


def _tetrahedron() -> bytes:
    """Return a tetrahedron as a binary STL file."""
    corners = np.array([(0, 0, 0), (0.1, 0, 0), (0, 0.1, 0), (0, 0, 0.1)], np.float32)
    data = bytearray(80) + (4).to_bytes(4, "little")
    for face in ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)):
        data += np.zeros(3, np.float32).tobytes() + corners[list(face)].tobytes() + bytes(2)
    return bytes(data)


def test_the_file_in_the_working_directory_wins(new_machine: Callable[[str], Path]) -> None:
    here = new_machine("a")
    own = make_run(here / "runs", "own") / "own"
    (own.parent / "config.yaml").write_text("env: mine:E\nrun_name: own\n")
    (here / "mine.py").write_text(f"{MINE}PLACE = 'working directory'\n")
    own.mkdir()
    (own / "mine.py").write_text(f"{MINE}PLACE = 'copy'\n")
    run = opened("runs/own", trust=True)
    envs.find(run.config.env)
    assert sys.modules["mine"].PLACE == "working directory" and str(own) not in sys.path
    own_files.keep(run.path, run.config)
    assert (own / "mine.py").read_bytes() == (here / "mine.py").read_bytes(), "a session brings the copy up to date"

    arm(here / "arm.xml")
    (own / "arm.xml").write_text("no robot")
    (own.parent / "config.yaml").write_text("env: reach:arm.xml\nrun_name: own\n")
    assert envs.describe(kit.Run("runs/own").config.env).action_space.shape == (4,)
    (here / "arm.xml").replace(own / "arm.xml")
    sent = pickle.loads(pickle.dumps(kit.Run("runs/own").config))  # to the processes of a distributed run
    assert envs.describe(sent.env).action_space.shape == (4,)


def test_of_two_runs_with_other_code_in_one_process_the_second_is_refused(new_machine: Callable[[str], Path]) -> None:
    here = new_machine("a")
    for name in ("one", "two"):
        own = make_run(here / "runs", name) / "own"
        (own.parent / "config.yaml").write_text(f"env: mine:E\nrun_name: {name}\n")
        own.mkdir()
        (own / "mine.py").write_text(f"{MINE}NAME = {name!r}\n")
    envs.find(opened("runs/one", trust=True).config.env)
    with pytest.raises(kit.UserError, match=r"uses the 'mine' of another run .*one/own/mine\.py\); restart Python"):
        envs.find(opened("runs/two", trust=True).config.env)


TOKEN = "hf_" + "aB3" * 12
MORE = '<mujoco><!-- {} --><custom><numeric name="n" data="1"/></custom></mujoco>'


def test_what_is_not_kept(new_machine: Callable[[str], Path], tmp_path: Path) -> None:
    """Files with a token, large modules, robots with parts elsewhere; an older copy of these goes."""
    here = new_machine("a")
    run, own = make_run(here / "runs"), here / "runs/reach-1/own"

    def keep(**fields: str) -> list[str]:
        config = kit.RunConfig(**fields)
        trust.permit(config)
        own_files.keep(run, config)
        return sorted(path.relative_to(own).as_posix() for path in own.rglob("*.*"))

    (here / "mine.py").write_text(MINE)
    assert keep(env="mine:E") == ["mine.py"]
    for text in (f"{MINE}KEY = '{TOKEN}'\n", MINE + "#" * 2**20):
        (here / "mine.py").write_text(text)
        assert keep(env="mine:E") == [] and not own.exists()
    assert keep(env="tests.envs.corridor:Corridor") == [], "a module of a package"

    (here / "robot").mkdir()
    model = arm(here / "robot/arm.xml", '<include file="more.xml"/>')
    (here / "robot/more.xml").write_text(MORE.format(""))
    assert keep(env="reach:robot/arm.xml") == ["arm.xml", "more.xml"]
    (here / "robot/more.xml").write_text(MORE.format(TOKEN))
    assert keep(env="reach:robot/arm.xml") == []
    for place in ("../hull.stl", str(here / "hull.stl")):
        (here / "hull.stl").write_bytes(_tetrahedron())
        arm(model, MESH.replace("hull.stl", place))
        envs.describe("reach:robot/arm.xml")
        assert keep(env="reach:robot/arm.xml") == []


def test_files_of_a_store_stay_in_their_folder(
    new_machine: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = new_machine("a")
    (here / "d").mkdir()
    run = make_run(tmp_path / "there")
    (run / "own").mkdir()
    for name in ("good.py", "good.so", "big.stl"):
        (run / "own" / name).write_text("1")
    store = open_store(str(tmp_path / "store"), write=True)
    Copier(run, store, "me").run_pass(final=True)
    assert "reach-1/own/good.py" in store.list() and "reach-1/own/good.so" not in store.list()
    real, more = store.list, {"own/../x.py": 1, "own/../../../x.py": 1, "own/good.py/x.py": 1, "videos/../../x.mp4": 1}
    (here / "x.mp4").write_text("mine")
    (tmp_path / "x.py").write_text("mine")
    monkeypatch.setattr(store, "list", lambda *a: real(*a) | {f"reach-1/{path}": size for path, size in more.items()})
    back = pull(store, None, here, notify=lambda text: None)
    assert sorted(path.name for path in (back / "own").iterdir()) == ["big.stl", "good.py"]
    assert list(tmp_path.rglob("x.py")) == [tmp_path / "x.py"] and (tmp_path / "x.py").read_text() == "mine"
    assert (here / "x.mp4").read_text() == "mine", "a refused file is not deleted outside either"

    said: list[str] = []
    more["own/big.stl"] = 65 * 2**20
    back = pull(store, None, here / "d", notify=said.append)
    assert not (back / "own").exists() and any("too large" in line for line in said)
