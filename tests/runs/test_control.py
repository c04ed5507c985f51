"""Tests of run control: stop and pause during startup, slow starts, long iterations, SIGHUP, dead copiers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.format.files import write_atomic
from kit.runs import directory
from kit.runs.control import Requests
from kit.runs.session import Session
from kit.ui import style
from tests.envs.slow import SLOW
from tests.runs.crash import SLIDE, Forked, create

SMALL = {
    "env": "Reach", "n_envs": 2, "threads": 1, "eval_every": 0, "overrides": {"n_steps": 16, "batch_size": 16},
}  # fmt: skip


def test_a_run_whose_folder_was_deleted_says_so(tmp_path: Path) -> None:
    """A batch holds it: "the process was killed; resume goes on" would promise what cannot be."""
    run = create(tmp_path, "gone", "PPO")
    shutil.rmtree(run.path)
    now = run.status()
    assert (now["state"], now["message"]) == ("failed", f"{run.path} was deleted or moved")
    run.path.parent.rename(tmp_path.with_name("unmounted"))
    assert run.status()["state"] == "interrupted", "its disk is away, and may come back"


def test_a_stop_sent_during_a_slow_start_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker holds the lock from its start, also during slow imports from a cold disk (here 4 s)."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import time, sys\nif 'kit.runs.worker' in sys.orig_argv: time.sleep(4)\n")
    monkeypatch.syspath_prepend(str(folder))
    run = kit.launch(**SMALL, total_steps=10**7, runs_dir=str(tmp_path), run_name="cold")
    assert directory.is_locked(run.path)
    old = {**run.status(), "updated": time.time() - 3600}
    write_atomic(run.path / "status.json", json.dumps(old))
    assert run.status()["state"] == "starting", "a run whose lock is held is not dead, however old its status"
    monkeypatch.undo()
    with pytest.raises(kit.UserError, match="in use"):
        kit.resume(run.path)
    run.stop()
    now = run.wait(200)
    assert now["state"] == "interrupted" and now["step"] < 10**4, now
    again = kit.resume(run.path, background=True)
    assert again.wait(200, until=lambda now: now["step"] > 100)["state"] == "running", "the old stop is discarded"
    again.stop()
    assert again.wait(200)["state"] == "interrupted"


def test_a_pause_sent_while_the_run_starts_holds_it_and_does_not_count_as_training_time(tmp_path: Path) -> None:
    run = kit.launch(**SMALL, total_steps=640, runs_dir=str(tmp_path), run_name="paused")
    run.pause()
    assert run.wait(200, until=lambda now: now["state"] == "paused")["step"] <= 64
    paused_s = 8.0
    with pytest.raises(TimeoutError):
        run.wait(paused_s, until=lambda now: now["state"] != "paused")
    run.unpause()
    continued = time.monotonic()
    assert run.wait(200)["state"] == "finished"
    elapsed_s = run.rows()[-1]["time/time_elapsed"]
    assert elapsed_s < time.monotonic() - continued + paused_s / 2, "which leaves 4 s for what ran before the pause"


def test_the_evaluation_before_training_does_not_lengthen_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation takes about as long as all steps, so counting it in the first steps would mean minutes."""
    monkeypatch.setenv("KIT_EVAL_EPISODES", "640")
    run, said = create(tmp_path, "run", env=SLOW, total_steps=256, eval_every=256), list[tuple[float, float]]()

    def note(now: dict[str, Any]) -> None:
        if now["eta_s"] is not None:
            said.append((time.monotonic(), now["eta_s"]))

    assert Session(run.path, note)() == 0
    first_s, left_s = said[0]
    assert left_s < 3 * (time.monotonic() - first_s)


def test_a_stop_during_a_long_iteration_leaves_a_checkpoint(tmp_path: Path) -> None:
    """SAC with three hundred gradient steps after each env step: an iteration takes seconds."""
    slow = {"gradient_steps": 300, "learning_starts": 4, "buffer_size": 500, "batch_size": 64}
    slow |= {"policy_kwargs": {"net_arch": [256]}}
    run = create(tmp_path, "run", "SAC", env=SLIDE, total_steps=10**6, overrides=slow)
    session = Forked(run)
    assert session.until(lambda: run.status()["step"] > 10), run.log()
    run.stop()
    assert session.wait() == 75, run.log()
    now = run.status()
    assert run.latest() is not None and run.latest().step == now["step"] >= 8, now
    assert f"resume goes on from step {now['step']}" in now["message"]


def test_training_continues_when_its_terminal_closes(tmp_path: Path) -> None:
    """A dropped ssh connection closes the terminal and sends SIGHUP; printing to the terminal would raise EIO."""
    run = create(tmp_path, "run", total_steps=10**6)
    leader, terminal = os.openpty()
    command = [sys.executable, "-m", "kit", "resume", str(run.path)]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    os.set_blocking(leader, False)

    def moves_on(from_step: int) -> bool:
        while run.status()["step"] <= from_step:
            assert process.poll() is None, run.log()
            try:
                os.read(leader, 65536)
            except OSError:
                time.sleep(0.05)
        return True

    assert moves_on(0)
    os.close(leader)
    process.send_signal(signal.SIGHUP)
    reached = run.status()["step"]
    while run.status()["step"] <= reached + 500:
        assert process.poll() is None, run.log()
        time.sleep(0.05)
    assert "the terminal was closed; training goes on" in run.log()
    run.stop()
    assert process.wait(30) == 75 and run.latest() is not None


def test_the_first_reason_to_stop_counts() -> None:
    requests = Requests()
    requests.obey("pause")
    requests.obey("stop")
    requests.stop("SIGTERM")
    assert requests.reason == "stopped on request" and requests.paused


def test_status_reports_that_the_copier_has_ended(tmp_path: Path) -> None:
    run = create(tmp_path, "run")
    said = {"url": "/store", "step": 64, "time": 0.0, "state": "failing", "error": "starting it again"}
    (run.path / ".sync.json").write_text(json.dumps({**said, "updated": time.time() - 61}))
    assert "copying to the store has stopped" in run.status()["store"]["error"]
    (run.path / ".sync.json").write_text(json.dumps({**said, "updated": time.time() - 5}))
    assert run.status()["store"]["error"] == "starting it again"


def test_the_score_until_the_second_evaluation_is_said_to_be_from_before_training(tmp_path: Path) -> None:
    run = create(tmp_path, "run", env=SLIDE, total_steps=10**7, eval_every=10**6)
    session = Forked(run)
    assert session.until(lambda: run.status()["step"] > 100)
    now = run.status()
    session.kill()
    session.wait()
    assert now["mean_return"] is not None and now["measured_in"] == "before training"
    assert "mean return, before training" in style.head(run.name, now)
