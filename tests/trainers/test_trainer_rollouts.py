"""Tests of rollouts against SB3's: stored data, callbacks, episode statistics, metric names."""

from typing import Any

import pytest
import stable_baselines3 as sb3
import torch
from fake_env import FakeEnv, trainer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from kit.envs.sb3 import TensorVecEnv
from kit.errors import UserError


class Peek(BaseCallback):
    """Callback that keeps step counts and the infos of ended episodes, and stops at step 320."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        ended = [info for info, done in zip(self.locals["infos"], self.locals["dones"], strict=True) if done]
        self.seen.append({"n": self.n_calls, "steps": self.num_timesteps, "ended": ended})
        return self.num_timesteps < 320


@pytest.mark.parametrize("normalize", [False, True])
def test_rollouts_equal_sb3s(normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations, rewards, values and advantages equal SB3's, given the same noise.

    SB3 draws noise per step, kit once per rollout; the test gives both the same noise. 60 steps of 4 envs include
    terminations and time limits; the latter are bootstrapped.
    """
    steps, worlds = 60, 4
    kwargs: dict[str, Any] = {"n_steps": steps, "seed": 1, "device": "cpu", "batch_size": 60}
    ours = type(trainer("PPO"))("MlpPolicy", TensorVecEnv(FakeEnv(worlds)), normalize=normalize, **kwargs)
    venv: Any = TensorVecEnv(FakeEnv(worlds))
    stock = sb3.PPO("MlpPolicy", VecNormalize(venv) if normalize else venv, **kwargs)
    stock.policy.load_state_dict(ours.policy.state_dict())
    noise = torch.randn(steps, worlds, 2)
    draws = iter(noise)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: noise)
    monkeypatch.setattr(
        torch.distributions.Normal, "rsample", lambda self, shape=(): self.mean + self.stddev * next(draws)
    )

    buffers = []
    for model in (ours, stock):
        venv.tensor_env.reset(seed=1)
        _, callback = model._setup_learn(steps * worlds)
        if model is stock:  # SB3 has reset the env again: restore the start positions of ours
            venv.tensor_env.generator.manual_seed(1)
            if normalize:
                model.env.obs_rms.__init__(shape=(3,))
            model._last_obs = model.env.reset()
        model.collect_rollouts(model.env, callback, model.rollout_buffer, steps)
        buffers.append(model.rollout_buffer)
    ours._compute_returns()
    mine, theirs = buffers
    assert mine.done.sum() > 6
    for name in ("obs", "actions", "rewards", "values", "log_probs", "advantages", "returns"):
        value = torch.from_numpy(getattr(theirs, {"obs": "observations"}.get(name, name)))
        torch.testing.assert_close(getattr(mine, name), value, rtol=1e-5, atol=2e-5, msg=lambda m, name=name: name + m)
    assert [e["r"] for e in ours.ep_info_buffer] == pytest.approx([e["r"] for e in stock.ep_info_buffer], abs=1e-5)
    assert [e["l"] for e in ours.ep_info_buffer] == [e["l"] for e in stock.ep_info_buffer]
    assert list(ours.ep_success_buffer) == [float(s) for s in stock.ep_success_buffer]


@pytest.mark.parametrize("algo", ["PPO", "SAC"])
def test_callbacks_get_the_infos_of_sb3_and_can_stop(algo: str) -> None:
    model, peek = trainer(algo), Peek()
    model.learn(10_000, callback=peek)
    assert model.num_timesteps == 320
    assert [row["steps"] for row in peek.seen] == [4 * i for i in range(1, 81)]
    ended = [info for row in peek.seen for info in row["ended"]]
    assert len(ended) > 5
    for info in ended:
        assert info["terminal_observation"].shape == (3,)
        assert info["TimeLimit.truncated"] != info["is_success"]
        assert info["episode"]["l"] == 20 or info["is_success"]
        assert info["episode"]["r"] < 0


def test_statistics_keep_the_last_hundred_episodes_in_order() -> None:
    model = trainer("PPO")
    for first in range(0, 240, 40):
        numbers = torch.arange(first, first + 40.0).view(10, 4)
        model._record_episodes(torch.ones(10, 4, dtype=torch.bool), numbers, numbers.long(), numbers > 200)
    assert [e["r"] for e in model.ep_info_buffer] == list(range(140, 240))
    assert sum(model.ep_success_buffer) == 39
    assert model._episode_num == 240


def test_one_row_of_metrics_for_each_iteration_with_sb3s_names() -> None:
    from fake_env import rows_of

    model = trainer("PPO")
    rows = rows_of(model)
    model.learn(256)
    assert [row["step"] for row in rows] == [64, 128, 192, 256]
    stock = {"approx_kl", "clip_fraction", "clip_range", "entropy_loss", "explained_variance", "learning_rate", "loss"}
    stock |= {"n_updates", "policy_gradient_loss", "std", "value_loss"}
    expected = {f"train/{name}" for name in stock}
    expected |= {"step", "rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/success_rate"}
    assert rows[-1].keys() == expected


@pytest.mark.parametrize("algo", ["PPO", "A2C"])
def test_a_nan_observation_is_refused_before_the_policy_learns_from_it(algo: str) -> None:
    env = FakeEnv()
    step = env.step

    def blind(action: torch.Tensor) -> Any:
        obs, *rest = step(torch.zeros_like(action))  # finite rewards
        return torch.full_like(obs, torch.nan), *rest

    env.step = blind
    model = type(trainer(algo))("MlpPolicy", TensorVecEnv(env), device="cpu")
    before = [weight.clone() for weight in model.policy.parameters()]
    with pytest.raises(UserError, match="a reward, an observation or the policy is NaN or infinite, before step"):
        model.learn(200)
    assert all(torch.equal(weight, old) for weight, old in zip(model.policy.parameters(), before, strict=True))
