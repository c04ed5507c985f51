"""Tests of the notebooks 01_train and 02_resume in JupyterLab and Chromium, with real training."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from kit.runs.finding import local_runs
from kit.runs.run import Run
from tests.ui.fabricate import wait_for
from tests.ui.lab import Lab, Notebook

pytestmark = pytest.mark.timeout(400)
KEPT = ("install", "parameters", "runs", "resume")
"""Cells of 02_resume that stay: not the trainings of its first part."""
STEPS = 400_000
"""Far more steps than can be trained during the test, which stops its run."""


@pytest.fixture
def train(page: Any, lab: Lab, request: pytest.FixtureRequest) -> Any:
    """A copy of 01_train for this test, opened and executed."""
    name = f"{request.node.name}.ipynb"
    shutil.copy(lab.folder / "01_train.ipynb", lab.folder / name)
    notebook = Notebook(page, lab, name).open()
    notebook.run_all()
    notebook.see(".kit-train-panel")
    yield notebook
    for run in local_runs(lab.folder / "runs"):
        if run.is_working():
            run.stop()
            run.wait(200)


def press(notebook: Notebook, what: str) -> None:
    notebook.page.locator(f".kit-{what}-button").first.click(timeout=60_000)


def type_in(notebook: Notebook, field: str, text: str) -> None:
    notebook.page.locator(f".kit-field-{field} input").first.fill(text)


def test_buttons_control_a_run_across_a_reload_a_kernel_restart_and_another_notebook(train: Notebook) -> None:
    """All steps share one run, because each start of a training process and of a kernel takes seconds."""
    run = choose_and_begin(train, "pressed")
    pause_and_save(train, run)
    pause_while_a_cell_runs(train)
    reload_and_restart(train, run)
    stop_and_resume(train, run)
    resume_from_the_other_notebook(train, run)


def choose_and_begin(train: Notebook, name: str) -> Run:
    train.see(".kit-label", "on this machine", 120)
    type_in(train, "total_steps", "many")
    train.see(".kit-label .kit-bad", "total_steps='many'")
    train.see(".kit-wrong.kit-field-total_steps")
    type_in(train, "total_steps", str(STEPS))
    train.page.locator(".kit-hyperparameters >> text=Hyperparameters").click()
    train.page.locator(".kit-hyper-gamma input").fill("0.95")
    train.see(".kit-hyper-gamma .kit-help", "discount factor: a reward k steps")
    train.page.locator(".kit-hyper-learning_rate input").focus()
    above = train.page.locator(".kit-hyper-learning_rate .kit-help").bounding_box()
    train.page.mouse.click(above["x"] + above["width"] - 20, above["y"] + above["height"] / 2)
    assert not train.page.locator(".kit-hyper-learning_rate").evaluate("e => e.contains(document.activeElement)")
    train.see(".kit-changed.kit-hyper-gamma")
    type_in(train, "run_name", name)
    type_in(train, "checkpoint_every", str(STEPS))
    press(train, "train")
    train.see(".kit-head .kit-state", "training", 120)
    run = Run(train.lab.folder / "runs" / name)
    assert run.config.overrides["gamma"] == 0.95
    train.see(".kit-choices", f"Reach with PPO, {STEPS:,} steps, seed 0")
    train.page.locator(".kit-field-seed").wait_for(state="hidden")  # folded while it trains
    train.see(".kit-curves svg circle")
    train.page.wait_for_function("() => / % · /.test(document.title)")
    train.page.locator(".kit-metrics .kit-fold-button").click()
    train.see(".kit-metrics svg circle title", timeout_s=60, state="attached")
    return run


def has_focus(train: Notebook, button: str) -> bool:
    return bool(train.page.evaluate(f"document.activeElement.matches('.kit-{button}-button')"))


def pause_and_save(train: Notebook, run: Run) -> None:
    press(train, "pause")
    train.see(".kit-head .kit-state", "paused")
    stands_at = run.status()["step"]
    assert has_focus(train, "pause"), "or Space could not continue"
    train.page.keyboard.press("Space")
    train.see(".kit-head .kit-state", "training")
    wait_for(lambda: run.status()["step"] > stands_at)
    assert not run.checkpoints()
    press(train, "save")
    train.see(".kit-message", "Saved step")
    assert run.checkpoints()


def pause_while_a_cell_runs(train: Notebook) -> None:
    """Such as `kit.ui.report(run)`, which waits until the run is finished."""
    kernel = "window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel"
    train.page.evaluate(f"() => {{ {kernel}.requestExecute({{code: 'import time; time.sleep(600)'}}) }}")
    train.page.locator("#jp-main-statusbar").get_by_text("Busy").wait_for()
    press(train, "pause")
    train.see(".kit-head .kit-state", "paused", 30)
    press(train, "pause")
    train.see(".kit-head .kit-state", "training", 30)
    train.command("kernelmenu:interrupt")
    train.idle()


def reload_and_restart(train: Notebook, run: Run) -> None:
    """The reloaded page and a new kernel find the run. It is paused, to leave them the CPU."""
    press(train, "pause")
    train.see(".kit-head .kit-state", "paused")
    train.command("docmanager:save")
    train.page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
    train.page.reload()
    train.see(".kit-head .kit-state", "paused")
    press(train, "pause")
    train.see(".kit-head .kit-state", "training")
    press(train, "pause")
    train.see(".kit-head .kit-state", "paused")

    train.command("kernelmenu:restart")
    train.see(".jp-Dialog-button.jp-mod-warn").click()
    train.idle()
    assert run.is_working(), "training runs in another process than the kernel"
    train.see(".kit-train-panel .kit-silent", state="hidden")
    train.page.add_style_tag(content=".kit-silent{animation-delay:0.1s!important}")
    train.see(".kit-silent", "no connection to its kernel")
    train.page.reload()
    train.idle()
    train.run_all()
    train.see(".kit-label", f"{run.name} is already training", 120)
    train.see(".kit-head .kit-state", "paused")


def stop_and_resume(train: Notebook, run: Run) -> None:
    press(train, "stop")
    train.see(".kit-head", "resume goes on from step")
    assert run.status()["state"] == "interrupted"
    stopped_at = run.status()["checkpoint"]["step"]
    wait_for(lambda: has_focus(train, "pause"))  # its label is Resume now
    train.page.keyboard.press("Space")
    wait_for(lambda: run.status()["state"] == "running" and run.status()["step"] > stopped_at)
    press(train, "stop")
    train.see(".kit-head", "stopped (Resume")


def resume_from_the_other_notebook(train: Notebook, run: Run) -> None:
    path = train.lab.folder / "02_resume.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"] = [cell for cell in notebook["cells"] if cell["id"] in KEPT]
    path.write_text(json.dumps(notebook))
    resume = Notebook(train.page, train.lab, path.name).open()
    resume.run_all()
    resume.see(".kit-resume-panel .kit-run", run.name)
    resume.see(".kit-resume-button").click()
    resume.see(".kit-head .kit-state", "training", 120)
    wait_for(run.is_working)


def test_the_result_appears_without_a_click_and_is_saved_in_the_notebook(train: Notebook) -> None:
    algorithms = train.page.locator(".kit-field-algo select")
    algorithms.focus()
    train.page.keyboard.press("ArrowDown")  # JupyterLab's shortcut would go to the next cell
    assert algorithms.input_value() == "RecurrentPPO"
    train.page.keyboard.press("ArrowUp")
    type_in(train, "total_steps", "2048")  # one iteration
    type_in(train, "run_name", "short")
    press(train, "train")
    train.see(".jp-OutputArea-output", "Reach with PPO:", 180)
    train.see('.jp-OutputArea-output:has-text("Reach with PPO:") video')  # the report's, not the dashboard's
    train.command("docmanager:save")
    wait_for(lambda: "data:video/mp4" in (train.lab.folder / train.name).read_text())
