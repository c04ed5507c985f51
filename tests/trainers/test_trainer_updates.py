"""Tests of updates against SB3's: equal weights to 1e-5, from the same rollout, weights and permutation."""

import copy
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3 as sb3
import torch
from fake_env import FakeEnv, GoalEnv, share_rollout, trainer
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from kit.envs.sb3 import TensorVecEnv
from kit.trainers.fast.stacked import StackedActorCritic

STEPS, WORLDS = 16, 4
SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "relu": {"policy_kwargs": {"activation_fn": torch.nn.ReLU, "net_arch": [32]}},
    "three": {"policy_kwargs": {"net_arch": [24, 16, 8]}},
    "uneven": {"policy_kwargs": {"net_arch": {"pi": [16], "vf": [32, 32]}}},
    "elu": {"policy_kwargs": {"activation_fn": torch.nn.ELU}},
    "silu": {"policy_kwargs": {"activation_fn": torch.nn.SiLU}},
    "coefficients": {"ent_coef": 0.01, "vf_coef": 0.7, "max_grad_norm": 0.05, "normalize_advantage": True},
}
PPO_SHAPES = {
    "value clip": {"clip_range_vf": 0.1},
    "ragged": {"batch_size": 24},
    "raw": {"normalize_advantage": False, "clip_range": 0.05},
    "kl": {"target_kl": 0.02, "learning_rate": 3e-3},
}
TF = {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
A2C_SHAPES = {
    "tf": {"policy_kwargs": dict(TF)},
    "tf unclipped": {"policy_kwargs": dict(TF), "max_grad_norm": 1e6},
    "adam": {"use_rms_prop": False},
    "other": {"policy_kwargs": {"optimizer_class": torch.optim.SGD}},
}


def pair(algo: str, action_space: spaces.Space | None = None, **kwargs: Any) -> tuple[Any, Any]:
    """Return our trainer and SB3's with equal weights and the same rollout, which ours has collected."""
    ours_class = type(trainer(algo))
    stock_class = getattr(sb3, algo)
    common: dict[str, Any] = {"n_steps": STEPS, "seed": 3, "device": "cpu", **kwargs}
    ours = ours_class("MlpPolicy", TensorVecEnv(FakeEnv(WORLDS, action_space=action_space)), **common)
    stock = stock_class("MlpPolicy", TensorVecEnv(FakeEnv(WORLDS, action_space=action_space)), **common)
    quiet = Logger(folder=None, output_formats=[])
    for model in (ours, stock):
        model.set_logger(quiet)
    _, callback = ours._setup_learn(STEPS * WORLDS)
    ours.collect_rollouts(ours.env, callback, ours.rollout_buffer, STEPS)
    share_rollout(ours, stock)
    return ours, stock


def same_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give both the same permutations; SB3 numbers a rollout's rows env by env, kit step by step."""
    draws = [np.random.default_rng(i).permutation(STEPS * WORLDS) for i in range(10)]
    theirs, mine = iter(draws), iter([torch.from_numpy(draw % STEPS * WORLDS + draw // STEPS) for draw in draws])
    monkeypatch.setattr(np.random, "permutation", lambda n: next(theirs))
    monkeypatch.setattr(torch, "randperm", lambda n, **_: next(mine))


def assert_same(ours: Any, stock: Any) -> None:
    mine, theirs = ours.policy.state_dict(), stock.policy.state_dict()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kwargs", [*SHAPES.values(), *PPO_SHAPES.values()], ids=[*SHAPES, *PPO_SHAPES])
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_ppo(kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, stock = pair("PPO", **{"batch_size": 16, "n_epochs": 3, **kwargs})
    before = {name: value.clone() for name, value in ours.policy.state_dict().items()}
    same_permutations(monkeypatch)
    stacks = not ({"uneven", "silu"} & {name for name, value in SHAPES.items() if value is kwargs})
    assert isinstance(ours.networks, StackedActorCritic) == stacks
    ours.train()
    figures = dict(ours.logger.name_to_value)
    stock.logger.name_to_value.clear()
    stock.train()
    assert_same(ours, stock)
    assert any(not torch.equal(before[name], value) for name, value in ours.policy.state_dict().items())
    assert figures.keys() == stock.logger.name_to_value.keys()
    for name, value in stock.logger.name_to_value.items():
        assert figures[name] == pytest.approx(value, rel=1e-5, abs=2e-5), name


@pytest.mark.parametrize("kwargs", [*SHAPES.values(), *A2C_SHAPES.values()], ids=[*SHAPES, *A2C_SHAPES])
def test_a2c(kwargs: dict[str, Any]) -> None:
    ours, stock = pair("A2C", **kwargs)
    for _ in range(3):
        ours.train()
        figures = dict(ours.logger.name_to_value)
        stock.logger.name_to_value.clear()
        stock.train()
    assert_same(ours, stock)
    assert figures.keys() == stock.logger.name_to_value.keys()
    for name, value in stock.logger.name_to_value.items():
        assert figures[name] == pytest.approx(value, rel=1e-5, abs=2e-5), name


CHOICES = [spaces.Discrete(3), spaces.MultiDiscrete([3, 3, 3]), spaces.MultiDiscrete([3, 4, 2]), spaces.MultiBinary(3)]


@pytest.mark.parametrize("ent_coef", [0.0, 0.03])
@pytest.mark.parametrize("algo", ["PPO", "A2C"])
@pytest.mark.parametrize("space", CHOICES, ids=repr)
def test_other_actions(space: spaces.Space, algo: str, ent_coef: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacked networks also support Discrete and MultiDiscrete actions, but not MultiBinary ones."""
    sizes = {"batch_size": 16, "n_epochs": 2} if algo == "PPO" else {}
    ours, stock = pair(algo, space, ent_coef=ent_coef, **sizes)
    before = ours.policy.action_net.weight.clone()
    same_permutations(monkeypatch)
    assert isinstance(ours.networks, StackedActorCritic) == (not isinstance(space, spaces.MultiBinary))
    ours.train()
    figures = dict(ours.logger.name_to_value)
    stock.logger.name_to_value.clear()
    stock.train()
    assert_same(ours, stock)
    assert not torch.equal(before, ours.policy.action_net.weight)
    for name, value in stock.logger.name_to_value.items():
        assert figures[name] == pytest.approx(value, rel=1e-5, abs=2e-5), name


@pytest.mark.parametrize("space", CHOICES[:3], ids=repr)
def test_discrete_actions_are_sampled_with_their_probabilities(space: spaces.Space) -> None:
    """Frequencies in 60,000 draws match the probabilities to four standard errors; log-probabilities equal SB3's."""
    draws = 60_000
    model: Any = trainer("PPO", FakeEnv(draws, action_space=space), n_steps=1, batch_size=draws)
    policy, rollout = model.policy, model.rollout_buffer
    with torch.no_grad():
        policy.action_net.bias.copy_(torch.linspace(-1.0, 1.0, len(policy.action_net.bias)))
        obs = torch.full((draws, 3), 0.3)
        model.networks.begin(rollout)
        actions = model.networks.sample(rollout, 0, rollout.store_obs(0, obs))
        _, log_prob, _ = policy.evaluate_actions(obs, actions)
        torch.testing.assert_close(rollout.log_probs[0], log_prob, rtol=0, atol=1e-5)
        found = policy.get_distribution(obs[:1]).distribution
    for i, choice in enumerate(found if isinstance(found, list) else [found]):
        seen = torch.bincount(actions.view(draws, -1)[:, i], minlength=choice.probs.shape[1]) / draws
        assert len(seen) == choice.probs.shape[1], "an action outside the action space"
        error = (choice.probs[0] * (1 - choice.probs[0]) / draws).sqrt()
        assert ((seen - choice.probs[0]).abs() < 4 * error).all()


def test_a_rollouts_values_and_log_probabilities_are_the_policys() -> None:
    """Stacked networks compute both after the rollout, the log-probabilities from the noise."""
    ours, _ = pair("PPO")
    clean = type(ours)("MlpPolicy", TensorVecEnv(FakeEnv(WORLDS)), n_steps=STEPS, seed=3, device="cpu")
    rollout, policy = ours.rollout_buffer, clean.policy  # `pair` changes `ours`; `clean` has the initial weights
    batch = rollout.batch()
    with torch.no_grad():
        values, log_prob, _ = policy.evaluate_actions(batch.obs, batch.actions)
    torch.testing.assert_close(batch.values, values.flatten(), rtol=0, atol=1e-5)
    torch.testing.assert_close(batch.log_probs, log_prob, rtol=0, atol=1e-5)


SAC_SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "fixed": {"ent_coef": 0.2},
    "tanh": {"policy_kwargs": {"activation_fn": torch.nn.Tanh, "net_arch": [32]}},
    "three critics": {"policy_kwargs": {"n_critics": 3, "net_arch": {"pi": [16, 8], "qf": [24, 24]}}},
    "rare target": {"target_update_interval": 2, "tau": 0.1},
    "elu": {"policy_kwargs": {"activation_fn": torch.nn.ELU}},
    "silu": {"policy_kwargs": {"activation_fn": torch.nn.SiLU}},
    "dict": {},
}
TD3_SHAPES: dict[str, dict[str, Any]] = {
    "td3": {},
    "td3 every step": {"policy_delay": 1, "tau": 0.1},
    "td3 rare": {"policy_delay": 3, "target_policy_noise": 0.5, "target_noise_clip": 0.2},
}
CROSSQ_SHAPES: dict[str, dict[str, Any]] = {
    "crossq": {},
    "crossq every step, fixed": {"policy_delay": 1, "ent_coef": 0.2},
}
OFF_POLICY = [
    pytest.param(algo, kwargs, id=name)
    for algo, shapes in (("SAC", SAC_SHAPES), ("TD3", TD3_SHAPES), ("CrossQ", CROSSQ_SHAPES))
    for name, kwargs in shapes.items()
]


@pytest.mark.parametrize(("algo", "kwargs"), OFF_POLICY)
def test_off_policy(algo: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Six gradient steps on the same batches with the same noise."""
    small: dict[str, Any] = {"seed": 3, "device": "cpu", "buffer_size": 1000, **kwargs}
    small["policy_kwargs"] = {"net_arch": [32, 32], **kwargs.get("policy_kwargs", {})}
    families = type(trainer(algo)), getattr(sb3_contrib if algo == "CrossQ" else sb3, algo)
    env, policy = (GoalEnv, "MultiInputPolicy") if kwargs is SAC_SHAPES["dict"] else (FakeEnv, "MlpPolicy")
    ours, stock = (family(policy, TensorVecEnv(env(WORLDS)), **small) for family in families)
    for model in (ours, stock):
        model.set_logger(Logger(folder=None, output_formats=[]))
    if algo == "SAC":
        assert (ours._stacked is not None) == (kwargs is not SAC_SHAPES["silu"])
    ours.learn(200)  # fills the replay, and moves the weights and Adam's moments
    if algo == "SAC":
        with torch.no_grad():  # some rows exceed 2, the upper limit of the log std of the first action
            ours.actor.log_std.bias[0] = 2.0
    stock.set_parameters(copy.deepcopy(ours.get_parameters()))
    if getattr(stock, "log_ent_coef", None) is not None:
        stock.log_ent_coef.data.copy_(ours.log_ent_coef)
    batches = [ours.replay_buffer.sample(64) for _ in range(6)]
    mine, theirs = iter(batches), iter(batches)
    monkeypatch.setattr(ours.replay_buffer, "sample", lambda size: next(mine))

    def sample(size: int, env: Any) -> ReplayBufferSamples:
        b = next(theirs)
        rewards, dones = b.rewards.unsqueeze(1), b.terminated.float().unsqueeze(1)
        return ReplayBufferSamples(b.obs, b.actions, b.next_obs, dones, rewards)

    monkeypatch.setattr(stock.replay_buffer, "sample", sample)
    before, stock._n_updates = copy.deepcopy(ours.actor.state_dict()), ours._n_updates
    ours._log_update()  # discards the metrics of learn()
    torch.manual_seed(0)
    ours.train(6, 64)
    ours._log_update()
    torch.manual_seed(0)
    stock.train(6, 64)
    assert_same(ours, stock)
    assert any(not torch.equal(before[name], value) for name, value in ours.actor.state_dict().items())
    if getattr(stock, "log_ent_coef", None) is not None:
        torch.testing.assert_close(ours.log_ent_coef, stock.log_ent_coef, rtol=0, atol=1e-6)
    for name, value in stock.logger.name_to_value.items():
        assert ours.logger.name_to_value[name] == pytest.approx(value, rel=1e-5, abs=2e-5), name


@pytest.mark.parametrize(("algo", "steps"), [("PPO", 6000), ("A2C", 12000), ("SAC", 2400), ("CrossQ", 2400)])
def test_learning(algo: str, steps: int) -> None:
    """At least 45 of the last 50 episodes reach the origin; random actions rarely do."""
    settings = {"PPO": {"learning_rate": 3e-3, "n_epochs": 5}, "A2C": {"learning_rate": 3e-3},
                "SAC": {"learning_rate": 3e-3, "learning_starts": 200, "gamma": 0.9},
                "CrossQ": {"learning_rate": 3e-3, "learning_starts": 200, "gamma": 0.9, "policy_delay": 1}}  # fmt: skip
    torch.manual_seed(0)
    model = trainer(algo, FakeEnv(4), **settings[algo])
    model.learn(steps)
    assert sum(list(model.ep_success_buffer)[-50:]) >= 45


@pytest.mark.parametrize("algo", ["SAC", "CrossQ"])
def test_the_learning_rate_of_an_update_is_that_of_its_step(algo: str) -> None:
    """A schedule that is 0 from the second update on: the weights no longer change."""
    model = trainer(algo, learning_rate=1e-3, gradient_steps=1)
    model.learn(80)
    model.lr_schedule = lambda progress: 0.0
    before = copy.deepcopy(model.actor.state_dict())
    model.train(3, 64)
    weights = dict(model.actor.named_parameters())
    assert all(torch.equal(before[name], value) for name, value in weights.items())


def test_an_overridden_loss_of_sac_is_used() -> None:
    class Own(type(trainer("SAC"))):  # type: ignore[misc]
        calls = 0

        def critic_loss(self, *args: Any) -> torch.Tensor:
            Own.calls += 1
            return super().critic_loss(*args)

    Own("MlpPolicy", TensorVecEnv(FakeEnv()), learning_starts=8, batch_size=8, gradient_steps=1).learn(40)
    assert Own.calls == 8
