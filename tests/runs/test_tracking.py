"""Tests of trackers: all metrics rows arrive, a failing tracker does not end training, wrong trackers are refused."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.errors import UserError

FIELDS: dict[str, Any] = {
    "env": "Reach", "total_steps": 512, "n_envs": 4, "eval_every": 256, "device": "cpu", "threads": 1,
    "run_name": "arm", "overrides": {"n_steps": 64, "batch_size": 64, "n_epochs": 1},
}  # fmt: skip


def test_rows_arrive_also_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = pytest.importorskip("trackio")
    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    run = kit.train(**FIELDS, runs_dir=str(tmp_path / "runs"), tracker="trackio:robots")
    kit.resume(run.path, total_steps=768)
    with sqlite3.connect(tmp_path / "trackio" / "robots.db") as there:
        found = there.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert [(name, step) for name, step, _ in found] == [("arm", row["step"]) for row in run.rows()]
    sent = [json.loads(values) for _, _, values in found if b"eval/mean_return" in values]
    kept = [row for row in run.rows() if "eval/mean_return" in row]
    assert [row["eval/mean_return"] for row in sent] == [row["eval/mean_return"] for row in kept]
    assert kept[-1]["step"] == 768


def test_a_failing_tracker_is_reported_once_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wandb.py").write_text(
        "class Run:\n    def log(self, row, step): raise ConnectionError('the service is gone')\n"
        "def init(**settings): return Run()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = kit.train(**FIELDS, runs_dir=str(tmp_path), tracker="wandb:robots")
    assert run.status()["state"] == "finished"
    assert capsys.readouterr().out.count("wandb stopped logging (ConnectionError: the service is gone)") == 1


@pytest.mark.parametrize(
    ("tracker", "sentence"),
    [
        ("mlflow:robots", r"tracker='mlflow:robots' is not a tracker; write wandb:PROJECT or trackio:PROJECT"),
        ("wandb:robots", r"wandb is not installed; it comes with `pip install 'kit\[track\]'`"),
    ],
)
def test_an_unusable_tracker_is_refused_before_a_run_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, sentence: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UserError, match=sentence):
        kit.launch(**FIELDS, runs_dir=str(tmp_path / "runs"), tracker=tracker)
    assert not (tmp_path / "runs").exists()
