"""Tests of the components of a trainer's state: attached ones, frozen weights, invalid random generator states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_env import FakeEnv, trainer
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from kit.config import RunConfig
from kit.encoders import Encoder
from kit.errors import UserError
from kit.trainers import build


class Pool:
    """Component that holds a list and a tensor, such as a pool of opponents."""

    def __init__(self) -> None:
        self.met: list[int] = []
        self.best = torch.zeros(2)

    def state(self) -> dict[str, Any]:
        return {"met": list(self.met), "best": self.best.clone()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.met, self.best = list(state["met"]), state["best"].clone()


def test_any_component_can_be_attached() -> None:
    model, pool = trainer("PPO"), Pool()
    model.attach("opponents", pool)
    pool.met, pool.best = [3, 1], torch.tensor([1.0, 2.0])
    state = model.state()
    assert set(state) == {"policy", "normalizer", "optimizer", "trainer", "rng", "opponents", "env"}
    other, empty = trainer("PPO", seed=5), Pool()
    other.attach("opponents", empty)
    other.load_state(state)
    assert empty.met == [3, 1] and torch.equal(empty.best, pool.best)
    plain = trainer("PPO").state()
    other.load_state(plain)
    assert empty.met == [3, 1], "a state without the component must leave it unchanged"


class Pretrained(BaseFeaturesExtractor):
    """Features extractor with a frozen trunk, which has running statistics, and a trainable head."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 4)
        width = observation_space.shape[0]
        self.trunk = nn.Sequential(nn.Linear(width, 16), nn.BatchNorm1d(16), nn.Tanh()).requires_grad_(False)
        self.head = nn.Linear(16, 4)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk.eval()(obs))


def test_frozen_weights_are_a_separate_component(monkeypatch: Any) -> None:
    answer = Encoder("MlpPolicy", {"features_extractor_class": Pretrained})
    monkeypatch.setattr(build.encoders, "choose", lambda *_: answer)

    def make(seed: int) -> Any:
        config = RunConfig(n_envs=4, seed=seed, device="cpu", threads=1, overrides={"n_steps": 16, "batch_size": 32})
        return build.make_trainer(config, FakeEnv())

    model = make(0)
    model.learn(128)
    state = model.state()
    assert {name.rpartition("trunk.")[2] for name in state["frozen"]} == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
    }  # fmt: skip
    assert not state["frozen"].keys() & state["policy"].keys()
    assert any("head" in name for name in state["policy"])
    obs = torch.linspace(-1, 1, 9).view(3, 3)
    expected = model.act(obs)
    model.learn(128, reset_num_timesteps=False)
    other = make(1)
    assert not torch.equal(other.act(obs), expected)
    other.load_state(state)
    assert torch.equal(other.act(obs), expected)
    other.learn(256)
    assert torch.equal(other.act(obs), model.act(obs)), "training must continue as in the first trainer"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("numpy_position", 10**6),
        ("numpy_position", -1),
        ("numpy", torch.zeros(3, dtype=torch.int64)),
        ("python", torch.zeros(625, dtype=torch.int64) + 700),
        ("python", torch.zeros(4, dtype=torch.int64)),
    ],
)
def test_invalid_states_of_random_generators_are_refused(name: str, value: Any) -> None:
    model = trainer("PPO")
    state = model.state()
    state["rng"][name] = value
    with pytest.raises(UserError, match="random generators hold an invalid state"):
        model.load_state(state)
