"""Tests of the training panel without a browser, by the values and clicks of its widgets."""

from __future__ import annotations

import html
import shlex
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from gymnasium.spaces import Box

import kit
from kit import cli
from kit.config import ALGOS, RunConfig
from kit.errors import UserError
from kit.format import checkpoint
from kit.runs import provenance
from kit.runs.api import create
from kit.runs.run import Run
from kit.trainers import algorithm
from kit.trainers.arguments import hyperparameter_docs
from kit.ui import dashboard, hyper, result
from kit.ui import panel as panel_module
from kit.ui.as_code import as_code
from kit.ui.form import Form
from kit.ui.gallery import find_run
from kit.ui.headless import RunFailed
from kit.ui.hyper import Hyperparameters, stock_value
from kit.ui.panel import TrainPanel
from kit.ui.resume import ResumePanel
from tests.ui.fabricate import at_work, make_run, text_of, wait_for, watch_to_the_end

ipywidgets = pytest.importorskip("ipywidgets")


pytestmark = pytest.mark.usefixtures("known_speed")


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(env="Ant", n_envs=4, store="drive:kit", overrides={"gamma": 0.98}, session_limit="11h30m"),
        RunConfig(env="Ant-v5", algo="SAC", overrides={"learning_rate": 1e-3}, checkpoint_every=1000),
        RunConfig(env="my_tasks:Corridor", env_options={"length_m": 4.5}, algo="my_algos:OWN", device="cuda:1"),
    ],
)
def test_form_returns_the_config_it_was_made_from(config: RunConfig) -> None:
    assert Form(config, lambda: None).read() == config


def test_every_field_of_a_config_can_be_edited() -> None:
    assert set(Form(RunConfig(), lambda: None).entries) == set(RunConfig().to_dict())


def help_of(entry: Any) -> str:
    """Return the text that an entry shows while it has the focus."""
    return str(entry.description).partition("role='tooltip'>")[2].removesuffix("</span>")


def test_the_help_of_every_field_has_a_default_and_of_a_number_a_range() -> None:
    form = Form(RunConfig(), lambda: None)
    numbers = {"checkpoint_every", "eval_every", "session_limit", "disk_budget", "n_envs", "threads"}
    numbers |= {name for name, value in RunConfig().to_dict().items() if isinstance(value, int)}
    for name, entry in [*form.entries.items(), ("price", form.price)]:
        assert "default: " in help_of(entry), name
        assert name not in numbers | {"price"} or "usual" in help_of(entry), name


@pytest.mark.parametrize("algo", ALGOS)
def test_the_help_of_every_hyperparameter_has_its_default_and_of_a_number_a_range(algo: str) -> None:
    form = Hyperparameters(ipywidgets, lambda overrides: None)
    known, teaches = hyperparameter_docs(algorithm.find(algo)), {"Distill": {"teacher": "scripted"}}
    teaches["BC"] = {"dataset": "demonstrations"}
    config = RunConfig(algo=algo, overrides={"gamma": 0.5} if "gamma" in known else {}, **teaches.get(algo, {}))
    form.show(config, config)
    for name, entry in form.entries.items():
        assert help_of(entry).endswith(f"; default: {html.escape(entry.placeholder)}"), name
        assert isinstance(known[name][0], bool | str | None) or "usual" in help_of(entry).lower(), name
        assert "tests/" not in help_of(entry) and "(`start_from`)" not in help_of(entry), "unknown to the form"
    if config.overrides:
        assert form.entries["gamma"].value == "0.5" and not help_of(form.entries["gamma"]).endswith("0.5")


def test_the_help_of_env_options_names_those_of_the_chosen_task() -> None:
    form = Form(RunConfig(env="ReachVision"), lambda: None)
    options = form.entries["env_options"]
    assert "task: cameras, size, frames, joints, critic_state, randomize, curriculum, obs_groups;" in help_of(options)
    form.entries["env"].value = "tests.envs.corridor:Walk"
    assert "cameras" not in help_of(options)
    form.entries["env"].value = "tests.envs.mistakes:Leaky"
    assert help_of(options) == "options of the task: reward; default: {}"


def test_a_chosen_task_sets_its_own_number_of_steps_unless_another_was_typed() -> None:
    form = Form(RunConfig(), lambda: None)
    env, steps = form.entries["env"], form.entries["total_steps"]
    for typed in ("Mis", "Missio", "Mission"):  # unfinished names declare no number of steps
        env.value = typed
    assert steps.value == "40000000"
    env.value = "Ant-v5"
    assert steps.value == "40000000"
    env.value = "Push"
    assert steps.value == "800000"
    env.value, steps.value = "Reach", "5000"
    env.value = "Ant"
    assert steps.value == "5000"


@pytest.mark.parametrize(
    ("field", "typed", "sentence"),
    [
        ("total_steps", "0", "total_steps=0 must be"),
        ("n_envs", "-3", "n_envs=-3 must be"),
        ("checkpoint_every", "soon", "checkpoint_every=&#x27;soon&#x27; is not a number of steps or a time"),
        ("overrides", "{gamma: 1}", "is not JSON"),
        ("total_steps", "1,5", "total_steps=&#x27;1,5&#x27; is a text"),
        ("total_steps", "30.000", "may mean 30000 or 30; write it without a point"),
        ("run_name", "../up", "cannot name a folder"),
    ],
)
def test_invalid_values_are_reported_at_once(panel: TrainPanel, field: str, typed: str, sentence: str) -> None:
    before = panel.form.entries[field].value
    panel.form.entries[field].value = typed
    assert sentence in panel.label.value
    assert panel.train_button.disabled
    panel.form.entries[field].value = before
    assert not panel.train_button.disabled


def test_the_label_shows_the_estimate_and_errors_of_the_resolved_config(panel: TrainPanel) -> None:
    wait_for(lambda: "About 2 min on this machine (1,000 steps/s; with start and evaluations)" in panel.label.value)
    panel.form.entries["overrides"].value = '{"n_steps": 100, "batch_size": 77}'
    wait_for(lambda: "batch_size=77 does not divide" in panel.label.value)
    assert panel.train_button.disabled
    panel.form.entries["overrides"].value = "{}"
    wait_for(lambda: "learning_rate" in panel.form.hyper.entries)
    panel.form.hyper.entries["learning_rate"].value = "0,001"
    wait_for(lambda: "&#x27;0,001&#x27; is not a schedule; write 0.001, with a point" in panel.label.value)
    assert panel.train_button.disabled


def test_after_stop_the_speed_is_not_measured(panel: TrainPanel, tmp_path: Path) -> None:
    wait_for(lambda: "About 2 min" in panel.label.value)
    panel.attach(make_run(tmp_path, "arm", state="interrupted"))
    watch_to_the_end(panel)
    assert "About" not in panel.label.value and "…" not in panel.label.value
    assert not panel.train_button.disabled


def test_a_taken_name_is_reported_before_train_is_pressed(panel: TrainPanel, tmp_path: Path) -> None:
    make_run(tmp_path, "arm")
    panel.form.entries["run_name"].value = "arm"
    assert "run_name=&#x27;arm&#x27; exists" in panel.label.value and panel.train_button.disabled
    panel.form.entries["run_name"].value = "leg"
    assert "exists" not in panel.label.value and not panel.train_button.disabled


def test_the_page_of_the_chosen_task_unfolds(panel: TrainPanel) -> None:
    page = panel.task.page
    assert page.value == ""
    panel.task.is_open = True
    wait_for(lambda: "per metre that the hand moves closer to the goal" in page.value)
    panel.form.entries["env"].value = "CartPole-v1"
    wait_for(lambda: "one of 2 choices" in page.value)


CONFIG = RunConfig(
    env="Ant",
    total_steps=5000,
    n_envs=4,
    threads=2,
    overrides={"gamma": 0.98, "learning_rate": 5e-5, "policy_kwargs": {"net_arch": [8]}},
    store="it's here",
)


def test_every_format_of_a_config_as_code_is_equivalent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[RunConfig] = []

    def train(config: RunConfig | None, start_from: Any, trust: bool, on_progress: Any, **fields: Any) -> Any:
        trained.append(RunConfig(**fields))
        raise UserError("not now")

    monkeypatch.setattr(kit, "train", train)
    written = iter(as_code(CONFIG).values())
    (tmp_path / "config.yaml").write_text(next(written))
    assert RunConfig.load(tmp_path / "config.yaml") == CONFIG
    command, *arguments = shlex.split(next(written))
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert command == "kit" and trained == [CONFIG]
    assert eval(next(written), {"kit": SimpleNamespace(launch=RunConfig)}) == CONFIG
    given = shlex.split(next(written))[3:]
    parameters = {name: value for text in given[1::2] for name, value in yaml.safe_load(text).items()}
    assert given[::2] == ["-y"] * len(parameters) and RunConfig(**parameters) == CONFIG
    assert yaml.safe_load(next(written))["overrides"]["n_steps"] > 0, "auto must be replaced"


def test_a_config_unfolds_as_code(panel: TrainPanel) -> None:
    page = panel.code.page
    panel.code.is_open = True
    wait_for(lambda: "kit train --env Reach" in page.value)
    panel.form.entries["seed"].value = "7"
    wait_for(lambda: "--seed 7" in page.value)


def test_hyperparameter_fields_show_defaults_changes_and_errors(panel: TrainPanel) -> None:
    def gamma() -> Any:
        return panel.form.hyper.entries.get("gamma")

    wait_for(lambda: gamma() is not None and gamma().placeholder == "0.99")
    entries, written = panel.form.hyper.entries, panel.form.entries["overrides"]
    assert entries["n_steps"].placeholder == "256" and entries["batch_size"].placeholder == "256"
    assert "discount factor: a reward k steps" in gamma().description
    gamma().value = "0.9"
    assert written.value == '{"gamma": 0.9}'
    entries["net_arch"].value = "[32, 32]"
    wait_for(lambda: "kit-changed" in entries["net_arch"]._dom_classes)
    assert panel.config.overrides == {"gamma": 0.9, "policy_kwargs": {"net_arch": [32, 32]}}
    assert "kit-changed" in gamma()._dom_classes and "kit-changed" not in entries["n_steps"]._dom_classes
    entries["n_steps"].value = "100"
    wait_for(lambda: entries["batch_size"].placeholder == "200")  # follows n_steps: a divisor of 100 × 8 envs
    gamma().value = entries["net_arch"].value = entries["n_steps"].value = ""
    wait_for(lambda: "kit-changed" not in gamma()._dom_classes)
    assert panel.config.overrides == {}
    gamma().value = "1.9"
    wait_for(lambda: "gamma=1.9 is out of range" in panel.label.value)
    assert "kit-wrong" in gamma()._dom_classes
    panel.form.entries["algo"].value = "SAC"
    gamma().value = ""
    wait_for(lambda: "tau" in panel.form.hyper.entries and "n_epochs" not in panel.form.hyper.entries)


def test_text_typed_while_fields_are_filled_is_kept(panel: TrainPanel) -> None:
    hyper = panel.form.hyper
    wait_for(lambda: "gamma" in hyper.entries and hyper.entries["gamma"].placeholder == "0.99")
    typist = threading.Thread(target=lambda: setattr(hyper.entries["gamma"], "value", "0.9"))

    def type_once(change: Any) -> None:
        hyper.entries["batch_size"].unobserve(type_once, names="placeholder")
        typist.start()
        typist.join()

    hyper.entries["batch_size"].observe(type_once, names="placeholder")  # types while the loop fills the fields
    hyper.entries["n_steps"].value = "100"
    wait_for(lambda: hyper.entries["gamma"].value == "0.9" and "kit-changed" in hyper.entries["gamma"]._dom_classes)
    assert panel.config.overrides == {"n_steps": 100, "gamma": 0.9}


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [("learning_rate", "3e-4", 3e-4), ("gae_lambda", "0.", 0), ("n_steps", "1e3", 1000), ("net_arch", "8, 8", [8, 8])],
)
def test_a_hyperparameter_stays_as_it_was_typed(panel: TrainPanel, name: str, typed: str, value: Any) -> None:
    wait_for(lambda: name in panel.form.hyper.entries and panel.form.hyper.entries[name].placeholder)
    entry = panel.form.hyper.entries[name]
    entry.value = typed
    wait_for(lambda: "kit-changed" in entry._dom_classes)
    assert entry.value == typed and "must be" not in panel.label.value
    assert panel.config.overrides in ({name: value}, {"policy_kwargs": {name: value}})


def test_values_computed_before_the_last_edit_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Hyperparameters(ipywidgets, lambda overrides: None)
    form.show(RunConfig(), RunConfig())
    gamma = form.entries["gamma"]

    def resolve(config: RunConfig) -> RunConfig:
        gamma.value = "0.9"  # typed while the values are computed
        return config

    monkeypatch.setattr(hyper, "resolve", resolve)
    form.show(RunConfig(overrides={"gamma": 0.0}), RunConfig())
    assert gamma.value == "0.9"


def test_an_edit_reads_no_run_that_is_not_at_work(
    panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        make_run(tmp_path, name)
    panel.estimator.cancel()
    read = list[str]()
    monkeypatch.setattr(Run, "status", lambda self: read.append(self.name) or {})
    panel.form.entries["seed"].value = "1"
    panel._beat()
    assert not read


def test_a_price_can_be_set(panel: TrainPanel) -> None:
    panel.form.price.value = "36"
    wait_for(lambda: "about $1.05" in panel.label.value)  # 100 s of training and 5 s of startup, at $0.01 per second
    panel.form.price.value = "much"
    assert "dollars_per_hour=&#x27;much&#x27; is not a price" in panel.label.value
    assert "kit-wrong" in panel.form.price._dom_classes


def test_pasted_yaml_fills_the_form(panel: TrainPanel) -> None:
    panel.pasted.value = CONFIG.replace(run_name="other").to_yaml()
    assert panel.form.read() == CONFIG
    panel.pasted.value = "env: [Reach]"
    assert "env=[&#x27;Reach&#x27;] is a list" in panel.label.value and panel.form.read() == CONFIG


def test_train_launches_what_the_form_says(panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunConfig] = []

    def launch(config: RunConfig, start_from: None = None) -> Any:
        asked.append(config)
        return make_run(tmp_path, "made", config={"total_steps": 500})

    ended: list[str] = []
    monkeypatch.setattr(panel_module, "launch", launch)
    panel.on_change.append(lambda run: ended.append(run.name))
    panel.form.entries["total_steps"].value = "500"
    panel.train_button.click()
    wait_for(lambda: bool(ended))
    assert [config.total_steps for config in asked] == [500]
    assert set(ended) == {"made"}
    assert panel.run is not None and panel.run.name == "made"


def test_an_edit_that_arrives_after_the_press_of_train_counts(
    panel: TrainPanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the kernel is busy, the browser sends an entry's second edit later than the press that followed it."""
    asked: list[str] = []

    def launch(config: RunConfig, start_from: None = None) -> Any:
        asked.append(config.algo)
        return make_run(tmp_path, "made")

    monkeypatch.setattr(panel_module, "launch", launch)
    panel.form.entries["algo"].value = "SAC"
    panel.train_button.click()
    panel.form.entries["algo"].value = "PPO"
    assert panel.train_button.disabled, "a second press would start a second run"
    wait_for(lambda: bool(asked))
    assert asked == ["PPO"]


def test_a_refused_launch_shows_its_error_in_the_panel(panel: TrainPanel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: RunConfig, start_from: None = None) -> Any:
        raise UserError("store='hf://me/runs' needs a Hugging Face token.")

    monkeypatch.setattr(panel_module, "launch", refuse)
    panel.train_button.click()
    wait_for(lambda: "needs a Hugging Face token" in panel.label.value)
    wait_for(lambda: not panel.train_button.disabled)
    assert "kit-wrong" in panel.form.entries["store"]._dom_classes
    panel.form.entries["run_name"].value = "leg"
    assert "token" not in panel.label.value, "an edit must clear the old error"


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
        wait_for(lambda: panel.watch_button.description == "Watch busy")
        assert run.is_working() and text_of(panel, "kit-head") == "" and panel.pause_button.disabled
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


def test_without_a_user_it_trains_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_HEADLESS", "1")
    monkeypatch.setattr(panel_module, "launch", lambda config, start_from=None: make_run(tmp_path, "ok"))
    panel = TrainPanel(runs_dir=str(tmp_path)).show()
    assert panel.run is not None and panel.run.status()["state"] == "finished"
    bad = make_run(tmp_path, "bad", state="failed", message="no")
    monkeypatch.setattr(panel_module, "launch", lambda config, start_from=None: bad)
    with pytest.raises(RunFailed, match="bad failed: no"):
        TrainPanel(runs_dir=str(tmp_path)).show()


@pytest.mark.parametrize(
    ("typed", "layers"), [("64,64", [64, 64]), ("128, 64", [128, 64]), ("[32]", [32]), ("256,256", [256, 256])]
)
def test_layers_may_be_typed_without_brackets(typed: str, layers: list[int]) -> None:
    overrides: list[dict[str, Any]] = []
    form = Hyperparameters(ipywidgets, overrides.append)
    form.show(RunConfig(), RunConfig())
    form.entries["net_arch"].value = typed
    assert overrides == [{"policy_kwargs": {"net_arch": layers}}]


@pytest.mark.parametrize("algo", ALGOS)
def test_stock_values_are_those_of_stable_baselines3(algo: str) -> None:
    record, space = algorithm.find(algo), Box(-1.0, 1.0, (3,))
    policy = record.policy(space, space, lambda _: 1e-3)
    layers = policy.net_arch
    if isinstance(layers, dict) and layers["pi"] in (layers.get("vf"), layers.get("qf")):
        layers = layers["pi"]  # both networks have these layers
    assert stock_value(record, "net_arch") == layers
    assert stock_value(record, "activation_fn") == policy.activation_fn.__name__.lower()
    assert stock_value(record, "target_kl") is None
