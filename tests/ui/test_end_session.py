"""Tests of the panel's end_session: when the rented machine is given back, and what keeps it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kit.config import RunConfig
from kit.errors import UserError
from kit.runs.run import Run
from kit.ui import dashboard
from kit.ui import panel as panel_module
from kit.ui.panel import TrainPanel
from tests.ui.fabricate import at_work, make_run, text_of, wait_for, watch_to_the_end

pytest.importorskip("ipywidgets")
pytestmark = pytest.mark.usefixtures("known_speed")


def test_the_session_ends_only_when_the_run_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="end_session=True works on Colab"):
        TrainPanel(RunConfig(runs_dir=str(tmp_path)), end_session=True)
    ended: list[bool] = []
    monkeypatch.setattr(panel_module.host, "session_ender", lambda: lambda: ended.append(True))
    monkeypatch.setenv("KIT_HEADLESS", "1")
    for name, step, state, safe in (
        ("a", 600, "finished", True),
        ("b", 500, "finished", False),
        ("c", 600, "interrupted", False),
    ):
        store = {"url": "hf://me/runs", "step": step, "time": 1.0, "state": "ok", "error": ""}
        run = make_run(tmp_path, name, config={"store": str(tmp_path)}, store=store, state=state)
        monkeypatch.setattr(panel_module, "launch", lambda config, start_from=None, run=run: run)
        TrainPanel(RunConfig(runs_dir=str(tmp_path)), end_session=True).show()
        assert bool(ended) == safe
        ended.clear()


@pytest.mark.parametrize(("notice_s", "press"), [(60, True), (1, False)])
def test_a_person_can_keep_the_session_open(
    notice_s: int, press: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(panel_module.host, "session_ender", lambda: lambda: ended.append(True))
    monkeypatch.setattr(panel_module, "NOTICE_S", notice_s)
    panel = TrainPanel(RunConfig(runs_dir=str(tmp_path)), end_session=True).show()
    store = {"url": "hf://me/runs", "step": 600, "time": 1.0, "state": "ok", "error": ""}
    panel.attach(make_run(tmp_path, "done", config={"store": str(tmp_path)}, store=store))
    if press:
        wait_for(lambda: "ends in 60 s" in text_of(panel, "kit-message") and panel.keep_button.layout.display is None)
        panel.keep_button.click()
    watch_to_the_end(panel)
    assert ended == ([] if press else [True])
    assert ("stays open" in text_of(panel, "kit-message")) == press
    panel.estimator.cancel()


@pytest.mark.parametrize("older_counts", ["at once", "later"])
def test_one_press_keeps_the_session_open_in_the_older_panel_of_a_cell_too(
    older_counts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the cell's older panel goes on, as in Jupyter Notebook 6, both watch the same run."""
    ended: list[bool] = []
    monkeypatch.setattr(panel_module.host, "session_ender", lambda: lambda: ended.append(True))
    monkeypatch.setattr(panel_module, "NOTICE_S", 4)
    older, panel = (TrainPanel(RunConfig(runs_dir=str(tmp_path)), end_session=True).show() for _ in range(2))
    store = {"url": "hf://me/runs", "step": 600, "time": 1.0, "state": "ok", "error": ""}
    run = make_run(tmp_path, "done", config={"store": str(tmp_path)}, store=store)
    for shown in (older, panel) if older_counts == "at once" else (panel,):
        shown.attach(run)
    wait_for(lambda: "ends in" in text_of(panel, "kit-message"))
    panel.keep_button.click()
    if older_counts == "later":
        older.attach(run)
    for shown in (older, panel):
        watch_to_the_end(shown)
        assert "stays open" in text_of(shown, "kit-message")
        shown.estimator.cancel()
    assert not ended


def test_a_panel_whose_cell_runs_again_does_not_end_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(panel_module.host, "session_ender", lambda: lambda: ended.append(True))
    monkeypatch.setattr(panel_module, "NOTICE_S", 4)
    panel = TrainPanel(RunConfig(runs_dir=str(tmp_path)), end_session=True).show()
    store = {"url": "hf://me/runs", "step": 600, "time": 1.0, "state": "ok", "error": ""}
    panel.attach(make_run(tmp_path, "done", config={"store": str(tmp_path)}, store=store))
    wait_for(lambda: "ends in" in text_of(panel, "kit-message"))
    panel.close()
    watch_to_the_end(panel)
    assert not ended


@pytest.mark.parametrize("during", ["the last video", "the notice"])
def test_the_session_does_not_end_while_another_run_trains(
    during: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    recording, recorded, changes = threading.Event(), threading.Event(), list[str]()

    def record_last(run: Run) -> str:
        recording.set()
        recorded.wait(60)
        return ""

    monkeypatch.setattr(panel_module.host, "session_ender", lambda: lambda: ended.append(True))
    monkeypatch.setattr(panel_module, "NOTICE_S", 3)
    monkeypatch.setattr(dashboard.videos, "missing_video", lambda run: during == "the last video")
    monkeypatch.setattr(dashboard.videos, "record_last", record_last)
    panel = TrainPanel(RunConfig(runs_dir=str(tmp_path)), end_session=True).show()
    panel.on_change.append(lambda run: changes.append(run.name))
    store = {"url": "hf://me/runs", "step": 600, "time": 1.0, "state": "ok", "error": ""}
    panel.attach(make_run(tmp_path, "done", config={"store": str(tmp_path)}, store=store))
    first = panel._watching
    wait_for(lambda: recording.is_set() or "ends in" in text_of(panel, "kit-message"))
    with at_work(make_run(tmp_path, "next")):
        if during == "the last video":
            panel.attach(Run(tmp_path / "next"))
        recorded.set()
        first.join(20)
        assert not first.is_alive() and not ended and panel.keep_button.layout.display == "none"
        assert changes.count("done") == 2, "when the run was shown, and when it ended"
    watch_to_the_end(panel)
    panel.estimator.cancel()
