"""Tests of `RunConfig`: accepted and refused values, YAML round trip, parsing of typed text."""

from pathlib import Path

import pytest
import yaml

from kit import envs
from kit.config import RunConfig, byte_count, number, seconds
from kit.errors import UserError
from kit.measure.auto import resolve

CONFIGS = Path(__file__).parents[1] / "notebooks" / "configs"


def test_yaml_round_trip(tmp_path):
    config = RunConfig(env="Ant-v5", total_steps=5000, overrides={"gamma": 0.98, "policy_kwargs": {"net_arch": [32]}})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert RunConfig.load(tmp_path / "config.yaml") == config


def test_dishwashing_configs_of_the_notebooks():
    state, video = (RunConfig.load(CONFIGS / f"dishwashing_{name}.yaml") for name in ("state", "video"))
    assert (state.env, video.env) == ("Dishwashing", "DishwashingVideo")
    for config, seen in ((state, (69,)), (video, (8, 3, 64, 64))):
        assert envs.describe(config.env, config.env_options).observation_space.shape == seen
    assert resolve(state).overrides["gamma"] == 0.95, "gamma from the task's row in kit/presets.py"
    assert resolve(video).encoder == "clip_cnn"
    assert resolve(video.replace(env="Dishwashing")).encoder == "auto", "only `env` selects clips or numbers"


def test_config_copies_overrides():
    overrides = {"gamma": 0.9}
    config = RunConfig(overrides=overrides)
    overrides["gamma"] = 0.1
    assert config.overrides == {"gamma": 0.9}


def test_whole_floats_count_as_whole_numbers():
    assert RunConfig(total_steps=1e6).total_steps == 1_000_000


def test_yaml_files_accept_1e6_and_3e_4(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("total_steps: 1e6\nn_envs: 1.6e1\noverrides: {learning_rate: 3e-4, gamma: .9E0}\n")
    config = RunConfig.load(path)
    assert (config.total_steps, config.n_envs) == (1_000_000, 16)
    assert config.overrides == {"learning_rate": 3e-4, "gamma": 0.9}


def test_a_text_that_looks_like_1e6_stays_a_text(tmp_path):
    config = RunConfig(run_name="1e6", overrides={"name": "3e-4", "small": 3e-5})
    assert RunConfig.from_yaml(config.to_yaml()) == config
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()))  # as earlier versions wrote it
    assert RunConfig.load(path, of_run=True) == config


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("5m", 300), ("11h30m", 41_400), ("1d", 86_400), ("1m30s", 90)]
)
def test_durations_are_parsed(text, expected):
    assert seconds("session_limit", text) == expected


@pytest.mark.parametrize(("text", "expected"), [("500MB", 5e8), ("10 GB", 1e10), ("1.5TB", 1.5e12)])
def test_byte_counts_are_parsed(text, expected):
    assert byte_count("disk_budget", text) == expected


BAD = {
    "algo": ("DQN", "valid are PPO, RecurrentPPO, A2C, SAC"),
    "preset": ("fats", "did you mean fast?"),
    "encoder": ("resnet", "valid are"),
    "device": ("gpu", "use auto, cpu, cuda"),
    "total_steps": (0, "at least 1"),
    "n_envs": (-3, "at least 1"),
    "threads": (0, "at least 1"),
    "seed": (2**32, "the largest is 4291967292"),
    "eval_every": (-1, "at least 0"),
    "checkpoint_every": ("soon", '"5m"'),
    "session_limit": ("", '"11h30m"'),
    "disk_budget": ("a lot", '"10GB"'),
    "run_name": ("../up", "letters, digits"),
    "overrides": ("gamma", "mapping"),
    "env": (3, "a text"),
}


def test_a_message_names_the_type_and_the_remedy():
    with pytest.raises(UserError, match=r"^run_name=3 is a number; give a text or None\.$"):
        RunConfig(run_name=3)


@pytest.mark.parametrize("field", BAD)
def test_bad_values_name_field_value_and_remedy_in_one_sentence(field):
    value, remedy = BAD[field]
    with pytest.raises(UserError) as error:
        RunConfig(**{field: value})
    message = str(error.value)
    assert message.startswith(f"{field}={value!r}")
    assert remedy in message
    assert "\n" not in message and message.endswith(".")


@pytest.mark.parametrize("value", [True, 1.5, "many"])
def test_lossy_types_are_refused(value):
    with pytest.raises(UserError, match=r"total_steps=.*; give a whole number such as 1000 or 1e3"):
        RunConfig(total_steps=value)


def test_unknown_field_suggests_the_known_one():
    with pytest.raises(UserError, match=r"total_step=1 is not a field of RunConfig; did you mean total_steps\?"):
        RunConfig.from_dict({"total_step": 1})


def test_a_hyperparameter_among_the_fields_and_a_file_for_many_runs_are_named(tmp_path):
    with pytest.raises(UserError, match=r"learning_rate=0.1 is not a field .* hyperparameters belong in overrides"):
        RunConfig.from_dict({"learning_rate": 0.1})
    for key in ("jobs", "seeds", "sweep", "grid", "notebook"):
        (tmp_path / "many.yaml").write_text(f"env: Reach\n{key}: 3\n")
        with pytest.raises(UserError, match=rf"many.yaml has {key}, as a file for many runs; .* `kit batch`"):
            RunConfig.load(tmp_path / "many.yaml")


def test_newer_version_is_refused():
    with pytest.raises(UserError, match="version=99 of this config is newer"):
        RunConfig.from_dict({"version": 99})


def test_a_version_that_is_no_number_is_refused():
    with pytest.raises(UserError, match="version='one' of this config is not a whole number"):
        RunConfig.from_dict({"version": "one"})


@pytest.mark.parametrize("text", ["- a\n- b", "{", "\x00", ""])
def test_invalid_config_files_are_refused(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml"):
        RunConfig.load(path)


def test_a_yaml_key_given_twice_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("env: Reach\nseed: 1\noverrides: {gamma: 0.9}\nseed: 2")
    with pytest.raises(UserError, match=r"config\.yaml cannot be read as YAML \(line 4: seed is given twice"):
        RunConfig.load(tmp_path / "config.yaml")


def test_yaml_that_would_run_code_is_refused(tmp_path):
    canary = tmp_path / "canary"
    path = tmp_path / "config.yaml"
    path.write_text(f"env: !!python/object/apply:os.system ['touch {canary}']")
    with pytest.raises(UserError):
        RunConfig.load(path)
    assert not canary.exists()


def test_an_alias_bomb_is_refused(tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 30))]
    (tmp_path / "config.yaml").write_text("overrides:\n" + "".join(f"  {line}\n" for line in lines))
    with pytest.raises(UserError, match=r"config\.yaml uses YAML aliases"):
        RunConfig.load(tmp_path / "config.yaml")


def test_config_file_contains_its_version():
    assert yaml.safe_load(RunConfig().to_yaml())["version"] == 1


def test_names_are_case_insensitive():
    config = RunConfig(algo="ppo", preset="FAST", encoder="MLP")
    assert (config.algo, config.preset, config.encoder) == ("PPO", "fast", "mlp")


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("total_steps", "400k", 400_000),
        ("total_steps", "1.5M", 1_500_000),
        ("total_steps", "4.1M", 4_100_000),
        ("total_steps", "16.1k", 16_100),
        ("total_steps", "1,000,000", 1_000_000),
        ("total_steps", "1e6", 1_000_000),
        ("total_steps", "1,000k", 1_000_000),
        ("n_envs", "auto", "auto"),
        ("checkpoint_every", "5m", "5m"),
        ("run_name", "", None),
        ("store", "none", None),
        ("session_limit", "None", None),
        ("run_name", "123", "123"),
        ("env_options", '{"length": 5}', {"length": 5}),
        ("overrides", "", {}),
    ],
)
def test_from_text_parses_typed_values(field, text, value):
    assert RunConfig.from_text(field, text) == value
    assert getattr(RunConfig(**{field: RunConfig.from_text(field, text)}), field) == value


@pytest.mark.parametrize("text", ["0,001", "1,5", "1,50", "1,0000", "0,100", ",100"])
def test_a_comma_separates_thousands_only(text):
    assert number(text) == text


@pytest.mark.parametrize("text", ["{gamma: 1}", "[1]", "0.9"])
def test_from_text_refuses_invalid_mappings(text):
    with pytest.raises(UserError, match=r"overrides=.* is not (JSON|a JSON mapping)"):
        RunConfig.from_text("overrides", text)
