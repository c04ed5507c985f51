"""Tests of advice after a run: causes of a poor result, known results of the task, message of the buttons."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kit.runs import provenance
from kit.runs.run import Run
from kit.ui import diagnosis, next_steps, result, videos
from kit.ui.dashboard import Dashboard
from tests.envs import corridor
from tests.ui.fabricate import at_work, make_run, wait_for, watch_to_the_end


def run_with(tmp_path: Path, rows: list[dict[str, Any]], config: dict[str, Any] | None = None, **status: Any) -> Run:
    """A finished run of Reach with these rows of metrics, 20,000 steps apart."""
    run = make_run(tmp_path, rows=0, config={"env": "Reach", "total_steps": 200_000, **(config or {})}, **status)
    lines = [json.dumps({"step": 20_000 * i, **row}) for i, row in enumerate(rows)]
    (run.path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return run


GOOD = {"eval/success_rate": 0.5, "rollout/success_rate": 0.5, "train/explained_variance": 0.9, "train/std": 0.5}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([GOOD | {"train/approx_kl": 0.2, "train/learning_rate": 1e-3}] * 6, "KL divergence is 0.2, more than 0.05"),
        ([GOOD | {"train/explained_variance": 0.05}] * 6, "explains 5 % of the returns' variance"),
        ([GOOD | {"train/std": std} for std in (0.6, 0.4, 0.2, 0.1, 0.06, 0.04)], "fell from 0.6 to 0.05"),
        ([GOOD | {"rollout/success_rate": 0.9}] * 6, "90 % of the episodes succeed, without it 50 %"),
        ([GOOD | {"eval/success_rate": 0.0, "rollout/success_rate": 0.0}] * 6, "No episode has succeeded"),
        ([GOOD | {"eval/reward/a": -99.0, "eval/reward/b": 1.0}] * 6, "a makes up 99 % of all terms"),
        ([GOOD | {"eval/success_rate": rate} for rate in (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)], "from 40 % in its third"),
    ],
)
def test_a_cause_is_named_with_its_value(tmp_path: Path, rows: list[dict[str, Any]], words: str) -> None:
    run = run_with(tmp_path, rows, step=200_000)
    found = diagnosis.causes(run)
    assert words in " ".join(found) and len(found) == 1
    assert diagnosis.causes(run_with(tmp_path / "good", [GOOD] * 6, step=200_000)) == []


def test_episodes_in_which_a_teacher_acts_say_nothing_about_noise(tmp_path: Path) -> None:
    taught = {"algo": "Distill", "teacher": "scripted"}
    run = run_with(tmp_path, [GOOD | {"rollout/success_rate": 0.9}] * 6, taught, step=200_000)
    assert diagnosis.causes(run) == []


def test_advice_for_a_short_run_names_the_steps_that_its_task_needs(tmp_path: Path) -> None:
    run = run_with(tmp_path, [GOOD] * 6, step=20_000, success_rate=0.3)
    first, second = next_steps.advice(run, improved=True)
    assert first == "Reach with PPO and preset auto reached 100 % success after 100,000 steps."
    assert second == "It trained for only 20,000 steps. Train longer."
    enough = run_with(tmp_path / "enough", [GOOD] * 6, step=70_000, success_rate=0.3)
    assert next_steps.advice(enough, improved=True) == [first], "two thirds of the usual steps are enough"


def test_without_success_so_far_a_short_run_is_only_told_to_train_longer(tmp_path: Path) -> None:
    rows = [GOOD | {"eval/success_rate": 0.0, "rollout/success_rate": 0.0}] * 6
    found = diagnosis.causes(run_with(tmp_path, rows, step=20_000))
    assert found == ["It trained for only 20,000 steps. Train longer."]


def test_a_run_that_collapsed_is_not_told_to_train_longer(tmp_path: Path) -> None:
    """With a learning rate of 0.03: a short run, and a KL divergence of 180."""
    rates = (0.0, 0.3, 0.05, 0.05, 0.05, 0.05)
    rows = [GOOD | {"train/approx_kl": 182.4, "train/learning_rate": 0.03, "eval/success_rate": rate} for rate in rates]
    run = run_with(tmp_path, rows, step=20_000, success_rate=0.05)
    (run.path / "best" / "step_000020000").mkdir(parents=True)
    said = " ".join(next_steps.advice(run, improved=True))
    assert "that of step 20,000; the later ones are worse (5 % against 30 %)" in said
    assert "too much: its KL divergence is 182, more than 0.05. Lower learning_rate (now 0.03)" in said
    assert "Train longer" not in said
    small = [row | {"train/approx_kl": 0.01} for row in rows]
    calm = run_with(tmp_path / "calm", small, step=20_000, success_rate=0.05)
    assert "Train longer" in " ".join(next_steps.advice(calm, improved=True))


@pytest.mark.parametrize(("steps", "env", "more"), [
    (3000, "Reach", "100,000"), (60_000, "Reach", "100,000"), (100_000, "Reach", "200,000"),
    (3000, "mine:Task", "6,000"),
])  # fmt: skip
def test_train_longer_goes_to_the_usual_steps_of_the_task(tmp_path: Path, steps: int, env: str, more: str) -> None:
    pytest.importorskip("ipywidgets")
    shown = next_steps.NextSteps(Dashboard())
    shown.choose(make_run(tmp_path, config={"env": env, "total_steps": steps}))
    assert shown._longer_button.description == f"Train longer, to {more} steps"
    shown.choose(make_run(tmp_path, "stopped", state="interrupted", config={"env": env, "total_steps": steps}))
    assert shown._longer_button.description == f"Resume, to {steps:,} steps"


@pytest.mark.parametrize("taught", [{"algo": "BC", "dataset": "demos"}, {"algo": "Distill", "teacher": "scripted"}])
def test_the_usual_steps_are_not_those_of_runs_that_learn_from_others(tmp_path: Path, taught: dict[str, Any]) -> None:
    assert next_steps.advice(run_with(tmp_path, [GOOD] * 6, taught, step=20_000, success_rate=0.3), True) == []


def test_the_usual_steps_are_not_those_of_a_branch(tmp_path: Path) -> None:
    options = {"env": "Mission", "env_options": {"curriculum": False}}
    run = run_with(tmp_path, [GOOD] * 6, options, step=8_000_000, success_rate=0.75)
    assert "It trained for only" in " ".join(next_steps.advice(run, improved=True))
    provenance.write(run.path, run.config, parent={"name": "team", "step": 40_000_000})
    assert next_steps.advice(Run(run.path), improved=True) == []


def test_a_return_that_rises_without_success_is_named_first(tmp_path: Path) -> None:
    """Of one's own task; the rise of 80 is more than twice the spread of 10 between episodes."""
    never = GOOD | {"eval/success_rate": 0.0, "rollout/success_rate": 0.0, "eval/std_return": 10.0}
    rows = [never | {"eval/mean_return": value, "train/approx_kl": 0.2} for value in (10.0, 50, 80, 90, 90, 90)]
    found = diagnosis.causes(run_with(tmp_path / "own", rows, {"env": "mine:Task"}))
    assert "The return rose from 10 to 90, and no episode succeeded" in found[0] and "KL" in found[1]
    assert "No episode has succeeded" not in " ".join(found)
    assert "The return rose" not in " ".join(diagnosis.causes(run_with(tmp_path / "kits", rows, step=200_000)))


def test_a_task_with_goals_is_not_for_ppo(tmp_path: Path) -> None:
    words = "PPO hardly learns goal-conditioned tasks such as this one; SAC, TD3 and CrossQ"
    cases = (("Push", "PPO", True), ("Push", "SAC", False), ("Reach", "PPO", False), ("missing:Task", "PPO", False))
    for env, algo, expected in cases:
        run = run_with(tmp_path / env / algo, [GOOD] * 6, {"env": env, "algo": algo}, step=800_000)
        assert (words in " ".join(diagnosis.causes(run))) == expected


def test_a_good_run_is_not_diagnosed(tmp_path: Path) -> None:
    rows = [GOOD | {"train/approx_kl": 0.2}] * 6
    assert next_steps.advice(run_with(tmp_path / "a", rows, success_rate=0.97), improved=False) == []
    assert next_steps.advice(run_with(tmp_path / "b", rows, success_rate=None), improved=True) == []
    assert next_steps.advice(run_with(tmp_path / "c", rows, success_rate=0.5), improved=True)


def test_choosing_another_run_clears_the_message(tmp_path: Path) -> None:
    pytest.importorskip("ipywidgets")
    steps = next_steps.NextSteps(Dashboard())
    steps.choose(make_run(tmp_path, "one"))
    steps._say("Exported.")
    steps.choose(Run(tmp_path / "one"))
    assert "Exported." in steps.message.value
    steps.choose(make_run(tmp_path, "two"))
    assert steps.message.value == ""


def press(steps: next_steps.NextSteps, name: str) -> str:
    """Press the button whose label starts with `name`; return its message when its action has ended."""
    buttons = [widget for box in steps.view.children[0].children for widget in (box, *getattr(box, "children", ()))]
    button = next(widget for widget in buttons if getattr(widget, "description", "").startswith(name))
    assert not button.disabled
    button.click()
    wait_for(lambda: not button.disabled)
    return str(steps.message.value)


def test_a_button_whose_packages_are_not_installed_is_grey_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ipywidgets")
    monkeypatch.setattr(next_steps, "find_spec", lambda name: None)
    buttons = {button.description: button for button in next_steps.NextSteps(Dashboard()).view.children[0].children[:5]}
    assert [name for name, button in buttons.items() if button.disabled] == ["View in 3-D", "Export"]
    assert buttons["View in 3-D"].tooltip.startswith("viser and mjviser not installed: run pip install 'kit[view]'")


@pytest.mark.parametrize(("env", "offered"), [
    ("Reach", True), ("missing:Task", True), ("tests.envs.corridor:Corridor", False), ("CartPole-v1", False),
])  # fmt: skip
def test_a_view_in_3d_is_offered_only_of_a_mujoco_task(tmp_path: Path, env: str, offered: bool) -> None:
    pytest.importorskip("ipywidgets")
    assert corridor.Corridor, "imported, its module is trusted"
    steps = next_steps.NextSteps(Dashboard())
    steps.choose(make_run(tmp_path, config={"env": env}))
    (button,) = [each for each in steps.view.children[0].children if getattr(each, "description", "") == "View in 3-D"]
    assert (button.layout.display != "none") == offered


def test_on_colab_the_viewer_is_opened_from_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipywidgets")
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(next_steps, "find_spec", lambda name: name)
    steps = next_steps.NextSteps()
    steps.choose(run := make_run(tmp_path))
    assert f"On Colab, run kit.ui.view(&#x27;{run.path}&#x27;) in a new cell." in press(steps, "View")


def test_a_report_of_a_run_has_the_buttons_if_it_has_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipywidgets")
    shown: list[Any] = []
    monkeypatch.setenv("KIT_HEADLESS", "0")
    monkeypatch.setattr("IPython.display.display", lambda view, **_: shown.append(view))
    monkeypatch.setattr(result, "missing_video", lambda run: None)
    run = make_run(tmp_path)
    result.report(run)
    assert len(shown) == 1
    (run.path / "checkpoints" / "step_000000600").mkdir()
    result.report(run)
    assert len(shown) == 3 and "application/vnd.jupyter.widget-view+json" in shown[2]


def test_the_report_of_a_run_is_renewed_when_a_button_has_resumed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ipywidgets")
    made, pages = list[next_steps.NextSteps](), list[Any]()

    class Made(next_steps.NextSteps):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(result, "NextSteps", Made)
    monkeypatch.setenv("KIT_HEADLESS", "0")
    handle = types.SimpleNamespace(update=pages.append)
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: handle)
    for module in (result, videos):
        monkeypatch.setattr(module, "missing_video", lambda run: None)
    run = make_run(tmp_path, state="interrupted")
    (run.path / "checkpoints" / "step_000000600").mkdir()
    result.report(run)
    with at_work(run):
        made[0].dashboard.attach(run)
        wait_for(lambda: pages and "arm trains; when it has ended" in pages[-1].text)
    watch_to_the_end(made[0].dashboard)
    assert "(finished)" in pages[-1].text
    made[0].dashboard.attach(make_run(tmp_path, "branch"))
    watch_to_the_end(made[0].dashboard)
    assert "/branch." not in pages[-1].body, "it is the report of the other run"
