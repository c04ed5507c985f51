"""Tests of a panel's estimate: when the speed is measured, other runs at work, the warning without a store."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.config import RunConfig
from kit.machine import places
from kit.measure import speed
from kit.measure.speed import Speed
from kit.ui.panel import TrainPanel
from tests.ui.fabricate import at_work, make_run, wait_for, watch_to_the_end

pytest.importorskip("ipywidgets")
pytestmark = pytest.mark.usefixtures("known_speed")


def test_a_rented_machine_without_a_store_shows_a_warning(
    panel: TrainPanel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNPOD_POD_ID", "4711")
    panel.form.entries["seed"].value = "1"
    wait_for(lambda: "Without a store, the run may be lost" in panel.label.value)
    panel.form.entries["store"].value = str(tmp_path / "store")
    wait_for(lambda: "on this machine" in panel.label.value and "Without a store" not in panel.label.value)


def test_the_warning_about_the_store_is_there_before_the_estimate_and_without_one(
    panel: TrainPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(lambda: "About 2 min" in panel.label.value)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    monkeypatch.setattr(speed, "cached", lambda config: None)
    measuring, answered = threading.Event(), threading.Event()

    def answer(process: Any, config: RunConfig) -> Speed:
        measuring.set()
        answered.wait(60)
        raise speed.NotMeasured("no speed")

    monkeypatch.setattr(speed, "start_probe", lambda config: SimpleNamespace(kill=lambda: None))
    monkeypatch.setattr(speed, "wait_for_probe", answer)
    panel.form.entries["seed"].value = "1"
    wait_for(measuring.is_set)
    warning = "Without a store, the run may be lost with this machine (Kaggle: only saved versions keep"
    assert "Measuring this machine" in panel.label.value and warning in panel.label.value
    answered.set()
    wait_for(lambda: f"no speed. {warning}" in panel.label.value)


def test_a_disk_that_outlives_the_machine_needs_no_store(
    panel: TrainPanel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wait_for(lambda: "About 2 min" in panel.label.value)
    monkeypatch.setenv("RUNPOD_POD_ID", "4711")
    monkeypatch.setattr(places, "volume", lambda: tmp_path)
    panel.form.entries["seed"].value = "1"
    wait_for(lambda: "on this machine" in panel.label.value and "Without a store" not in panel.label.value)
    panel.form.entries["runs_dir"].value = "/elsewhere"
    wait_for(lambda: "Without a store" in panel.label.value)


def test_the_speed_is_not_measured_beside_a_run_that_trains(
    panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(lambda: "About 2 min" in panel.label.value)
    probes, known = list[int](), speed.cached(panel.config)
    monkeypatch.setattr(speed, "cached", lambda config: None)
    monkeypatch.setattr(speed, "start_probe", lambda config: probes.append(1))
    monkeypatch.setattr(speed, "wait_for_probe", lambda process, config: known)
    with at_work(make_run(tmp_path, "other", config={"env": "Ant-v5"})):
        panel._beat()
        wait_for(lambda: "The speed is measured when other has ended" in panel.label.value)
        assert not probes and not panel.train_button.disabled
    panel._beat()
    wait_for(lambda: "About 2 min" in panel.label.value)
    assert probes == [1]


class Probe:
    """Replaces the process that measures the speed: it answers 390 steps/s when it is `done`, unless it was killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.done, self.is_killed = 0, threading.Event(), False
        monkeypatch.setattr(speed, "_cache", {})
        monkeypatch.setattr(speed, "cached", lambda config: speed._cache.get(speed._key(config)))
        monkeypatch.setattr(speed, "start_probe", lambda config: self._start())
        monkeypatch.setattr(speed, "wait_for_probe", lambda process, config: self._answer(config))

    def _start(self) -> Any:
        self.started, self.is_killed = self.started + 1, False
        return self

    def kill(self) -> None:
        self.is_killed = True
        self.done.set()

    def _answer(self, config: RunConfig) -> Speed:
        self.done.wait(60)
        if self.is_killed:
            raise speed.NotMeasured("killed")
        measured = speed._cache[speed._key(config)] = Speed("Reach", "PPO", 8, "cpu", 4000.0, 3000.0, 390.0)
        return measured


def test_the_speed_is_no_longer_measured_once_the_panel_shows_a_run(
    panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a branch, which a button below the report has started."""
    wait_for(lambda: "About 2 min" in panel.label.value)
    probe = Probe(monkeypatch)
    panel.form.entries["seed"].value = "1"
    wait_for(lambda: probe.started and "Measuring this machine" in panel.label.value)
    run = make_run(tmp_path, "branch")
    with at_work(run):
        panel.attach(run)
        assert probe.is_killed and "Measuring" not in panel.label.value
    watch_to_the_end(panel)


def test_a_speed_that_was_measured_while_a_run_has_started_is_dropped(
    panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(lambda: "About 2 min" in panel.label.value)
    probe = Probe(monkeypatch)
    panel.form.entries["seed"].value = "1"
    wait_for(lambda: probe.started)
    with at_work(make_run(tmp_path, "other", config={"env": "Ant-v5"})):
        probe.done.set()
        wait_for(lambda: "The speed is measured when other has ended" in panel.label.value)
        assert not speed._cache
        panel._beat()
    panel._beat()
    wait_for(lambda: "390 steps/s" in panel.label.value)
    assert probe.started == 2


def test_the_estimate_counts_the_other_runs(panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (make_run(tmp_path, name, config={"env": "Ant-v5"}) for name in ("one", "two"))
    with at_work(one):
        panel._beat()
        wait_for(lambda: "one is training too, so both are slower." in panel.label.value)
        with at_work(two):
            panel._beat()
            wait_for(lambda: "2 other runs train, so all are slower." in panel.label.value)
            monkeypatch.setattr(speed, "cached", lambda config: None)
            panel.form.entries["seed"].value = "1"
            wait_for(lambda: "measured when 2 other runs have ended; you can press Train" in panel.label.value)


def test_two_panels_measure_one_after_the_other(
    panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds what the first has measured."""
    wait_for(lambda: "About 2 min" in panel.label.value)
    known, measured = speed.cached(panel.config), dict[str, Any]()
    measuring, answered = list[int](), threading.Event()

    def answer(process: Any, config: RunConfig) -> Any:
        measuring.append(1)
        answered.wait(60)
        measured["speed"] = known
        return known

    monkeypatch.setattr(speed, "cached", lambda config: measured.get("speed"))
    monkeypatch.setattr(speed, "start_probe", lambda config: SimpleNamespace(kill=lambda: None))
    monkeypatch.setattr(speed, "wait_for_probe", answer)
    second = TrainPanel(panel.config).show()
    panel.form.entries["seed"].value = "1"
    for shown in (panel, second):
        wait_for(lambda shown=shown: "Measuring this machine" in shown.label.value)
    wait_for(lambda: measuring)
    answered.set()
    for shown in (panel, second):
        wait_for(lambda shown=shown: "About 2 min" in shown.label.value)
    assert measuring == [1]


def test_an_error_in_the_file_of_ones_own_task_goes_when_it_is_mended(
    panel: TrainPanel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mended.py"
    file.write_text("from kit.tasks.ant import Ant\nclass Mine(Ant)\n    pass\n")
    panel.form.entries["env"].value = "mended:Mine"
    wait_for(lambda: "mended.py, line 2" in panel.label.value)
    assert panel.train_button.disabled
    file.write_text("from kit.tasks.ant import Ant\nclass Other(Ant):\n    pass\n")
    panel._beat()
    wait_for(lambda: "mended has no env" in panel.label.value)
    file.write_text("from kit.tasks.ant import Ant\nclass Mine(Ant):\n    pass\n")  # the kernel has imported the former
    panel._beat()
    wait_for(lambda: "About 2 min" in panel.label.value)
    assert not panel.train_button.disabled
