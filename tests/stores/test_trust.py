"""Tests of `kit.trust`: a module named in a downloaded run's config is imported only if the user trusts it."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import kit
from kit import cli, trust
from kit.runs.video import record
from kit.stores import open_store
from tests.stores.drive_server import id_of
from tests.stores.fabricate import make_run
from tests.stores.hub_server import HubServer
from tests.stores.test_gdrive import shared  # noqa: F401 - a fixture

TRAP = """import pathlib
pathlib.Path({marker!r}).touch()
from tests.envs.corridor import Corridor as E, Walk
from tests.trainers.toy import REINFORCE as TOY
from tests.encoders.own import Scaled as Edges
import gymnasium
gymnasium.register("Trap-v0", Walk)
"""
NAMES = {
    "a task": {"env": "runs.good.trap:E"},
    "a Gymnasium id": {"env": "runs.good.trap:Trap-v0"},
    "an algorithm": {"algo": "runs.good.trap:TOY"},
    "an encoder": {"encoder": "runs.good.trap:Edges"},
    "a module beside the notebook": {"env": "trap:E"},
}
FEW = {"total_steps": 64, "n_envs": 2, "eval_every": 0, "overrides": {"n_steps": 16, "batch_size": 32, "n_epochs": 1}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new working directory; the list of trusted modules on disk is empty."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def hostile(folder: Path, fields: dict[str, object]) -> Path:
    """Create the run `good` in `folder` with `fields` in its config; return its path.

    The run and the working directory each get a trap.py, whose import creates the file `imported`.
    """
    run = make_run(folder, "good")
    config = run / "config.yaml"
    known = {**yaml.safe_load(config.read_text()), **FEW, "encoder": "auto", "device": "cpu", "threads": 1}
    config.write_text(yaml.safe_dump({**known, **fields}))
    for place in (run, Path.cwd()):
        (place / "trap.py").write_text(TRAP.format(marker=str(Path.cwd() / "imported")))
    return run


def refused(command: Callable[[], object]) -> str:
    with pytest.raises(kit.UserError) as error:
        command()
    assert not Path("imported").exists(), "the module was imported"
    return str(error.value)


@pytest.mark.parametrize("fields", NAMES.values(), ids=NAMES)
def test_a_run_in_a_folder_is_refused(here: Path, fields: dict[str, object]) -> None:
    run = hostile(here / "runs", fields)
    openings: list[Callable[[], object]] = [
        lambda: kit.resume(run),
        lambda: kit.resume(run, background=True),
        lambda: kit.evaluate(run, 1),
        lambda: kit.Run(run).policy(),
        lambda: kit.export(run, "sb3"),
        lambda: record(run),
        lambda: kit.branch(run),
        lambda: kit.train(start_from=run),
        lambda: kit.train(kit.Run(run).config, run_name="again"),
        lambda: kit.train(kit.RunConfig.load(run / "config.yaml"), run_name="again"),
        lambda: kit.batch([kit.Run(run).config.replace(run_name="again")]),
        lambda: kit.resolve(kit.Run(run).config),
    ]
    for opening in openings:
        said = refused(opening)
        assert str(run / "config.yaml") in said and "trap'" in said and "trust=True (--trust)" in said, said
        assert said.count(". ") == 0, "the message must be one sentence"
    assert kit.runs("runs").to_dicts()[0]["name"] == "good", "listing runs must need no trust"
    assert [path.name for path in (here / "runs").iterdir()] == ["good"], "a refused call must create nothing"


@pytest.mark.parametrize(
    ("env", "says"),
    [("kit.envs.gym:TaskEnv", "is the Gymnasium wrapper"), ("gymnasium:kit/Reach-v0", "valid are randomize")],
)
def test_the_option_task_of_an_env_cannot_import_a_module(here: Path, env: str, says: str) -> None:
    run = hostile(here / "runs", {"env": env, "env_options": {"task": "runs.good.trap:E"}})
    assert says in refused(lambda: kit.evaluate(run, 1))


COMMANDS = [
    "resume runs/good", "evaluate runs/good", "video runs/good", "export runs/good", "view runs/good",
    "push runs/good hf://me/model", "train --from runs/good", "train runs/good/config.yaml", "batch job.yaml",
    "batch sweep.yaml", "batch old.yaml", "train beside/config.yaml",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_refused_in_one_line(here: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command, also with a batch, sweep or config file, exits with code 2 and one line."""
    hostile(here / "runs", {"env": "runs.good.trap:E"})
    hostile(here / "beside", {"env": "beside.good.trap:E"}).rename(here / "other")
    (here / "beside/config.yaml").write_text("env: beside.trap:E\n")
    (here / "trap.py").rename(here / "beside/trap.py")
    (here / "job.yaml").write_text("{start_from: runs/good, jobs: [{seed: 3}]}")
    (here / "old.yaml").write_text("{total_steps: 64, jobs: [{run_name: good}]}")
    (here / "sweep.yaml").write_text('{sweep: {space: {algo: [PPO, "runs.good.trap:TOY"]}}}')
    with pytest.raises(SystemExit) as ended:
        cli.main(command.split())
    err = capsys.readouterr().err
    assert ended.value.code == 2, err
    assert err.startswith("kit: ") and err.count("\n") == 1 and "pass trust=True (--trust)" in err, err
    assert not (here / "imported").exists()


def test_a_run_from_the_hub_is_refused(here: Path, hub: HubServer) -> None:
    run = hostile(here / "elsewhere", {"env": "trap:E"})
    files = {f"good/{path.relative_to(run)}": path for path in run.rglob("*") if path.is_file()}
    open_store("hf://me/runs", write=True).put(files)
    said = refused(lambda: kit.resume("hf://me/runs/good"))
    assert "names the module 'trap'" in said
    assert "config.yaml in hf://me/runs/good" in said
    for other in (lambda: kit.train(start_from="hf://me/runs/good"), lambda: kit.ui.RunPicker(store="hf://me/runs").run):
        assert "names the module 'trap'" in refused(other)
    assert not list((here / "runs").glob("*")), "a refused fetch must leave nothing"


def test_a_run_from_a_drive_link_is_refused(here: Path, shared: Path) -> None:  # noqa: F811
    hostile(shared, {"env": "trap:E"})
    link = f"gdrive-link:https://drive.google.com/drive/folders/{id_of('.')}"
    assert "names the module 'trap'" in refused(lambda: kit.resume(link))


def test_a_run_from_a_zip_is_refused(here: Path, tmp_path: Path) -> None:
    run = hostile(tmp_path / "maker", {"algo": "runs.good.trap:TOY"})
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as packed:
        for path in run.rglob("*"):
            packed.write(path, f"runs/good/{path.relative_to(run)}")
    with zipfile.ZipFile(tmp_path / "run.zip") as packed:
        packed.extractall(here)
    assert "names the module 'runs.good.trap'" in refused(lambda: kit.resume(str(here / "runs/good")))


def test_a_typed_module_is_trusted_on_this_machine_only(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module name typed once is trusted in all processes on this machine; another machine needs trust=True.

    Two runs train in processes of their own. The other processes are this one, after it forgot what it trusts.
    """

    def begin_process() -> None:
        monkeypatch.setattr(trust, "_trusted", set())
        trust._remember.cache_clear()
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()

    (here / "mine.py").write_text(TRAP.format(marker=str(here / "imported")))
    fields: dict[str, Any] = {**FEW, "env": "mine:E", "algo": "mine:TOY", "run_name": "own", "overrides": {}}
    run = kit.launch(**fields)
    assert run.wait(100)["state"] == "finished", run.log()
    begin_process()
    assert kit.resume("runs/own", total_steps=128).status()["state"] == "finished"
    begin_process()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    with pytest.raises(kit.UserError, match="names the module 'mine'"):
        kit.resume("runs/own", total_steps=192)
    run = kit.resume("runs/own", background=True, trust=True, total_steps=192)
    assert run.wait(100)["state"] == "finished", run.log()
    begin_process()
    assert kit.evaluate("runs/own", 2)["episodes"] == 2, "trust=True must hold for later processes too"
    (here / "other").mkdir()
    (here / "mine.py").rename(here / "other/mine.py")
    sys.path.append("other")
    begin_process()
    with pytest.raises(kit.UserError, match="names the module 'mine'"):  # of the same name in another file
        kit.evaluate("runs/own", 1)
    importlib.import_module("mine")  # by the user
    assert "mean_return" in kit.evaluate("runs/own", 1)


def test_a_missing_module_is_named_before_trust_is_asked_for(here: Path) -> None:
    run = hostile(here / "runs", {"env": "trap_that_is_gone:E"})
    said = refused(lambda: kit.evaluate(run, 1))
    assert "'trap_that_is_gone'" in said and "there is no such module on the path or in" in said and "trust" not in said
