"""Tests of the dashboard on fake runs: texts in each state, buttons, store, GPU, videos, metric charts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.errors import UserError
from kit.format.leftovers import temporary
from kit.machine.gpu import Summary
from kit.runs import control, directory
from kit.runs.video import View
from kit.trust import permit
from kit.ui import dashboard as dashboard_module
from kit.ui import gallery, style, videos
from kit.ui.dashboard import Dashboard, charts
from kit.ui.metric_charts import MetricCharts
from tests.ui.fabricate import at_work, make_run, set_status, text_of, wait_for, watch_to_the_end

ipywidgets = pytest.importorskip("ipywidgets")

STORE = {"url": "hf://me/runs", "step": 500, "time": time.time(), "state": "ok", "error": None}


def test_a_running_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, checkpoint={"step": 500, "time": time.time() - 30})
    with at_work(run):
        board = Dashboard(run).show()
        wait_for(lambda: "120" in text_of(board, "kit-head"))
        for text in ("training", "97 %", "4.25", "60 %", "42 s", "Saved on this machine: step 500, 3"):
            assert text in text_of(board, "kit-head")
        wait_for(lambda: text_of(board, "kit-curves").count("<svg") == 2)
        assert [button.disabled for button in board.buttons.children] == [False, False, False]
    watch_to_the_end(board)
    assert "finished" in text_of(board, "kit-head")
    assert [button.disabled for button in board.buttons.children] == [True, True, True]


def test_buttons_send_commands_without_waiting(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with at_work(run):
        board = Dashboard(run).show()
        wait_for(lambda: not board.stop_button.disabled)
        begun = time.perf_counter()
        board.pause_button.click()
        assert time.perf_counter() - begun < 10, "a click must not wait 30 s for the answer, which never comes"
        wait_for(lambda: any((run.path / "control").iterdir()))
        assert control.take(run.path) == ["pause"]
        set_status(run.path, state="paused")
        wait_for(lambda: board.pause_button.description == "Continue" and not board.pause_button.disabled)
        assert board.save_button.disabled, "a paused run is inside an iteration and cannot save"
        board.pause_button.click()
        wait_for(lambda: any((run.path / "control").iterdir()))
        assert control.take(run.path) == ["unpause"]
        set_status(run.path, state="running")
        wait_for(lambda: not board.save_button.disabled)
        board.save_button.click()
        wait_for(lambda: any((run.path / "control").iterdir()))
        assert control.take(run.path) == ["checkpoint"]
        set_status(run.path, checkpoint={"step": 600, "time": time.time() + 1})
        wait_for(lambda: "Saved step 600" in text_of(board, "kit-message"))
    watch_to_the_end(board)


def test_a_stopped_run_offers_resume_and_errors_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, state="interrupted", message="stopped on request; resume goes on from step 600")
    board = Dashboard(run).show()
    watch_to_the_end(board)
    assert "resume goes on from step 600" in text_of(board, "kit-head")
    assert "stopped (Resume continues it)" in text_of(board, "kit-head")
    assert (board.pause_button.description, board.pause_button.disabled) == ("Resume", False)

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no room <left>")

    monkeypatch.setattr(dashboard_module, "resume", refuse)
    board.pause_button.click()
    wait_for(lambda: "no room &lt;left&gt;" in text_of(board, "kit-message"))
    wait_for(lambda: not board.pause_button.disabled)


def test_a_run_resumed_elsewhere_is_shown_at_work_again(tmp_path: Path) -> None:
    """Such as from a terminal: else the dashboard would go on to offer Resume for a run that trains."""
    run = make_run(tmp_path, state="interrupted")
    board = Dashboard(run).show()
    watch_to_the_end(board)
    assert "interrupted" in text_of(board, "kit-head")
    board.say("no room", bad=True)
    with at_work(run):
        board._beat()
        wait_for(lambda: "training" in text_of(board, "kit-head"), 10)
        assert "no room" not in text_of(board, "kit-message"), "the error of an earlier try"
        wait_for(lambda: board.pause_button.description == "Pause", 10)
    watch_to_the_end(board)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1, "100 %"), (0.9999, "100 %"), (0.996, "99.6 %"), (0.97, "97 %"), (0.004, "0.4 %"), (0, "0 %")],
)
def test_a_rate_is_not_rounded_to_all_or_none(rate: float, text: str) -> None:
    assert style.percent(rate) == text


def test_the_session_clock_and_an_idle_gpu(tmp_path: Path) -> None:
    run = make_run(tmp_path, config={"session_limit": "1h"}, started=time.time() - 1800, phase="training")
    now = run.status()
    left = dashboard_module.session_left_s(run, now)
    assert left == pytest.approx(1800, abs=10)
    set_status(run.path, state="starting")  # as after Resume: `started` is still that of the last session
    with directory.lock(run.path):
        assert dashboard_module.session_left_s(run, run.status()) is None
    idle, busy = (
        {phase: asdict(Summary(30, percent, 10**10, 50.0, 70.0)) for phase, percent in load.items()}
        for load in ({"rollout": 22.0, "update": 2.0}, {"rollout": 98.0, "update": 82.0})
    )
    page = style.head(run.name, now | {"session_left_s": left, "gpu": idle})
    assert "30 min</b><span>left of the session" in page
    assert "12 %</b><span>GPU busy" in page
    assert "The GPU idles (12 % busy)" in page
    page = style.head(run.name, now | {"gpu": busy})
    assert "idles" not in page
    assert "90 %</b><span>GPU busy" in page
    assert "busy 98 % of rollouts and 82 % of updates; up to 10.0 GB of its memory were" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "Stored and verified in hf://me/runs: step 500"),
        ({"state": "failing", "error": "401 <x>"}, "Not copied to hf://me/runs: 401 &lt;x&gt;. Training goes on"),
        ({"state": "behind"}, "Copying newer steps"),
        ({"state": "behind", "step": None, "time": None}, "Copying to hf://me/runs."),
    ],
)
def test_the_store_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    run = make_run(tmp_path, store={**STORE, **change})
    assert said in style.head(run.name, run.status())


def test_the_ages_of_copies_are_left_out_when_nothing_redraws_them(tmp_path: Path) -> None:
    run = make_run(tmp_path, store=STORE)
    with at_work(run):
        assert re.search(r"step 500, (.+ ago|just now)\.", style.head(run.name, run.status()))
    assert "Stored and verified in hf://me/runs: step 500.<" in style.head(run.name, run.status())


def test_a_failure_is_red_and_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path, state="failed", message="ValueError: <b>")
    page = style.head(run.name, run.status())
    assert "kit-bad" in page
    assert "&lt;b&gt;" in page


def test_a_task_without_success_shows_returns_only(tmp_path: Path) -> None:
    rows = [{"step": 100, "rollout/ep_rew_mean": 1.0}]
    assert charts(rows, 1000).count("<svg") == 1
    assert charts([], 1000).count("no data yet") == 2


def test_the_largest_reward_terms_are_shown_beside_the_curves(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    terms = {f"eval/reward/term_{size}": -float(size) for size in range(1, 9)}
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 600, "eval/mean_return": 1.0, **terms}) + "\n")
    board = Dashboard(run).show()
    watch_to_the_end(board)
    shown = text_of(board, "kit-curves")
    assert shown.count("<svg") == 3 and not board.metrics.fold.is_open
    assert "Reward terms: term_3 -3 at step 600, term_4 -4" in shown, "in an order that stays"
    assert "term_3" in shown and "term_2" not in shown and "All metrics also shows the smaller terms" in shown
    few = charts([{"step": 0, "eval/reward/near": 1.0, "eval/reward/energy": -2.0}], 1000)
    assert "energy, step 0: -2" in few and "near, step 0: 1" in few and "smaller terms" not in few


def test_the_stage_of_the_curriculum_is_told() -> None:
    rows = [{"step": 100 * i, "rollout/ep_rew_mean": 1.0, "rollout/stage": i // 3} for i in range(5)]
    assert "Curriculum: stage 0, the easiest. Evaluations use the last stage." in charts(rows[:2], 1000)
    assert "Curriculum: stage 1, harder, since step 300." in charts(rows, 1000)
    assert "Curriculum" not in charts([{"step": 100, "rollout/ep_rew_mean": 1.0}], 1000)


def test_reward_terms_in_training_are_shown_per_episode(tmp_path: Path) -> None:
    """A mean of 0.5 per step in episodes of 20 and then 30 steps; no episode has ended in the first row."""
    rows = [{"step": 100, "rollout/reward/near": 9.0}]
    rows += [{"step": 10 * n, "rollout/reward/near": 0.5, "rollout/ep_len_mean": n} for n in (20, 30)]
    rows += [{"step": 300, "eval/reward/near": 7.0}]
    shown = charts(rows, 1000)
    assert "Reward terms in training" in shown and "step 100" not in shown and "near, step 300: 7" not in shown
    assert "near, step 200: 10" in shown and "near, step 300: 12.5" in shown, "10 and the mean of 10 and 15"
    run = make_run(tmp_path)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    board = Dashboard(run).show()
    watch_to_the_end(board)
    board.metrics.fold.is_open = True
    assert board.metrics.metric.options[:2] == ("Reward terms in training", "Reward terms")
    assert "near, step 300: 15" in board.metrics.chart.value, "not smoothed"


def test_missing_video_names_a_policy_without_a_video(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert videos.missing_video(run) is None, "there is no policy yet"
    (run.path / "checkpoints" / "step_000000600").mkdir()
    video = videos.missing_video(run)
    assert video is not None and video.path == run.path / "videos" / "step_000000600.mp4"
    video.path.write_bytes(b"")
    with temporary(video.path.parent) as half:
        (half / "video.mp4").write_bytes(b"half of a video")
        assert videos.missing_video(run) is None
        assert run.videos == [video.path]


def test_a_task_without_a_camera_has_no_video(tmp_path: Path) -> None:
    run = make_run(tmp_path, config={"env": "tests.envs.slide:Slide"})
    permit(run.config, trust=True)
    (run.path / "checkpoints" / "step_000000600").mkdir()
    assert videos.missing_video(run) is None and videos.record_last(run) == ""
    with pytest.raises(UserError, match=r"env='tests\.envs\.slide:Slide' has no camera"):
        gallery.from_cameras(run)


def test_a_policy_trained_anew_has_another_video_and_poster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    saved = run.path / "checkpoints" / "step_000000600"
    saved.mkdir()
    view = View(run, 600, "front")
    assert videos.PolicyVideo((view,)).path == (first := videos.PolicyVideo((view,)).path)
    os.utime(saved, (1, 1))
    assert videos.PolicyVideo((view,)).path != first
    monkeypatch.setattr(videos, "find_spec", lambda name: True)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: SimpleNamespace(stdout=film.read_bytes()))
    film = tmp_path / "film.mp4"
    for text in (b"old", b"new"):
        film.write_bytes(text)
        os.utime(film, ns=(0, len(text) + text[0]))
        assert videos.poster(film) == text


def test_a_recording_that_fails_says_why(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.path / "checkpoints" / "step_000000600").mkdir()
    assert videos.record_last(run).startswith("No video: ")


def test_the_recording_process_can_import_the_users_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_worlds.py").write_text("import gymnasium\n\nclass Mine(gymnasium.Env):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append(options))
    run = make_run(tmp_path, config={"env": "my_worlds:Mine"})
    permit(run.config, trust=True)  # as training on this machine does
    videos.PolicyVideo((View(run, 600),)).start(0, subprocess.DEVNULL)
    assert str(tmp_path) in started[0]["env"]["PYTHONPATH"].split(os.pathsep)
    assert started[0]["env"]["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")


def test_any_metric_can_be_charted_with_another_run_and_zoomed(tmp_path: Path) -> None:
    """The run has steps 100 to 600; the first half of the range ends at step 300."""
    other, run = make_run(tmp_path, "other", rows=3), make_run(tmp_path, "arm")
    charts = MetricCharts(ipywidgets)
    charts.attach(run)
    assert not charts.chart.value, "a folded chart must not be drawn"
    charts.fold.is_open = True
    assert charts.metric.options[0] == "rollout/ep_rew_mean" and "step" not in charts.metric.options
    charts.metric.value = "time/fps"
    charts.range.value = (0, 50)
    assert "time/fps, step 300: 50" in charts.chart.value and "step 400" not in charts.chart.value
    charts.other.value = "other"
    assert "time/fps, other, step 200: 50" in charts.chart.value
    make_run(tmp_path, "later")
    charts.draw()
    assert charts.other.options == ("no other run", "later", "other"), "a run that began after the chart"
    assert charts.other.value == "other" and "time/fps, other, step 200: 50" in charts.chart.value
    rows = [{"step": 700, "train/learning_rate": 3e-4, "eval/reward/near": 1.0, "eval/reward/energy": -2.0}]
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    charts.draw()
    assert charts.metric.value == "time/fps", "a new metric must not change the choice"
    charts.metric.value, charts.range.value = "train/learning_rate", (0, 100)
    assert "train/learning_rate, step 700: 0.0003" in charts.chart.value, "it is no percentage"
    charts.metric.value, charts.range.value = "Reward terms", (0, 100)
    charts.attach(other)
    assert charts.metric.value != "Reward terms", "this run has none"
    charts.attach(run)
    assert charts.metric.value == "Reward terms", "the user's choice, also after a run without it"
    assert "near, step 700: 1" in charts.chart.value and "energy, step 700: -2" in charts.chart.value


def test_a_metric_that_the_other_run_lacks_is_named(tmp_path: Path) -> None:
    run, other = make_run(tmp_path), make_run(tmp_path, "other")
    (other.path / "metrics.jsonl").write_text('{"step": 100, "time/fps": 50.0}\n')  # as of another task
    charts = MetricCharts(ipywidgets)
    charts.attach(run)
    charts.fold.is_open = True
    charts.metric.value, charts.other.value = "time/fps", "other"
    assert "has no" not in charts.chart.value
    charts.range.value = (50, 100)
    assert "other has no time/fps from step 300 to 600." in charts.chart.value, "outside the chosen steps"
    charts.range.value, charts.metric.value = (0, 100), "eval/mean_return"
    assert "other has no eval/mean_return." in charts.chart.value
