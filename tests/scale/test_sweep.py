"""Tests of hyperparameter search: refused files, kills, concurrent readers, waiting, pruning, failed trials."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import kit
from kit.cli import main
from kit.errors import UserError
from kit.runs.finding import local_runs
from kit.runs.fingerprint import fingerprint
from kit.runs.session import Session
from kit.scale import files
from kit.scale.study import Sweep, TrialJob, check_base, plan, suggest, writable
from kit.stores import holds, lease, open_store
from kit.ui.search import _figures
from tests.runs.crash import SMALL, create, kill_everything_in
from tests.scale.shared import ROOT, batch
from tests.ui.fabricate import make_run, set_status

optuna = pytest.importorskip("optuna")
FloatDistribution = optuna.distributions.FloatDistribution
PAYS = """
from tests.envs.corridor import Corridor

class Pays(Corridor):
    def __init__(self, pay=0.0):
        super().__init__()
        self.pay = pay

    def reward(self, action):
        return super().reward(action) * 0 + self.pay

class Worth(Corridor):
    score = "worth"

    def __init__(self, worth):
        super().__init__()
        self.worth = float(worth)

    def info(self):
        return {"worth": super().reward(None) * 0 + self.worth}
"""
BASE: dict[str, Any] = {
    "env": "pays:Pays", "n_envs": 2, "threads": 1, "device": "cpu", "total_steps": 640, "eval_every": 160,
    "checkpoint_every": 160, "overrides": SMALL["PPO"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("pays.py").write_text(PAYS)


def write(**sweep: Any) -> Path:
    path = Path("search.yaml")
    path.write_text(yaml.safe_dump({**BASE, "at_once": 2, "sweep": sweep}))
    return path


TORN = b'{"op_code": 4, "tri'
SPACE = {"gamma": {"min": 0.9, "max": 0.99}}
SPACE_LR = {"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}}


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({}, r"search.yaml has no `sweep:` with a `space:` of names and choices"),
        ({"space": SPACE, "trails": 3}, r"sweep trails=3 is unknown; valid are trials, seed, pruner, space"),
        ({"space": SPACE, "pruner": "halving"}, r"pruner='halving' is unknown; valid are median, hyperband, none"),
        ({"space": SPACE, "trials": 0}, r"trials=0 must be a whole number of at least 1"),
        ({"space": SPACE, "seed": "a"}, r"seed='a' must be a whole number of at least 0"),
        ({"space": SPACE, "seed": -1}, r"seed=-1 must be a whole number of at least 0"),
        ({"space": {"gamma": {"min": 0, "max": 0.9, "log": True}}}, r"sweep gamma=.* is not valid"),
        ({"space": {"gamma": {"min": 0.1, "max": 0.9, "log": True, "step": 0.1}}}, r"sweep gamma=.* is not valid"),
        ({"space": {"gamma": {"min": 0.1, "max": 0.9, "step": 0}}}, r"sweep gamma=.* is not valid"),
        ({"space": {"gamma": {"min": 0.1, "max": 0.9, "step": "a tenth"}}}, r"sweep gamma=.* is not valid"),
        ({"space": {"gamma": {"min": 0.1, "max": float("inf")}}}, r"sweep gamma=.* is not valid"),
        ({"space": {"n_steps": {"min": 16, "max": 64, "step": 0.5}}}, r"sweep n_steps=.* is not valid"),
        ({"space": {"gamma": 0.9}}, r"sweep gamma=0.9 is not valid; write a list of values, or a range"),
        ({"space": {"gamma": {"min": 0.9, "max": 0.5}}}, r"sweep gamma=.* is not valid"),
        ({"space": {"gama": [0.9]}}, r"overrides gama=0.9 is not one of PPO's; did you mean gamma"),
        ({"space": {"gamma": [0.9, 1.9]}}, r"gamma=1.9 is out of range"),
        ({"space": {"algo": ["PPO", "DQN"]}}, r"algo='DQN' is unknown"),
    ],
)
def test_invalid_search_is_refused_and_creates_nothing(sweep: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        kit.sweep(write(**sweep))
    assert not Path("runs").exists()


def test_a_search_without_evaluations_is_refused() -> None:
    path = write(space=SPACE)
    path.write_text(path.read_text().replace("eval_every: 160", "eval_every: 0"))
    with pytest.raises(UserError, match="eval_every=0 gives a search no scores to compare; leave it out"):
        kit.sweep(path)


def test_a_choice_that_was_edited_is_refused_before_a_trial_starts() -> None:
    given = plan(write(trials=1, space={"gamma": [0.9, 0.99], **SPACE_LR}))[0]
    suggest(writable(given).study.ask(), given.space)
    for edited in ({"gamma": [0.9, 0.99, 0.999]}, SPACE, {"gamma": [0.9, 0.99], "learning_rate": [1e-3]}):
        with pytest.raises(UserError, match=r"sweep \w+=.* differs from the earlier trials of the search search; ch"):
            kit.sweep(write(trials=1, space={**SPACE_LR, **edited}))
    assert not local_runs()


def test_a_search_that_waits_for_another_machine_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(trials=1, space=SPACE)
    path.write_text(path.read_text() + f"store: {tmp_path / 'store'}\n")
    lease.acquire(open_store(tmp_path / "store", write=True), "search.sweep", "another", ttl_s=1000)
    waits = kit.launch_sweep(path)
    with monkeypatch.context() as later:
        later.setattr("kit.config.default_name", lambda config: "another-second")
        later.setattr("kit.trainers.planning.default_name", lambda config: "another-second")
        assert kit.launch_sweep(path) is waits, "the cell was executed twice"
    waits.stop()
    began = time.monotonic()
    with pytest.raises(UserError, match="was stopped"):
        waits.wait()
    assert time.monotonic() - began < 20


def test_no_trial_starts_before_the_store_has_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, away = write(trials=1, space=SPACE), tmp_path / "away"
    path.write_text(path.read_text() + f"store: {tmp_path / 'store'}\n")
    (tmp_path / "store").mkdir()
    given, looks = plan(path)[0], list[int]()
    monkeypatch.setattr("kit.scale.sweep.AGAIN_S", 0.1)

    def open_and_lose_the_store(given: Any) -> Sweep:
        search = writable(given)
        (tmp_path / "store").rename(away)
        return search

    monkeypatch.setattr("kit.scale.sweep.writable", open_and_lose_the_store)

    def look(_: Sweep) -> None:
        looks.append(1)
        if len(looks) == 4:
            away.rename(tmp_path / "store")
        if len(looks) < 4:
            assert not local_runs(), "the store does not answer"
        elif local_runs():
            assert (tmp_path / "store" / given.folder.name / "journal.log").is_file()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kit.sweep(path, on_progress=look)
    assert len(looks) > 4


def test_trial_values_become_fields_overrides_and_policy_kwargs() -> None:
    space = {
        "n_envs": {"min": 2, "max": 8},
        "net_arch": [[8], [16]],
        "learning_rate": {"min": 1e-4, "max": 1e-2, "log": True},
    }
    given, engine = plan(write(space=space))
    config = given.config({"n_envs": 4, "net_arch": [8], "learning_rate": 1e-3}, "t")
    assert (config.n_envs, config.run_name, engine.at_once) == (4, "t", 2)
    assert plan({"sweep": {"space": SPACE}}, "my search")[0].name == "my-search", "as folders are named"
    assert config.overrides == SMALL["PPO"] | {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [8]}}
    with pytest.raises(UserError, match=r"holds a sweep; run it with `kit batch search\.yaml` or kit\.sweep"):
        kit.batch("search.yaml")


def test_search_continues_on_another_machine(tmp_path: Path) -> None:
    path = write(trials=2, pruner="none", space=SPACE)
    text = path.read_text().replace("at_once: 2", "at_once: 1")
    path.write_text(text + f"store: {tmp_path / 'store'}\n")
    process = batch(str(path), PYTHONPATH=f"{ROOT}{os.pathsep}{Path.cwd()}", KIT_LEASE_S="4")
    first, store, end = "search-t000", open_store(str(tmp_path / "store"), write=True), time.monotonic() + 200
    while not holds(store, first) and time.monotonic() < end:
        time.sleep(0.05)
    kill_everything_in(tmp_path)
    process.wait()
    chosen, begun = len(Sweep(plan(path)[0]).rows()), len(local_runs())
    shutil.rmtree("runs")
    standing = files.standing(path)
    assert isinstance(standing, Sweep)
    assert 1 <= begun <= len(standing.rows()) <= chosen, "the store must have a trial's values before its run starts"

    found = kit.sweep(path)
    assert [row["state"] for row in found.rows()] == ["complete"] * 2, found.table().to_string()
    assert [row["steps"] for row in found.rows()] == [640] * 2
    assert len({row["gamma"] for row in found.rows()}) == 2
    quiet = create(Path("quiet"), first, **{**BASE, "overrides": SMALL["PPO"] | {"gamma": found.rows()[0]["gamma"]}})
    assert Session(quiet.path)() == 0
    assert fingerprint(kit.Run(Path("runs") / first)) == fingerprint(quiet)
    best = max(found.rows(), key=lambda row: row["eval mean_return"])
    assert found.best is not None and found.best.overrides["gamma"] == best["gamma"]
    shutil.rmtree("runs")
    assert kit.sweep(path).rows() == found.rows(), "a third machine has nothing left to do"


def test_journal_with_an_incomplete_last_line_is_read_and_continued() -> None:
    given, _ = plan(write(trials=3, space=SPACE))
    writable(given).study.ask()
    journal = given.folder / "journal.log"
    journal.write_bytes(journal.read_bytes() + TORN)
    writable(given).study.ask()
    assert [row["state"] for row in Sweep(given).rows()] == ["running"] * 2


def test_reading_a_search_writes_nothing_even_during_a_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(trials=3, space=SPACE)
    given, _ = plan(path)

    def tree() -> dict[Path, tuple[bytes, int]]:
        return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in Path().rglob("*") if file.is_file()}

    before = tree()
    assert kit.ui.sweep(path).text.startswith("search: no trials yet.") and tree() == before
    with pytest.raises(UserError, match="no trial has started yet"):
        files.standing(path)
    assert tree() == before and not Path("runs").exists()

    writer, journal = writable(given).study, given.folder / "journal.log"
    writer.ask()
    line = journal.read_bytes().splitlines(keepends=True)[-1]  # the line that adds a trial
    with journal.open("ab", buffering=0) as file:
        for part, count in ((line[:20], 1), (line[20:], 2)):
            file.write(part)
            before = tree()
            looks = [Sweep(given), files.standing(path)]
            assert [len(found.rows()) for found in looks] == [count] * 2
            assert f"search: {count} running" in kit.ui.sweep(path).text
            with pytest.raises(SystemExit):
                main(["batch", "status", str(path), "--json"])
            assert len(json.loads(capsys.readouterr().out)) == count
            assert tree() == before, "a reader changed a file"
    writer.ask()
    assert len(Sweep(given).rows()) == 3


def test_waiting_trial_reports_the_reason_and_since_when(tmp_path: Path) -> None:
    path = write(trials=1, space=SPACE, seed=10**9)
    path.write_text(path.read_text() + f"store: {tmp_path / 'store'}\n")
    lease.acquire(open_store(tmp_path / "store", write=True), "search-t000", "another", ttl_s=1000)

    def look(now: Sweep) -> None:
        (row,) = json.loads(json.dumps(Sweep(plan(path)[0]).rows()))
        assert row == now.rows()[0] and row["state"] == "running"
        when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        said = rf"another machine holds its lease \(until {when} unless renewed\), since {when}"
        assert re.fullmatch(said, row["message"]), row["message"]
        with warnings.catch_warnings(record=True) as shown:
            warnings.warn("of the user's own code", stacklevel=1)
        assert shown, "a search hides no warnings of others"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kit.sweep(path, on_progress=look)


def begun(path: Path, *chosen: dict[str, Any]) -> None:
    """Make a search with four complete trials, score 8 in each evaluation, and an open trial for each of `chosen`."""
    given, _ = plan(path)
    study, moments = writable(given).study, range(160, 641, 160)
    for _ in range(4):
        done = optuna.trial.create_trial(value=8.0, intermediate_values=dict.fromkeys(moments, 8.0))
        study.add_trial(done)
    for values in chosen:
        study.enqueue_trial(values)
        study.ask()


def test_pruner_compares_trials_with_different_iteration_lengths() -> None:
    """This trial (2 × 28 steps) is evaluated at steps 168, 336, 504 and 672, the others at 160, 320, 480, 640."""
    path = write(trials=5, space={"n_steps": [16, 28], "batch_size": [8, 16]})
    begun(path, {"n_steps": "28", "batch_size": "8"})
    (row,) = kit.sweep(path).rows()[4:]
    assert row["state"] == "pruned" and "behind the other trials" in row["message"], row
    assert kit.Run(f"runs/{row['run']}").config.overrides["n_steps"] == 28


def test_a_nan_score_fails_its_trial_a_bad_one_is_pruned_and_the_page_shows_the_best_config() -> None:
    worths = [{"worth": worth} for worth in ("nan", "0", "50")]
    path = write(trials=7, space={"env_options": worths, **SPACE})
    path.write_text(path.read_text().replace("pays:Pays", "pays:Worth") + "env_options: {worth: '1'}\n")
    begun(path, *({"env_options": json.dumps(worth), "gamma": 0.95} for worth in worths))
    found = kit.sweep(path)
    broken, behind, ahead = found.rows()[4:]
    assert broken["state"] == "fail" and broken["message"] == "its score was nan at step 160"
    assert (behind["state"], ahead["state"], ahead["eval worth"]) == ("pruned", "complete", 50.0), "the search goes on"
    assert behind["steps"] < 640 and "pruned at step" in behind["message"]
    now = kit.Run(f"runs/{behind['run']}").status()
    assert now["state"] == "interrupted", "it can be resumed"
    assert now["message"] == "its search ended it, because it was behind the other trials"
    assert found.best is not None and found.best.env_options["worth"] == "50"
    page = kit.ui.sweep(path)
    assert "search: 5 complete, 1 fail, 1 pruned" in page.text and page.image is not None
    assert "The best config, for kit train FILE" in page.body
    assert kit.sweep(path).rows() == found.rows(), "the finished search changes when started again"
    shutil.rmtree(f"runs/{broken['run']}")
    with pytest.raises(UserError, match="holds no unfinished run"):
        kit.resume()


def test_the_colour_bar_does_not_cover_the_labels_of_the_last_hyperparameter(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure
    drawn: list[Any] = []
    save = figure.savefig
    monkeypatch.setattr(figure, "savefig", lambda self, *args, **rest: (drawn.append(self), save(self, *args, **rest)))
    study = optuna.create_study()
    space = {"gamma": FloatDistribution(0.9, 0.97), "learning_rate": FloatDistribution(4e-4, 7e-4, log=True)}
    for i in range(4):
        params = {"gamma": 0.9 + i / 50, "learning_rate": 4.2e-4 + i * 8e-5}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=3.5 + i / 30))
    _figures(SimpleNamespace(study=study, plan=SimpleNamespace(space=space, score="mean_return")))
    first = drawn[0]
    (bar,) = [axes for axes in first.axes if axes.get_label() == "<colorbar>"]
    last = max((axes.yaxis for axes in first.axes if axes is not bar), key=lambda axis: axis.get_tightbbox().x1)
    labels = [label.get_text() for label in last.get_ticklabels(minor=True)]
    assert any("6" in label for label in labels), labels
    assert last.get_tightbbox().x1 < bar.get_window_extent().x0


def test_killed_trial_is_started_again_but_not_one_that_the_user_stopped(tmp_path: Path) -> None:
    message = "stopped on request; resume goes on from step 5"
    run = make_run(tmp_path, "search-t000", state="interrupted", message=message)
    job = TrialJob(run.config, {}, run=run)
    assert not job.should_restart()
    set_status(run.path, state="running", message="")  # its lock is free, as after kill -9
    assert job.should_restart()


def test_an_edited_config_is_refused_and_other_fields_may_change(tmp_path) -> None:
    content: dict[str, Any] = {"env": "Reach", "total_steps": 640, "runs_dir": str(tmp_path)}
    content["sweep"] = {"trials": 2, "space": {"gamma": [0.9, 0.99]}}

    def search(**changes):
        check_base(writable(plan({**content, **changes}, "search")[0]))

    search()
    search(device="cpu", disk_budget="1GB")
    with pytest.raises(UserError, match=r"total_steps=1280 differs from the earlier trials of the search .*search"):
        search(total_steps=1280)
    with pytest.raises(UserError, match=r"overrides=.*n_steps.* differs from the earlier trials"):
        search(overrides={"n_steps": 32})
