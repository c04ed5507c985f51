"""RunConfig: what is accepted, what is refused, and that it survives YAML."""

import pytest
import yaml

from kit.config import RunConfig, seconds
from kit.errors import UserError


def test_yaml_round_trip(tmp_path):
    config = RunConfig(env="Ant-v5", total_steps=5000, overrides={"gamma": 0.98, "policy_kwargs": {"net_arch": [32]}})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert RunConfig.load(tmp_path / "config.yaml") == config


def test_changing_what_was_passed_in_changes_nothing():
    overrides = {"gamma": 0.9}
    config = RunConfig(overrides=overrides)
    overrides["gamma"] = 0.1
    assert config.overrides == {"gamma": 0.9}


def test_whole_floats_count_as_whole_numbers():
    assert RunConfig(total_steps=1e6).total_steps == 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("5m", 300), ("11h30m", 41_400), ("1d", 86_400), ("1m30s", 90)]
)
def test_times(text, expected):
    assert seconds("session_limit", text) == expected


BAD = {
    "algo": ("DQN", "valid are PPO, A2C, SAC"),
    "preset": ("fats", "did you mean fast?"),
    "encoder": ("resnet", "valid are"),
    "device": ("gpu", "use auto, cpu, cuda"),
    "total_steps": (0, "at least 1"),
    "n_envs": (-3, "at least 1"),
    "threads": (0, "at least 1"),
    "seed": (-1, "at least 0"),
    "eval_every": (-1, "at least 0"),
    "checkpoint_every": ("soon", '"5m"'),
    "session_limit": ("", '"11h30m"'),
    "run_name": ("../up", "letters, digits"),
    "overrides": ("gamma", "mapping"),
    "env": (3, "a text"),
}


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
    with pytest.raises(UserError, match=r"total_steps=.* not a whole number such as 1000 or 1e3"):
        RunConfig(total_steps=value)


def test_unknown_field_suggests_the_known_one():
    with pytest.raises(UserError, match=r"total_step=1 is not a field of RunConfig; did you mean total_steps\?"):
        RunConfig.from_dict({"total_step": 1})


def test_newer_version_is_refused():
    with pytest.raises(UserError, match="version=99"):
        RunConfig.from_dict({"version": 99})


@pytest.mark.parametrize("text", ["- a\n- b", "{", "\x00", ""])
def test_files_that_are_no_config(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml"):
        RunConfig.load(path)


def test_yaml_that_would_run_code_is_refused(tmp_path):
    canary = tmp_path / "canary"
    path = tmp_path / "config.yaml"
    path.write_text(f"env: !!python/object/apply:os.system ['touch {canary}']")
    with pytest.raises(UserError):
        RunConfig.load(path)
    assert not canary.exists()


def test_config_file_says_its_version():
    assert yaml.safe_load(RunConfig().to_yaml())["version"] == 1


@pytest.mark.parametrize("env", ["G1Joystick", "Go1Joystick"])
def test_joystick_rows_differ_with_the_device(env, monkeypatch):
    from kit import presets

    asked = RunConfig(env=env, total_steps=10_000)
    cpu = asked.replace(device="cpu").resolve()
    assert (cpu.n_envs, cpu.overrides["n_steps"], cpu.overrides["batch_size"]) == (32, 128, 1024)
    monkeypatch.setattr(presets, "_device", lambda device: "cuda")
    card = asked.replace(device="cuda", n_envs=4096).resolve()
    assert (card.overrides["n_steps"], card.overrides["batch_size"]) == (24, 12_288)  # of 98,304
    assert card.overrides["policy_kwargs"] == {
        "net_arch": [512, 256, 128], "activation_fn": "elu", "log_std_init": -1.0,
    }  # fmt: skip
    shrunk = presets.shrink(card.replace(n_envs=1000, overrides={**card.overrides, "batch_size": 12_000}), 500)
    assert (shrunk.n_envs, shrunk.overrides["batch_size"]) == (500, 12_000)
    assert presets.shrink(shrunk, 250).overrides["batch_size"] == 6000  # all there is
