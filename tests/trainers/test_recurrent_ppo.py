"""Tests of `RecurrentPPO` against sb3-contrib's: rollouts, updates, actions; a memory task; invalid settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch
from fake_env import FakeEnv, share_rollout, trainer
from gymnasium import spaces
from stable_baselines3.common.logger import Logger

from kit.config import RunConfig
from kit.envs.play import restart
from kit.envs.sb3 import TensorVecEnv
from kit.errors import UserError
from kit.measure.auto import resolve
from kit.trainers.recurrent_ppo import RecurrentPPO

STEPS, WORLDS = 40, 4
SMALL = {"lstm_hidden_size": 8, "net_arch": [16]}
NETWORKS: dict[str, dict[str, Any]] = {
    "two": {},
    "one for both": {"shared_lstm": True, "enable_critic_lstm": False},
    "the actor's alone": {"enable_critic_lstm": False},
    "two layers": {"n_lstm_layers": 2},
    "extractors apart": {"share_features_extractor": False},
}
UPDATES: dict[str, dict[str, Any]] = {
    **{name: {"policy_kwargs": {**SMALL, **kwargs}} for name, kwargs in NETWORKS.items()},
    "the whole rollout": {"batch_size": STEPS * WORLDS},
    "ragged": {"batch_size": 48},
    "coefficients": {"ent_coef": 0.01, "vf_coef": 0.7, "max_grad_norm": 0.05, "clip_range_vf": 0.1},
    "raw": {"normalize_advantage": False, "clip_range": 0.05},
    "kl": {"target_kl": 0.02, "learning_rate": 3e-3},
}
ACTIONS = [spaces.Discrete(3), spaces.MultiDiscrete([3, 2])]
"""Without MultiBinary, which kit supports: sb3-contrib's buffer passes such actions to the loss as bytes."""


class Uneven(FakeEnv):
    """FakeEnv whose envs start at different steps of their episodes."""

    def __init__(self, action_space: spaces.Space | None = None) -> None:
        super().__init__(WORLDS, limit=8, action_space=action_space)

    def reset(self, seed: int | None = None) -> torch.Tensor:
        super().reset(seed)
        self.steps = torch.tensor([0.0, 3.0, 0.0, 5.0])
        return self._obs()


def pair(action_space: spaces.Space | None = None, **kwargs: Any) -> tuple[Any, Any]:
    """Return our trainer and sb3-contrib's, with equal weights."""
    common: dict[str, Any] = {
        "n_steps": STEPS, "batch_size": 32, "n_epochs": 3, "seed": 3, "device": "cpu", "policy_kwargs": SMALL, **kwargs,
    }  # fmt: skip
    models = []
    for family in (RecurrentPPO, sb3_contrib.RecurrentPPO):
        model = family("MlpLstmPolicy", TensorVecEnv(Uneven(action_space)), **common)
        model.set_logger(Logger(folder=None, output_formats=[]))
        models.append(model)
    ours, stock = models
    stock.policy.load_state_dict(ours.policy.state_dict())
    return ours, stock


def assert_close(mine: torch.Tensor, theirs: Any, name: str) -> None:
    theirs = torch.as_tensor(theirs).reshape(mine.shape)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("kwargs", NETWORKS.values(), ids=NETWORKS)
def test_rollouts(kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two consecutive rollouts equal sb3-contrib's, given the same noise.

    The hidden state carries over to the second rollout, is zero at the start of an episode, and is used for the values
    that bootstrap truncated steps.
    """
    ours, stock = pair(policy_kwargs={**SMALL, **kwargs})
    buffers: list[list[Any]] = [[], []]
    for model, kept in zip((ours, stock), buffers, strict=True):
        _, callback = model._setup_learn(10**6)
        seen = model.env.unwrapped.tensor_env.reset(seed=1)
        model._last_obs = seen if model is ours else seen.numpy()
        draws = iter(torch.randn(2 * STEPS, WORLDS, 2, generator=torch.Generator().manual_seed(0)))
        monkeypatch.setattr(
            torch.distributions.Normal,
            "rsample",
            lambda self, shape=(), draws=draws: self.mean + self.stddev * next(draws),
        )
        for _ in range(2):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
            if model is ours:
                model._compute_returns()
                assert model.rollout_buffer.done[-1].any(), "an episode ends with the rollout"
        kept.append(model.rollout_buffer)
    (mine,), (theirs,) = buffers
    assert mine.done.sum() > 10 and len(mine._truncations) > 6
    assert_close(mine.obs, theirs.observations, "obs")
    for name in ("actions", "rewards", "values", "log_probs", "advantages", "returns"):
        assert_close(getattr(mine, name), getattr(theirs, name), name)
    # compare states within episodes only: at an episode start sb3-contrib zeroes the state later, when it is used
    going_on = torch.cat([torch.ones(1, WORLDS, dtype=torch.bool), ~mine.done[:-1]])
    for i, name in enumerate(("hidden_states_pi", "cell_states_pi")):
        remembered = torch.from_numpy(getattr(theirs, name)).movedim(1, 2)
        assert_close(mine.hidden_state["actor"][:, :, i][1:][going_on[1:]], remembered[1:][going_on[1:]], name)
    assert mine.hidden_state["actor"][~going_on].abs().max() == 0


@pytest.mark.parametrize("kwargs", UPDATES.values(), ids=UPDATES)
def test_updates(kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same_update(*pair(**kwargs), monkeypatch)


@pytest.mark.parametrize("space", ACTIONS, ids=repr)
def test_updates_of_other_actions(space: spaces.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same_update(*pair(space), monkeypatch)


def assert_same_update(ours: Any, stock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that both updates give equal weights and metrics, from the same rollout and first row of each epoch."""
    _, callback = ours._setup_learn(10**6)
    for _ in range(2):
        ours.collect_rollouts(ours.env, callback, ours.rollout_buffer, STEPS)
    share_rollout(ours, stock)
    theirs, rollout = stock.rollout_buffer, ours.rollout_buffer
    theirs.episode_starts[1:] = rollout.done[:-1].numpy()
    for name, short in (("actor", "pi"), ("critic", "vf")):
        remembered = rollout.hidden_state.get(name, rollout.hidden_state["actor"]).permute(2, 0, 3, 1, 4).numpy()
        getattr(theirs, f"hidden_states_{short}")[:], getattr(theirs, f"cell_states_{short}")[:] = remembered
    assert 10 < rollout.done[:-1].sum() < STEPS
    starts = [93, 0, 41]
    mine, others = iter(starts), iter(starts)
    monkeypatch.setattr(torch, "randint", lambda n, size, device: torch.tensor([next(mine)]))
    monkeypatch.setattr(np.random, "randint", lambda n: next(others))
    before = {name: value.clone() for name, value in ours.policy.state_dict().items()}
    ours.train()
    figures = dict(ours.logger.name_to_value)
    stock.train()
    for name, value in stock.policy.state_dict().items():
        assert_close(ours.policy.state_dict()[name], value, name)
    moved = {name for name, value in ours.policy.state_dict().items() if not torch.equal(before[name], value)}
    assert {name for name in moved if "weight_hh" in name}, "the LSTM learns too"
    for name, value in stock.logger.name_to_value.items():
        assert figures[name] == pytest.approx(value, rel=1e-5, abs=2e-5), name


# -- acting --------------------------------------------------------------------------------------------------------


OBS = np.random.default_rng(0).normal(size=(12, 3, 3)).astype(np.float32)
STARTS = np.random.default_rng(1).random((12, 3)) < 0.2


def test_plain_sb3_contrib_loads_it_and_acts_as_the_actor_does(tmp_path: Path) -> None:
    """`test_trainer_zip` loads it where this library is not installed."""
    model = trainer("RecurrentPPO", learning_rate="lin_0.01", normalize=True)
    model.learn(256)
    actor, said = model.as_actor(), []
    hidden_state = actor.initial_state(OBS.shape[1])
    for obs, starts in zip(OBS, STARTS, strict=True):
        hidden_state = restart(actor, hidden_state, torch.from_numpy(starts))
        actions, hidden_state = actor(torch.from_numpy(obs), hidden_state)
        said.append(actions.clamp(-1, 1).numpy())
    again = actor(torch.from_numpy(OBS[-1]))[0].clamp(-1, 1).numpy()
    assert np.abs(again - said[-1]).max() > 1e-4, "actions must depend on earlier observations"
    model.save(tmp_path / "model")
    stock, state = sb3_contrib.RecurrentPPO.load(tmp_path / "model", device="cpu"), None
    for obs, starts, expected in zip(OBS, STARTS, said, strict=True):
        seen = model.normalizer.scale_obs(torch.from_numpy(obs)).numpy()
        theirs, state = stock.predict(seen, state, starts, deterministic=True)
        np.testing.assert_allclose(theirs, expected, rtol=0, atol=1e-6)


class Recall(FakeEnv):
    """Memory task: the first observation shows a sign; an action of that sign in the fifth step earns 1."""

    def __init__(self, num_envs: int = 16) -> None:
        super().__init__(num_envs, limit=5, act=1)

    def _obs(self) -> torch.Tensor:
        return torch.cat([self.place.sign() * (self.steps == 0).view(-1, 1), self.steps[:, None] / self.limit], 1)

    def step(self, action: torch.Tensor) -> Any:
        self.steps = self.steps + 1
        terminated = self.steps == self.limit
        self.right = (action[:, 0].sign() == self.place[:, 0].sign()) & terminated
        reward = self.right.float()
        self.total = self.total + reward
        info = {"final_obs": self._obs(), "success": self.right}
        info |= {"episode_return": self.total, "episode_length": self.steps.long()}
        self._begin(terminated)
        return self._obs(), reward, terminated, torch.zeros_like(terminated), info


def test_recurrent_ppo_solves_a_memory_task_and_ppo_does_not() -> None:
    settings = {"n_steps": 20, "batch_size": 320, "n_epochs": 10, "learning_rate": 0.01, "gamma": 0.9}
    rates = {}
    for algo in ("PPO", "RecurrentPPO"):
        model = trainer(algo, Recall(), **settings)
        model.learn(6400)
        rates[algo] = float(np.mean(model.ep_success_buffer))
    assert rates["RecurrentPPO"] > 0.9
    assert rates["PPO"] < 0.65, "without memory, only chance: 0.5"


# -- invalid settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"shared_lstm": True}, "shared_lstm=true .* add enable_critic_lstm=false"),
        ({"lstm_hidden_size": 0}, "lstm_hidden_size=0 must be a whole number of at least 1"),
        ({"lstm_hidden_size": "big"}, "lstm_hidden_size='big' must be a whole number"),
        ({"lstm_hidden": 8}, "lstm_hidden=8 is unknown; valid are .*lstm_hidden_size"),
    ],
    ids=repr,
)
def test_invalid_network_settings_are_refused(policy: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        resolve(RunConfig(env="Reach", algo="RecurrentPPO", device="cpu", overrides={"policy_kwargs": policy}))
