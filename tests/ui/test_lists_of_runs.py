"""Tests of the resume panel and the picker: lists of runs here and in a store, live, and what is chosen in them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from kit.errors import UserError
from kit.runs.finding import StoredRuns, local_runs
from kit.runs.run import Run
from kit.ui import heartbeat, resume, rows, style
from kit.ui import picker as picker_module
from kit.ui.dashboard import Dashboard
from kit.ui.next_steps import NextSteps
from kit.ui.picker import RunPicker
from kit.ui.resume import ResumePanel
from tests.ui.fabricate import at_work, make_run, set_status, text_of, wait_for, watch_to_the_end


@pytest.fixture(autouse=True)
def somebody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_HEADLESS", "0")


def test_the_list_of_runs(tmp_path: Path) -> None:
    make_run(tmp_path, "half", rows=5, state="interrupted", message="stopped")
    (line,) = resume.list_lines(tmp_path)
    assert rows.title(line) == "half (interrupted, 500 steps, 97 % success)"
    panel = ResumePanel(runs_dir=str(tmp_path)).show()
    _, row = panel.table.children
    button, line = row.children
    assert (button.description, button.disabled) == ("Resume", False)
    assert "50 % of 1,000" in line.value
    assert "97 % success" in line.value


def test_the_resume_button_resumes_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = make_run(tmp_path, "half", state="interrupted"), []

    def going_on(choice: Any, **options: Any) -> Run:
        asked.append((choice, options))
        return make_run(tmp_path, "again")

    monkeypatch.setattr(resume, "resume", going_on)
    panel = ResumePanel(runs_dir=str(tmp_path), total_steps=2000).show()
    panel.table.children[1].children[0].click()
    wait_for(lambda: panel.run is not None)
    assert asked == [(str(run.path), {"runs_dir": str(tmp_path), "background": True, "total_steps": 2000})]
    watch_to_the_end(panel)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake `list_runs`: every store URL has the runs "far" and "half"."""
    stored = {"state": "interrupted", "step": 10, "total_steps": 40, "success_rate": None, "updated": 0}
    listed = StoredRuns([{"name": "far", **stored}, {"name": "half", **stored}])
    monkeypatch.setattr(resume, "list_runs", lambda where: listed if "://" in str(where) else local_runs(where))


def test_a_wrong_change_is_refused_before_the_resume_panel_is_shown() -> None:
    with pytest.raises(UserError, match="total_steps='2M' is a text; give a whole number"):
        ResumePanel(total_steps="2M")


def test_runs_in_a_store_are_listed_too(tmp_path: Path, store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "half", state="interrupted")
    asked: list[Any] = []
    monkeypatch.setattr(resume, "resume", lambda choice, **options: asked.append((choice, options)) or 1 / 0)
    panel = ResumePanel(runs_dir=str(tmp_path), store="hf://me/runs/").show()
    wait_for(lambda: len(panel.table.children) == 3)
    row = panel.table.children[2]
    assert "25 % of 40" in row.children[1].value
    row.children[0].click()
    wait_for(lambda: "division by zero" in text_of(panel, "kit-message"))
    options = {"runs_dir": str(tmp_path), "background": True, "store": "hf://me/runs/"}
    assert asked == [("hf://me/runs/far", options)]


def test_the_list_follows_a_run_that_trains_elsewhere(tmp_path: Path) -> None:
    run = make_run(tmp_path, rows=1)
    with at_work(run):
        panel = ResumePanel(runs_dir=str(tmp_path)).show()
        (row,) = [each for each in panel.table.children if hasattr(each, "children") and each.children]
        assert "10 % of 1,000" in row.children[1].value
        set_status(run.path, step=400)
        panel._beat()
        assert "40 % of 1,000" in row.children[1].value


def test_a_shown_run_that_is_resumed_elsewhere_is_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path, rows=1, state="interrupted")
    panel = ResumePanel(runs_dir=str(tmp_path)).show()
    panel.attach(run)
    watch_to_the_end(panel)
    with at_work(run):
        panel._beat()
        wait_for(lambda: "training" in text_of(panel, "kit-head"), 10)
    watch_to_the_end(panel)


def test_a_store_can_be_named_in_the_panel(tmp_path: Path, store: None) -> None:
    panel = ResumePanel(runs_dir=str(tmp_path)).show()
    entry, look = panel.view.children[0].children
    entry.value = " hf://me/runs "
    look.click()
    wait_for(lambda: len(panel.table.children) == 3)
    assert "far" in panel.table.children[1].children[1].value
    assert panel.changes == {"store": "hf://me/runs"}, "a resumed run must be copied to this store"


def test_a_run_is_picked_from_a_list(tmp_path: Path, store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    far = make_run(tmp_path / "store", "far")
    for name in ("old", "new"):
        run = make_run(tmp_path / "runs", name)
        (run.path / "checkpoints" / "step_000000600").mkdir(parents=True)
    picker = RunPicker("old", str(tmp_path / "runs")).show()
    assert picker.run.name == "old"
    assert "kit-dashboard" in picker.view._dom_classes, "the style of its list on dark pages"
    assert "[data-jp-theme-light=false] .kit-dashboard select" in picker.view.children[0].value
    texts = [text for text, _ in picker.choices.options]
    assert "new (finished, 600 steps, 97 % success)" in texts and len(texts) == 2
    picker.choices.value = str(tmp_path / "runs" / "new")
    assert picker.run.name == "new"
    entry, look = picker.entry.children
    entry.value = "hf://me/runs"
    look.click()
    wait_for(lambda: len(picker.choices.options) == 4)
    assert picker.run.name == "new", "listing a store must not change the choice"
    asked: list[str] = []
    monkeypatch.setattr(picker_module, "locate", lambda choice, runs_dir, trust: asked.append(choice) or (far, {}))
    picker.choices.value = "hf://me/runs/far"
    assert picker.run.path == far.path and picker.run.path == far.path
    assert asked == ["hf://me/runs/far", str(far.path)], "must be fetched once"


def test_a_picker_follows_its_folder(tmp_path: Path) -> None:
    old = make_run(tmp_path, "old")
    (old.path / "checkpoints" / "step_000000600").mkdir(parents=True)
    picker = RunPicker(None, str(tmp_path)).show()
    make_run(tmp_path, "new")
    picker._draw()
    assert [Path(choice).name for _, choice in picker.choices.options] == ["new", "old"]
    assert picker.run.name == "old" and picker.label.value == "", "the choice stays"
    entry, look = picker.entry.children
    make_run(tmp_path, "newest")
    look.click()  # without a store
    assert len(picker.choices.options) == 3 and entry.value == ""
    old.path.rename(tmp_path / "renamed")
    with pytest.raises(UserError, match=r"does not exist.* Renamed or deleted\? Choose another run\."):
        picker.run  # noqa: B018


def test_a_picker_takes_a_stores_run_if_none_here_has_a_policy(tmp_path: Path, store: None) -> None:
    make_run(tmp_path, "just_started", rows=0)
    assert RunPicker(None, str(tmp_path), "hf://me/runs")._choice == "hf://me/runs/far"
    with pytest.raises(UserError, match="no run with a checkpoint"):
        RunPicker(None, str(tmp_path))


def test_a_picker_and_the_buttons_below_a_report_warn_when_the_kernel_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice, which CSS shows when nothing redraws it any more, lies in the box that it covers."""
    (make_run(tmp_path, "arm").path / "checkpoints" / "step_000000600").mkdir()
    picker = RunPicker("arm", str(tmp_path)).show()
    steps = NextSteps(Dashboard())
    for count, view in enumerate((picker.view, steps.view.children[0]), 7):
        notice = view.children[-1]
        assert "kit-dashboard" in view._dom_classes and "kit-alive" in notice._dom_classes
        before = notice.value
        heartbeat._draw_all(count)
        assert "no connection to its kernel" in notice.value and notice.value != before
    assert "kit-silent" in picker.view.children[0].value, "without its CSS, the notice would be shown at once"


def test_a_finished_run_can_be_resumed_only_for_more_steps(tmp_path: Path) -> None:
    make_run(tmp_path, "done")
    for more, label in ((None, "Done"), (600, "Done"), (601, "Resume")):
        panel = ResumePanel(runs_dir=str(tmp_path), total_steps=more).show()
        assert panel.table.children[1].children[0].description == label


def test_a_running_run_can_be_watched(tmp_path: Path) -> None:
    run = make_run(tmp_path, "busy")
    with at_work(run):
        panel = ResumePanel(runs_dir=str(tmp_path)).show()
        button = panel.table.children[1].children[0]
        assert button.description == "Watch"
        button.click()
        assert panel.run is not None and panel.run.name == "busy"
        set_status(run.path, step=777)
        wait_for(lambda: "78 % of 1,000" in panel.table.children[1].children[1].value)
    watch_to_the_end(panel)


def test_a_run_whose_folder_was_deleted_is_shown_no_longer(tmp_path: Path, store: None) -> None:
    run = make_run(tmp_path, "half", state="interrupted")
    panel = ResumePanel(runs_dir=str(tmp_path)).show()
    panel.attach(run)
    watch_to_the_end(panel)
    assert "half" in text_of(panel, "kit-head")
    shutil.rmtree(run.path)
    entry, look = panel.view.children[0].children
    entry.value = "hf://me/runs"
    look.click()
    wait_for(lambda: len(panel.table.children) == 3)
    assert panel.run is None and text_of(panel, "kit-head") == "", "the run in the store is another copy"


def test_headless_resume_without_an_unfinished_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_HEADLESS", "1")
    with pytest.raises(UserError, match="no unfinished run"):
        ResumePanel(runs_dir=str(tmp_path)).show()


def test_ages() -> None:
    now = time.time()
    ages = [style.ago(now - age_s) for age_s in (0, 30, 7200, 3 * 86_400)]
    assert ages == ["just now", "30 s ago", "2 h 00 min ago", "3 days ago"]
