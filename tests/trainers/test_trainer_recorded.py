"""Tests of recorded and replayed updates, as on a GPU: PPO, A2C and SAC train as without recording.

torch.fx records the graphs, so no GPU is needed. Like a CUDA graph, such a graph is a list of kernels with the tensors
that they read and write; a replay does not run the recorded Python function again.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_env import FakeEnv, rows_of, trainer
from gymnasium import spaces
from torch.fx.experimental.proxy_tensor import make_fx

from kit.trainers import recorded
from kit.trainers.recorded import Function, Recorded, Tensors
from kit.trainers.sac import SAC


def fx_graph(function: Function, inputs: Tensors, device: torch.device) -> tuple[Tensors, Callable[[], object]]:
    function(*inputs)  # a warm-up, whose in-place changes `Recorded` undoes
    graph = make_fx(lambda *given: function(*given))(*inputs)
    outputs = tuple(torch.full_like(x, torch.nan if x.is_floating_point() else -1) for x in graph(*inputs))

    def replay() -> None:
        for kept, output in zip(outputs, graph(*inputs), strict=True):
            kept.copy_(output)

    return outputs, replay


@pytest.fixture(autouse=True)
def on_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "cuda_graph", fx_graph)


def tape(model: Any) -> Any:
    """Set up `model` as on a GPU, with recorded updates."""
    if isinstance(model, SAC):
        model._stacked._on_cpu, model._stacked._recorded = False, model._stacked.record()
        return model
    flat = model.networks.optimizer
    flat._recorded = Recorded(flat.apply, model.device, flat.changes)
    model.networks._graphs = True
    return model


def assert_same(mine: Any, theirs: Any) -> None:
    for name, value in theirs.policy.state_dict().items():
        assert torch.equal(mine.policy.state_dict()[name], value), name


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "values": {"clip_range_vf": 0.1, "ent_coef": 0.01},
    "schedules": {"learning_rate": "lin_0.003", "clip_range": "lin_0.3"},
    "kl": {"target_kl": 0.003, "learning_rate": 3e-3},
    "elu": {"policy_kwargs": {"activation_fn": "elu", "net_arch": [32, 16]}},
}


@pytest.mark.parametrize("kwargs", SHAPES.values(), ids=SHAPES)
def test_recorded_ppo_trains_like_plain_ppo(kwargs: dict[str, Any]) -> None:
    kwargs = {"batch_size": 16, "n_epochs": 3, "seed": 3, **kwargs}
    plain = trainer("PPO", **kwargs)
    expected = rows_of(plain)
    plain.learn(5 * 64)
    replayed = tape(trainer("PPO", **kwargs))
    rows = rows_of(replayed)
    replayed.learn(5 * 64)
    assert len(replayed.networks._recordings) == 2, "one for acting, one for the gradient"
    assert_same(replayed, plain)
    assert rows == expected


@pytest.mark.parametrize("kwargs", [{}, {"use_rms_prop": False}], ids=["rmsprop", "adam"])
def test_recorded_a2c_trains_like_plain_a2c(kwargs: dict[str, Any]) -> None:
    kwargs = {"seed": 3, "learning_rate": "lin_0.01", **kwargs}
    plain = trainer("A2C", **kwargs)
    plain.learn(400)
    replayed = tape(trainer("A2C", **kwargs))
    replayed.learn(400)
    assert_same(replayed, plain)


@pytest.mark.parametrize("kwargs", [{}, {"ent_coef": 0.1, "target_update_interval": 2}], ids=["learnt", "fixed"])
def test_recorded_sac_trains_like_plain_sac(kwargs: dict[str, Any]) -> None:
    """Equal up to rounding: on a GPU the gradient w.r.t. actions is computed without selecting each critic's rows."""
    kwargs = {"seed": 3, "gradient_steps": 2, **kwargs}
    plain = trainer("SAC", **kwargs)
    expected = rows_of(plain)
    plain.learn(200)
    replayed = tape(trainer("SAC", **kwargs))
    rows = rows_of(replayed)
    replayed.learn(200)
    assert len(replayed._stacked._recorded._recordings) == 1
    for name, value in plain.policy.state_dict().items():
        torch.testing.assert_close(replayed.policy.state_dict()[name], value, atol=1e-5, rtol=0)
    assert rows[-1]["train/actor_loss"] == pytest.approx(expected[-1]["train/actor_loss"], abs=1e-4)


class Keeping(FakeEnv):
    """FakeEnv that keeps references to the actions, like a callback that reads them after the rollout."""

    def step(self, action: torch.Tensor) -> Any:
        self.kept = [*getattr(self, "kept", []), action]
        return super().step(action)


def test_actions_of_earlier_steps_are_not_overwritten() -> None:
    env = Keeping(action_space=spaces.MultiDiscrete([3, 3]))
    replayed = tape(trainer("PPO", env, seed=3))
    replayed.learn(64)
    kept = torch.stack(env.kept)
    assert len(kept.unique(dim=0)) > 1 and torch.equal(kept, replayed.rollout_buffer.actions)


def test_replays_use_a_state_loaded_after_recording() -> None:
    """Recordings hold addresses of tensors, so loading weights must not move the tensors."""
    first = tape(trainer("PPO", seed=3))
    first.learn(128)
    state = first.state()
    first.learn(128, reset_num_timesteps=False)
    second = tape(trainer("PPO", seed=4))
    second.learn(64)  # makes the recordings before the load
    second.load_state(state)
    second.learn(256)
    assert_same(second, first)
