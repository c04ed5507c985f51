"""Tests of results in notebooks: figures, reports, verdicts, videos, and the buttons below a report."""

from __future__ import annotations

import json
import threading
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kit
from kit.errors import UserError
from kit.runs import publish
from kit.runs.finding import local_runs
from kit.runs.run import Run
from kit.runs.video import View
from kit.ui import gallery, plots, result, style, videos
from kit.ui.next_steps import NextSteps
from kit.ui.panel import TrainPanel
from tests.runs.crash import SMALL
from tests.ui.fabricate import at_work, make_run, set_status, text_of, wait_for, watch_to_the_end
from tests.ui.test_next_steps import press

PNG = b"\x89PNG"
DURING = "in the evaluations during training"
HACKED = (
    "The return rose from 10 to 40, but success fell from 93 % to 76 %: "
    "the reward pays for something other than success."
)


@pytest.fixture(autouse=True)
def somebody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_HEADLESS", "0")


def test_figures_are_displayed_as_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = plots.learning_curve(make_run(tmp_path))
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["Success rate", "Mean return"]
    assert figure._repr_png_().startswith(PNG)
    empty = make_run(tmp_path, "empty", rows=0)
    assert plots.learning_curve(empty)._repr_png_().startswith(PNG) and plots.inside(empty)._repr_png_().startswith(PNG)


def test_each_training_metric_that_changes_has_a_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path)
    names = ("step", "train/loss", "train/clip_range", "eval/reward/time", "train/steady")
    rows = [dict(zip(names, (i, i * i, i, -i, 1), strict=True)) for i in range(3)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure = plots.inside(run)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["eval/reward/time", "train/loss"]
    assert figure.axes[1].lines[0].get_xydata().tolist() == [[0, 0], [1, 1], [2, 4]]


def test_a_report_holds_sentence_figure_and_video(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path)
    (run.path / "videos" / "step_000000600.mp4").write_bytes(b"film")
    shown = result.result(run)
    assert repr(shown) == "Reach with PPO: 97 % success after 600 steps (finished)."
    page = shown._repr_html_()
    assert "data:image/png;base64,iVBOR" in page
    assert "data:video/mp4;base64,ZmlsbQ==" in page
    assert "the policy of step 600" in page
    assert "a mean return of 4.25" in result.sentence(make_run(tmp_path, "ant", success_rate=None))


def test_a_report_waits_for_the_video_of_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    (run.path / "videos" / "step_000000400.mp4").write_bytes(b"film of an earlier policy")
    monkeypatch.setattr(result, "missing_video", lambda run: object())
    page = result.result(run)._repr_html_()
    assert "Its video follows in a moment" in page and "data:video" not in page
    assert "data:video" in result.result(run, "No video: no room")._repr_html_(), "an older one is better than none"


def test_a_report_says_that_the_test_used_new_episodes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path)
    row = {"step": 600, "test/step": 400, "test/episodes": 20, "test/success_rate": 0.97, "test/mean_return": 4.25}
    with (run.path / "metrics.jsonl").open("a") as rows:
        rows.write(json.dumps(row) + "\n")
    said = "Tested in 20 new episodes, which were not used to choose the policy: "
    said += "the policy of step 400, the best in the evaluations."
    shown = result.result(run)
    assert said in repr(shown) and said in shown._repr_html_()
    rate = "(finished): 19 of 20 new episodes; the true rate is probably 79 to 100 %."
    assert rate in repr(shown)
    with (run.path / "metrics.jsonl").open("a") as rows:  # trained further
        rows.write(json.dumps({"step": 800, "eval/success_rate": 0.97}) + "\n")
    assert "new episodes" not in repr(result.result(run)), "the test was of an earlier policy"
    set_status(run.path, success_rate=0.5)
    assert result.sentence(run).endswith("(finished)."), "a rate that is not of the test has another number of episodes"
    assert "no result yet" in result.sentence(make_run(tmp_path, "new", success_rate=None, mean_return=None))


@pytest.mark.parametrize(
    ("gain", "words", "verdict"),
    [(3.0, f"It learnt: {DURING}, from a mean return of 0.50 to 3.50.", "good"),
     (2.0, f"No measurable improvement: {DURING}, from a mean return of 0.50 to 2.50.", "neutral"),
     (-3.0, f"It got worse: {DURING}, from a mean return of 0.50 to -2.50.", "bad")],
)  # fmt: skip
def test_the_verdict_compares_with_the_initial_policy(tmp_path: Path, gain: float, words: str, verdict: str) -> None:
    """Standard errors are 3 / √9 and 4 / √16, together √2; the verdict needs twice that, 2.83."""
    run = make_run(tmp_path, rows=0)
    assert result.learnt(run) is None
    rows = [(0, 0.5, 3.0, 9), (400, 99.0, 1.0, 4), (800, 0.5 + gain, 4.0, 16)]
    names = ("step", "eval/mean_return", "eval/std_return", "eval/episodes")
    named = [dict(zip(names, row, strict=True)) for row in rows]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
    said, learnt = result.learnt(run)
    assert said.startswith(words) and learnt == verdict
    assert said in result.result(run)._repr_html_()
    set_status(run.path, state="interrupted")
    assert result.learnt(run)[0].startswith(words.replace("It got worse", "So far it is worse"))


@pytest.mark.parametrize(
    ("rate", "words"),
    [(0.7, f"It learnt: {DURING}, from 0 % to 70 % success."),
     (0.2, f"No measurable improvement: {DURING}, from a mean return of 20.50 to 21.00.")],
)  # fmt: skip
def test_success_counts_more_than_return(tmp_path: Path, rate: float, words: str) -> None:
    """The Wilson bounds 16.1 % (0 of 20) and 8.1 % (4 of 20) give √(16.1² + 11.9²), just above 20 %."""
    run = make_run(tmp_path, rows=0)
    shared = {"eval/std_return": 3.0, "eval/episodes": 20}
    rows = [{"step": 0, "eval/mean_return": 20.5, "eval/success_rate": 0.0, **shared}]
    rows += [{"step": 800, "eval/mean_return": 21.0, "eval/success_rate": rate, **shared}]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said, learnt = result.learnt(run)
    assert said.startswith(words) and learnt == ("good" if rate == 0.7 else "neutral")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [((-5.0, 0.0), (5.0, 0.0), f"It improved, but no episode succeeds yet: {DURING}, from a mean return of -5.00 to"),
     ((-0.5, 0.0), (-0.501, 0.0), f"No measurable improvement: {DURING}, from a mean return of -0.50 to -0.50.")],
)  # fmt: skip
def test_the_verdict_is_neutral_without_a_success_or_without_a_change(
    tmp_path: Path, before: tuple[float, float], after: tuple[float, float], words: str
) -> None:
    run = make_run(tmp_path, rows=0)
    names = ("eval/mean_return", "eval/success_rate")
    rows = [{"step": step, "eval/std_return": 1e-6, "eval/episodes": 20, **dict(zip(names, values, strict=True))}
            for step, values in ((0, before), (800, after))]  # fmt: skip
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said, verdict = result.learnt(run)
    assert said.startswith(words) and verdict == "neutral"


@pytest.mark.parametrize(
    ("evaluations", "words", "verdict"),
    [(((0.9, -115.0), (0.93, 10.0), (0.76, 40.0)), HACKED, "bad"),
     (((0.25, -115.0), (0.93, 10.0), (0.76, 40.0)),
      f"It learnt: {DURING}, from 25 % to 76 % success. {HACKED}", "neutral"),
     (((0.25, -115.0), (0.93, 10.0), (0.76, 9.0)), f"It learnt: {DURING}, from 25 % to 76 % success.", "good"),
     (((0.25, 5.0), (0.2, 10.0)), f"The return rose, but success did not: {DURING}, from a mean return of", "neutral")],
)  # fmt: skip
def test_a_rising_return_with_falling_success_is_not_green(
    tmp_path: Path, evaluations: tuple[tuple[float, float], ...], words: str, verdict: str
) -> None:
    """A hacked reward: running beside the ball pays more than catching it. 93 and 76 of 100 differ by 17 % ± 10 %."""
    run = make_run(tmp_path, rows=0)
    rows = [{"step": 400 * i, "eval/success_rate": rate, "eval/mean_return": mean, "eval/std_return": 3.0,
             "eval/episodes": 100} for i, (rate, mean) in enumerate(evaluations)]  # fmt: skip
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text, learnt = result.learnt(run)
    assert text.startswith(words) and learnt == verdict
    assert "Branch from the best with a lower" not in result.result(run).text


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that a report displays, one after the other."""
    pytest.importorskip("matplotlib")
    shown = list[str]()

    class Handle:
        def update(self, page: style.Page) -> None:
            shown.append(repr(page))

    def display(page: style.Page, **_: Any) -> Handle:
        shown.append(repr(page))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(result, "missing_video", lambda run: None)
    return shown


def test_a_report_waits_for_a_run_that_is_working(tmp_path: Path, shown: list[str]) -> None:
    run = make_run(tmp_path)
    with at_work(run):
        waiting = threading.Thread(target=result.report, args=(run,))
        waiting.start()
        wait_for(lambda: shown)
    waiting.join(20)
    assert shown[0] == result.BLOCKED
    assert shown[1:] == ["Reach with PPO: 97 % success after 600 steps (finished)."]


def test_an_interrupt_ends_only_the_waiting(
    tmp_path: Path, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)

    def interrupted(self: Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "wait", interrupted)
    with at_work(run):
        result.report(run)
        assert shown == [result.BLOCKED, result.STOPPED] and run.is_working()


def test_players_have_a_caption_and_escape_html(tmp_path: Path) -> None:
    path = tmp_path / "step_000040000.mp4"
    path.write_bytes(b"film")
    assert videos.caption(path) == "the policy of step 40,000"
    best: Any = SimpleNamespace(best=lambda: SimpleNamespace(step=40_000))
    assert videos.caption(path, best) == "the best policy, of step 40,000"
    assert "&lt;x&gt;" in videos.tag(path, "<x>", 320)


def test_find_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "arm")
    with pytest.raises(UserError, match="no run with a checkpoint"):
        gallery.find_run(None, str(tmp_path))
    (run.path / "checkpoints" / "step_000000600").mkdir()
    make_run(tmp_path, "newer-but-empty")
    for chosen in (None, "arm", run.path, run):
        assert gallery.find_run(chosen, str(tmp_path)).path == run.path
    with pytest.raises(UserError, match="does not exist"):
        gallery.find_run("leg", str(tmp_path))


def test_statistics_evaluate_the_best_and_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def evaluate(run: Run, episodes: int, step: int | str) -> dict[str, Any]:
        asked.append(step)
        return {"episodes": episodes, "mean_return": 4.0, "std_return": 1.0, "success_rate": 0.95, "mean_length": 30.0}

    monkeypatch.setattr(gallery, "evaluate", evaluate)
    monkeypatch.setattr(Run, "latest", lambda self: self.checkpoints()[-1])
    run = make_run(tmp_path)
    for folder in ("checkpoints/step_000000600", "best/step_000000400"):
        (run.path / folder).mkdir(parents=True)
    text = gallery.statistics(run, 100).to_string()
    assert asked == ["best", "latest"]
    line = "best, step 400    95.0 %  (89 to 98)  4.00 ± 1.00     30.0 steps      100"
    assert line in text


def test_spread_picks_evenly_spaced_steps() -> None:
    assert gallery.spread([0, 1, 2, 3, 4, 5, 6], 4) == [0, 2, 4, 6]
    assert gallery.spread([3], 4) == [3]


def test_a_recorded_video_is_not_recorded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filmed: list[tuple[Any, ...]] = []

    def render_video(views: tuple[View, ...], path: Path, episodes: int, size: int, on_frame: Any) -> Path:
        filmed.append(([(view.step, view.camera) for view in views], size))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"film")
        return path

    monkeypatch.setattr(videos, "render_video", render_video)
    run = make_run(tmp_path)
    (run.path / "checkpoints" / "step_000000600").mkdir()
    for _ in range(2):
        page = gallery.checkpoints_side_by_side(run, cameras=["front"])._repr_html_()
    assert filmed == [([(0, "front"), (600, "front")], 400)]
    assert "before training · step 600, 60 % of training" in page
    assert run.videos == [], "a video of several policies is not one of `run.videos`"


@pytest.fixture
def trained(tmp_path: Path) -> Run:
    pytest.importorskip("ipywidgets")
    fields: dict[str, Any] = {"n_envs": 2, "threads": 1, "device": "cpu", "eval_every": 64, "overrides": SMALL["PPO"]}
    return kit.train(env="Reach", total_steps=64, run_name="arm", runs_dir=str(tmp_path), **fields)


def test_each_button_does_what_it_says(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a report of a run, which has no panel above it: what a button starts is shown below the buttons."""
    monkeypatch.setattr("kit.ui.next_steps.push", partial(publish.push, episodes=1))
    monkeypatch.setattr(publish, "VIDEO_EPISODES", 1)
    monkeypatch.setattr("kit.ui.dashboard.videos.missing_video", lambda run: None)
    monkeypatch.setenv("KIT_FILM_S", "0.1")
    monkeypatch.setattr("kit.ui.diagnosis.sensible_steps", lambda env: None)  # else it trains on to Reach's usual steps
    steps = NextSteps()
    steps.choose(trained)
    assert "Runs of Reach" in press(steps, "Compare") and "arm" in steps.below.children[0].value
    assert "Enter where to push" in press(steps, "Push")
    steps.target.value = str(tmp_path / "model")
    assert "Pushed: " in press(steps, "Push") and (tmp_path / "model" / "README.md").exists()
    if find_spec("onnxruntime"):
        assert "Exported: " in press(steps, "Export") and list(trained.path.glob("exports/*.onnx"))
    if find_spec("mjviser"):
        assert "arm plays at" in press(steps, "View") and steps._viewer.url in steps.below.children[0].value
        steps._close_viewer()
    assert "starts from the best policy of arm: see below" in press(steps, "Branch")
    new = next(run for run in local_runs(tmp_path) if run.name != "arm")
    assert new.parent is not None and new.parent[0] == "arm"
    watched = steps.dashboard
    assert steps.below.children == (watched.view,)
    watch_to_the_end(watched)
    assert "arm trains on, to 128 steps: see below" in press(steps, "Train longer")
    watch_to_the_end(watched)
    assert trained.status()["step"] == 128 and "finished" in text_of(watched, "kit-head")


@pytest.mark.usefixtures("known_speed")
def test_a_branch_has_the_settings_of_the_form_above_the_report(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.ui.dashboard.videos.missing_video", lambda run: None)
    panel = TrainPanel(trained.requested.replace(run_name=None)).show()
    steps = NextSteps(panel)
    steps.choose(trained)
    assert any("with the form's settings" in button.tooltip for button in steps.view.children[0].children[:5])
    panel.form.entries["overrides"].value = json.dumps({**SMALL["PPO"], "learning_rate": 1e-5})
    panel.form.entries["total_steps"].value = "1"
    assert "total_steps" not in press(steps, "Branch")
    watch_to_the_end(panel)
    new = next(run for run in local_runs(tmp_path) if run.name != "arm")
    assert new.parent is not None and new.parent[0] == "arm"
    assert (new.config.overrides["learning_rate"], new.config.total_steps) == (1e-5, 1)
    with at_work(new):  # after a restart of the kernel, the cell finds the branch that its panel has started
        again = TrainPanel(trained.requested.replace(run_name=None)).show()
        assert again.find_run().name == new.name and again.own_run is not None
        again.leave()
    again.estimator.cancel()
    panel.form.entries["total_steps"].value = "many"
    assert "total_steps=&#x27;many&#x27; is a text" in press(steps, "Branch")
    panel.estimator.cancel()
