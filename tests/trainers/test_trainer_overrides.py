"""Tests of `arguments`: valid overrides are converted, invalid ones are refused in one sentence."""

from typing import Any

import pytest
import torch
from stable_baselines3.common.utils import LinearSchedule

from kit.errors import UserError
from kit.trainers.algorithm import find
from kit.trainers.arguments import arguments, complete


def test_valid_overrides_are_converted() -> None:
    given = {
        "learning_rate": "lin_3e-4",
        "gamma": 1,
        "n_steps": 256.0,
        "target_kl": None,
        "clip_range": "lin_0.2",
        "normalize": {"norm_reward": False, "clip_obs": 5},
        "policy_kwargs": {"net_arch": {"pi": [8], "vf": [8, 8]}, "activation_fn": "elu"},
    }
    kept = dict(given)
    result = arguments(find("PPO"), given)
    assert given == kept
    assert isinstance(result["learning_rate"], LinearSchedule)
    assert result["learning_rate"](1.0) == 3e-4 and result["learning_rate"](0.5) == 1.5e-4
    assert result["gamma"] == 1.0 and type(result["gamma"]) is float
    assert result["n_steps"] == 256 and type(result["n_steps"]) is int
    assert result["normalize"] == {"norm_reward": False, "clip_obs": 5.0}
    assert result["policy_kwargs"]["activation_fn"] is torch.nn.ELU
    assert arguments(find("SAC"), {"train_freq": [2, "step"], "ent_coef": "auto_0.1"})["train_freq"] == (2, "step")
    for text in ("auto", "auto_5e-05", "auto_1.", "0.1"):  # as SB3 reads them
        assert arguments(find("SAC"), {"ent_coef": text})["ent_coef"] == text


@pytest.mark.parametrize(
    ("algo", "overrides", "words"),
    [
        ("PPO", {"gama": 0.9}, ["gama", "0.9", "did you mean gamma"]),
        ("PPO", {"tau": 0.1}, ["tau", "PPO"]),
        ("SAC", {"n_epochs": 3}, ["n_epochs", "SAC"]),
        ("PPO", {"seed": 3}, ["seed"]),
        ("PPO", {"n_steps": 2.5}, ["n_steps", "2.5", "a whole number"]),
        ("PPO", {"n_steps": "2048"}, ["n_steps", "'2048'", "a whole number"]),
        ("PPO", {"gamma": True}, ["gamma", "True", "a number"]),
        ("PPO", {"gamma": "0.9"}, ["gamma", "'0.9'", "a number"]),
        ("PPO", {"learning_rate": "linear"}, ["learning_rate", "lin_0.0003"]),
        ("PPO", {"gamma": 1.9}, ["gamma", "1.9", "at least 0 and at most 1"]),
        ("SAC", {"learning_rate": "lin_10"}, ["learning_rate", "lin_10", "at most 1"]),
        ("PPO", {"max_grad_norm": -1}, ["max_grad_norm", "-1", "at least 0"]),
        ("SAC", {"random_share": 2}, ["random_share", "at most 1"]),
        ("TD3", {"exploration_noise": -1}, ["exploration_noise", "at least 0"]),
        ("PPO", {"normalize": {"gamma": 5}}, ["normalize gamma", "at most 1"]),
        ("PPO", {"normalize": {"clip_obs": -1}}, ["normalize clip_obs", "at least 0"]),
        ("PPO", {"normalize": "yes"}, ["normalize", "yes"]),
        ("PPO", {"normalize": {"norm_ob": True}}, ["norm_ob", "norm_obs"]),
        ("PPO", {"policy_kwargs": {"net_arc": [64]}}, ["net_arc", "net_arch"]),
        ("PPO", {"policy_kwargs": [64]}, ["policy_kwargs", "[64]"]),
        ("PPO", {"policy_kwargs": {"net_arch": "64"}}, ["net_arch", "[64, 64]"]),
        ("PPO", {"policy_kwargs": {"net_arch": [64, -1]}}, ["net_arch", "-1"]),
        ("PPO", {"policy_kwargs": {"net_arch": {"pi": [64], "qf": [64]}}}, ["net_arch", "pi and vf"]),
        ("PPO", {"policy_kwargs": {"activation_fn": "gelus"}}, ["activation_fn", "gelus", "tanh"]),
        ("PPO", {"policy_kwargs": {"activation_fn": ["tanh"]}}, ["activation_fn", "['tanh']"]),
        ("SAC", {"policy_kwargs": {"n_critics": 0}}, ["n_critics", "at least 1"]),
        ("SAC", {"ent_coef": "automatic"}, ["ent_coef", "automatic", "auto"]),
        ("SAC", {"ent_coef": "auto_0"}, ["ent_coef", "auto_0"]),
        ("CrossQ", {"target_entropy": "low"}, ["target_entropy", "low", "auto"]),
        ("TD3", {"target_policy_noise": -1}, ["target_policy_noise", "at least 0"]),
    ],
    ids=repr,
)
def test_invalid_overrides_are_refused_in_one_sentence(algo: str, overrides: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        arguments(find(algo), overrides)
    for word in words:
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("algo", "name", "value"),
    [("TD3", "policy_delay", 0), ("CrossQ", "policy_delay", 0), ("SAC", "target_update_interval", 0),
     ("SAC", "n_sampled_goal", -1), ("PPO", "stats_window_size", -1), ("BC", "gradient_steps", -1),
     ("Distill", "gradient_steps", 0), ("PPO", "batch_size", 1)],
)  # fmt: skip
def test_counts_that_would_divide_by_zero_or_never_end_are_refused(algo: str, name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{name}={value} must be a whole number of at least"):
        complete(find(algo), {}, {name: value})


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert complete(find("PPO"), {}, {"n_steps": 256.0})["n_steps"] == 256
    assert complete(find("SAC"), {}, {"train_freq": [1, "episode"], "gradient_steps": -1})["gradient_steps"] == -1
