"""Tests of the training panel without a browser, by the values and clicks of its widgets."""

from __future__ import annotations

import html
import shlex
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from gymnasium.spaces import Box

import kit
from kit import cli
from kit.config import ALGOS, RunConfig
from kit.errors import UserError
from kit.runs.run import Run
from kit.trainers import algorithm
from kit.trainers.arguments import hyperparameter_docs
from kit.ui import hyper
from kit.ui import panel as panel_module
from kit.ui.as_code import as_code
from kit.ui.form import Form
from kit.ui.headless import RunFailed
from kit.ui.hyper import Hyperparameters, stock_value
from kit.ui.panel import TrainPanel
from tests.ui.fabricate import make_run, wait_for, watch_to_the_end

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
    wait_for(lambda: "About 2 min on this machine (about 1,000 steps/s, measured once; with start" in panel.label.value)
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
    assert panel.choices.button.description.endswith("Settings, not valid yet")
    panel.code.is_open = True
    wait_for(lambda: "is not a price" in panel.code.page.value)
    panel.form.price.value = ""
    wait_for(lambda: "kit train" in panel.code.page.value)
    assert "Reach with" in panel.choices.button.description


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


def test_a_refusal_stays_although_a_file_has_changed_before_the_press(
    panel: TrainPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: RunConfig, start_from: None = None) -> Any:
        raise UserError("env='own:Task': reward() returned shape (8, 1).")

    monkeypatch.setattr(panel_module, "launch", refuse)
    monkeypatch.setattr(panel_module, "file_times", lambda config: {Path("own.py"): 2})  # saved just before
    panel.train_button.click()
    wait_for(lambda: "reward() returned" in panel.label.value and not panel._starting)
    panel._beat()
    assert "reward() returned" in panel.label.value


def test_a_store_that_cannot_exist_is_refused_before_train_is_pressed(panel: TrainPanel) -> None:
    panel.form.entries["store"].value = "nowhere:x"
    assert "has an unknown scheme" in panel.label.value and panel.train_button.disabled
    assert "kit-wrong" in panel.form.entries["store"]._dom_classes
    panel.form.entries["store"].value = ""
    panel.form.entries["env"].value = "Reech"
    wait_for(lambda: "did you mean Reach" in panel.label.value)
    assert panel.choices.button.description.endswith("Settings, not valid yet")


def test_a_run_that_was_deleted_or_renamed_elsewhere_leaves_the_panel(panel: TrainPanel, tmp_path: Path) -> None:
    panel.attach(run := make_run(tmp_path, "gone"))
    watch_to_the_end(panel)
    run.path.rename(tmp_path / "new-name")
    panel._beat()
    assert panel.run is None and "gone was deleted or renamed" in panel._message.value


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
