"""Tests of which run a panel shows: its own, one that is watched, none of another task or notebook."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import kit
from kit.config import RunConfig
from kit.errors import UserError
from kit.format import checkpoint
from kit.runs import provenance
from kit.runs.api import create
from kit.runs.run import Run
from kit.ui import dashboard, result
from kit.ui import panel as panel_module
from kit.ui.gallery import find_run
from kit.ui.panel import TrainPanel
from kit.ui.resume import ResumePanel
from tests.ui.fabricate import at_work, make_run, text_of, wait_for, watch_to_the_end

ipywidgets = pytest.importorskip("ipywidgets")


pytestmark = pytest.mark.usefixtures("known_speed")


def test_a_run_resumed_elsewhere_is_shown_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, "moved", state="interrupted")
    panel = TrainPanel(RunConfig(runs_dir=str(tmp_path))).show()
    panel.attach(run)
    watch_to_the_end(panel)
    with at_work(run):
        panel.form.entries["seed"].value = "1"
        wait_for(lambda: "training" in text_of(panel, "kit-head") and not panel.choices.is_open)
    watch_to_the_end(panel)
    panel.estimator.cancel()


def test_after_a_restart_the_panel_names_its_stopped_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "half", state="interrupted")
    shown = TrainPanel(RunConfig(runs_dir=str(tmp_path))).show()
    wait_for(lambda: not any(thread.name == "stopped" for thread in threading.enumerate()))
    assert "half stopped" not in shown._message.value, "a run that another panel has started"
    (run.path / panel_module.MARK).write_text(panel_module.asked_for(RunConfig()))
    again = TrainPanel(RunConfig(runs_dir=str(tmp_path))).show()
    wait_for(lambda: "half stopped at step 600: 02_resume, or `kit resume " in again._message.value)
    for panel in (shown, again):
        panel.estimator.cancel()


def test_a_panel_attaches_to_a_running_run_of_its_task(tmp_path: Path) -> None:
    run = make_run(tmp_path, "busy")
    (run.path / panel_module.MARK).write_text(panel_module.asked_for(RunConfig()))  # as if this cell had started it
    make_run(tmp_path, "done")
    with at_work(run):
        panel = TrainPanel(RunConfig(runs_dir=str(tmp_path))).show()
        assert panel.run is not None and panel.run.name == "busy"
        assert panel.form.read() == run.config, "the form must show the config of the run"
        assert "busy is already training" in panel.label.value
        wait_for(lambda: "training" in text_of(panel, "kit-head"))
        assert panel.train_button.disabled
    wait_for(lambda: not panel.train_button.disabled)
    watch_to_the_end(panel)
    panel.estimator.cancel()


def test_another_tasks_run_can_be_watched_and_left(tmp_path: Path) -> None:
    run = make_run(tmp_path, "busy", config={"env": "Ant-v5"})
    asked = RunConfig(runs_dir=str(tmp_path), n_envs="auto")
    with at_work(run):
        panel = TrainPanel(asked).show()
        assert panel.run is None and panel.form.read() == asked
        wait_for(lambda: "busy is training too" in panel.label.value)
        assert panel.watch_button.description == "Watch busy" and not panel.train_button.disabled
        panel.watch_button.click()
        wait_for(lambda: "busy" in text_of(panel, "kit-head") and panel.watch_button.description == "Back to the form")
        assert panel.form.read() == asked
        panel.watch_button.click()
        wait_for(lambda: panel.watch_button.description == "Watch busy" and text_of(panel, "kit-head") == "")
        assert run.is_working() and panel.pause_button.disabled
        assert panel.notice.view.title == "", "the tab's title must not keep the progress of the run"
        wait_for(lambda: not panel.train_button.disabled)
    panel.estimator.cancel()


def test_the_title_names_the_settings_of_the_run_at_work(panel: TrainPanel, tmp_path: Path) -> None:
    run = make_run(tmp_path, "longer", config={"total_steps": 32_000, "overrides": {"gamma": 0.9}})
    with at_work(run):
        panel.attach(run)
        wait_for(lambda: "32,000 steps, seed 0, gamma=0.9" in panel.choices.button.description)
        panel.form.entries["seed"].value = "7"
        assert "32,000 steps, seed 0, gamma=0.9" in panel.choices.button.description
    watch_to_the_end(panel)
    assert "100,000 steps, seed 7" in panel.choices.button.description


def test_a_panel_shows_the_run_of_its_notebook_with_the_requested_auto_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RunConfig(runs_dir=str(tmp_path), total_steps=5000, overrides={"gamma": 0.9})
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/01_train.ipynb")
    run = create(asked, {}, other_process=True)
    assert run.config.n_envs != "auto" and run.requested == asked
    with at_work(run):
        panel = TrainPanel(RunConfig(runs_dir=str(tmp_path))).show()
        assert panel.find_run().name == run.name and panel.form.read() == asked
        panel.leave()
        monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/08_many_runs.ipynb")
        other = TrainPanel(RunConfig(runs_dir=str(tmp_path))).show()
        assert other.run is None
        other.estimator.cancel()
    panel.estimator.cancel()


def panel_of(folder: Path, **fields: Any) -> TrainPanel:
    """Show a panel of a cell with these fields, without an estimate."""
    shown = TrainPanel(RunConfig(runs_dir=str(folder), **fields)).show()
    shown.estimator.cancel()
    return shown


def test_of_two_panels_in_a_notebook_each_shows_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/05_vision.ipynb")
    run = create(RunConfig(runs_dir=str(tmp_path), algo="SAC"), {}, other_process=True)
    with at_work(run):
        other = panel_of(tmp_path, algo="PPO")
        assert other.run is None and other.form.read().algo == "PPO"
        assert panel_of(tmp_path, algo="SAC", env_options={"randomize": True}).run is None
        own = panel_of(tmp_path, algo="SAC")
        assert own.run is not None and own.run.name == run.name
        own.leave()
        own.estimator.cancel()


def test_a_branch_is_not_taken_for_the_run_of_a_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/04_walk.ipynb")
    run = make_run(tmp_path, "changed")
    provenance.write(run.path, run.config, notebook="/home/me/04_walk.ipynb", parent={"name": "first", "step": 600})
    with at_work(run):
        assert panel_of(tmp_path).run is None


def test_a_run_of_a_panel_is_found_after_a_restart_though_its_form_was_edited(
    panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Colab, where the notebook's path is not known."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    run = make_run(tmp_path, "made", config={"algo": "SAC"})
    monkeypatch.setattr(panel_module, "launch", lambda config, start_from=None: run)
    with at_work(run):
        panel.form.entries["algo"].value = "SAC"
        panel.train_button.click()
        wait_for(lambda: panel.run is not None)
        again = panel_of(tmp_path)
        assert again.run is not None and again.run.name == "made"
    watch_to_the_end(again)
    again.estimator.cancel()


def test_a_run_of_a_terminal_is_not_taken_for_that_of_a_notebook_without_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    run = make_run(tmp_path, "typed")
    with at_work(run):
        assert panel_of(tmp_path).run is None
        assert panel_of(tmp_path, env="Ant-v5", run_name="typed").run is None, "another task's run has this name"
        named = panel_of(tmp_path, run_name="typed")
        assert named.run is not None and named.run.name == "typed"
        named.leave()
        named.estimator.cancel()
        monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))  # a machine with one notebook
        on_colab = panel_of(tmp_path)
        assert on_colab.run is not None and on_colab.run.name == "typed"
        on_colab.leave()
        on_colab.estimator.cancel()


def test_a_watched_run_is_not_the_run_of_the_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard.videos, "missing_video", lambda run: None)
    run = make_trained(tmp_path, "stranger", {"env": "Ant-v5"})
    shown = panel_of(tmp_path)
    with at_work(run):
        shown._beat()
        shown.watch_button.click()
        wait_for(lambda: "stranger" in text_of(shown, "kit-head"))
    watch_to_the_end(shown)
    with pytest.raises(UserError, match=r"no run of Reach with PPO; .* stranger, which this panel shows, was started"):
        find_run(shown)
    mine = make_trained(tmp_path, "mine")
    assert find_run(shown).name == "mine"
    monitor = list[str]()
    shown.on_change.append(lambda run: monitor.append(run.name if shown.own_run else "watched"))
    shown.attach(mine)
    watch_to_the_end(shown)
    assert find_run(shown).name == "mine" and set(monitor) == {"mine"}
    shown.estimator.cancel()


def test_a_report_does_not_show_a_watched_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, chosen = panel_of(tmp_path), list[str]()
    monkeypatch.setattr(result.NextSteps, "choose", lambda self, run: chosen.append(run.name))
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: SimpleNamespace(update=lambda page: None))
    result.report(shown)
    with at_work(run := make_run(tmp_path, "stranger", config={"env": "Ant-v5"})):
        shown._beat()
        shown.watch_button.click()
        wait_for(lambda: shown.run is not None)
    watch_to_the_end(shown)
    assert shown.run is not None and shown.run.name == run.name and not chosen
    result.report(shown)
    assert not chosen, "a report made afterwards"
    shown.attach(make_run(tmp_path, "mine"))
    watch_to_the_end(shown)
    assert set(chosen) == {"mine"}
    shown.estimator.cancel()


def test_the_report_of_a_run_stays_until_the_next_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = list[Any]()
    handle = SimpleNamespace(update=pages.append)
    monkeypatch.setattr("IPython.display.display", lambda *shown, **_: pages.extend(shown) or handle)
    monkeypatch.setattr(result.NextSteps, "choose", lambda self, run: None)
    monkeypatch.setattr(dashboard.videos, "missing_video", lambda run: None)
    shown = panel_of(tmp_path)
    result.report(shown)
    shown.attach(make_run(tmp_path, "first"))
    watch_to_the_end(shown)
    assert "/first." in pages[-1].body
    with at_work(second := make_run(tmp_path, "second")):
        shown.attach(second)
        wait_for(lambda: "second trains; when it has ended" in pages[-1].text)
        assert "/first." in pages[-1].body
    watch_to_the_end(shown)
    assert "/second." in pages[-1].body and "/first." not in pages[-1].body
    shown.estimator.cancel()


def test_watch_shows_the_run_that_the_button_names(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path, name, config={"env": "Ant-v5"}, started=s) for name, s in (("a", 2.0), ("b", 1.0)))
    with at_work(one), at_work(two):  # b was updated last, a started last
        shown = panel_of(tmp_path)
        assert shown.watch_button.description == "Watch a"
        with at_work(make_run(tmp_path, "c", config={"env": "Ant-v5"}, started=3.0)):
            shown.watch_button.click()
            wait_for(lambda: shown.run is not None)
            assert shown.run is not None and shown.run.name == "a"
        shown.leave()
        shown.estimator.cancel()


def test_a_branch_keeps_the_auto_values_of_the_run_it_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the kernel, the form shows what was typed, not what kit chose for the first run."""
    asked = RunConfig(runs_dir=str(tmp_path), total_steps=64, eval_every=0, overrides={"gamma": 0.9, "n_steps": 32})
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/01_train.ipynb")
    parent = kit.train(asked)
    changes = {"total_steps": 5000, "overrides": {"ent_coef": 0.01}}
    branch = create(None, changes, f"{parent.path}@latest", other_process=True)
    typed = {"gamma": 0.9, "n_steps": 32, "ent_coef": 0.01}
    assert branch.config.overrides == {**parent.config.overrides, "ent_coef": 0.01}, "trained with the same values"
    assert branch.config.n_envs == parent.config.n_envs != "auto"
    assert branch.requested == asked.replace(total_steps=5000, overrides=typed)
    with at_work(branch):
        panel = TrainPanel(RunConfig(runs_dir=str(tmp_path), run_name=branch.name)).show()
        assert panel.find_run().name == branch.name and panel.form.read() == branch.requested
        panel.leave()
    panel.estimator.cancel()
    fewer = create(None, {"n_envs": 1}, f"{parent.path}@latest").requested
    assert fewer == asked.replace(n_envs=1)


def test_a_panel_that_leaves_its_run_shows_its_cells_form_and_offers_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/01_train.ipynb")
    cell = RunConfig(runs_dir=str(tmp_path))
    mine = create(cell.replace(total_steps=5000, run_name="mine"), {}, other_process=True)
    stranger = make_run(tmp_path, "stranger", config={"env": "Ant-v5"}, started=9e9)
    with at_work(mine), at_work(stranger):
        panel = TrainPanel(cell).show()
        assert panel.find_run().name == "mine" and panel.form.read() == mine.requested
        wait_for(lambda: panel.watch_button.description == "Back to the form")
        panel.watch_button.click()
        wait_for(lambda: panel.run is None)
        wait_for(lambda: panel.form.read() == cell)
        panel._beat()
        assert panel.watch_button.description == "Watch mine", "stranger has started later"
    panel.estimator.cancel()


def make_trained(folder: Path, name: str, config: dict[str, Any] | None = None) -> Run:
    run = make_run(folder, name, config=config)
    checkpoint.write(run.path / "checkpoints", 600, {"trainer": {"num_timesteps": 600}})
    return run


def test_the_run_of_a_panel_is_never_one_of_another_task(tmp_path: Path) -> None:
    mine = make_trained(tmp_path, "mine")
    make_trained(tmp_path, "stranger", {"env": "Ant-v5"})
    make_trained(tmp_path, "other_algo", {"algo": "SAC"})
    assert find_run(None, str(tmp_path)).name == "other_algo"
    assert find_run(TrainPanel(RunConfig(runs_dir=str(tmp_path)))).name == mine.name
    with pytest.raises(UserError, match="no run of Hopper-v5 with PPO; press Train"):
        find_run(TrainPanel(RunConfig(runs_dir=str(tmp_path), env="Hopper-v5")))
    with pytest.raises(UserError, match="no run yet"):
        find_run(ResumePanel(runs_dir=str(tmp_path)))


@pytest.mark.parametrize(
    "asked", [{"dataset": "ten"}, {"teacher": "runs/seeker@best"}, {"env_options": {"randomize": True}}], ids=str
)
def test_the_run_of_a_panel_is_never_one_of_other_episodes_teachers_or_options(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    make_trained(tmp_path, "mine", asked)
    config = RunConfig(runs_dir=str(tmp_path), **asked)
    make_trained(tmp_path, "other")
    assert find_run(TrainPanel(config)).name == "mine"
    ((name, value),) = asked.items()
    other = config.replace(**{name: {"level": 2} if isinstance(value, dict) else "other"})
    with pytest.raises(UserError, match=f"no run of Reach with PPO, {name}=.*; press Train"):
        find_run(TrainPanel(other))
