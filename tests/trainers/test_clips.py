"""Every frame kept once, stacks put together when they are looked at: bit for bit what the env has shown."""

from __future__ import annotations

import pytest
import torch

from kit import RunConfig, make_vec
from kit.envs.vec import TensorEnv
from kit.trainers import make_trainer
from kit.trainers.clips import Clips, stacks_of_pictures
from kit.trainers.rollout import Rollout
from tests.envs.flipbook import SIDE, Flipbook

WORLDS, STEPS = 3, 7


def test_a_rollout_gives_back_what_was_seen_across_episodes_and_rollouts() -> None:
    env = TensorEnv(Flipbook(), WORLDS)  # episodes of 2, 3 and 4 steps
    obs = env.reset(0)
    frames = stacks_of_pictures(env.observation_space, env.frames)
    rollout = Rollout(STEPS, WORLDS, torch.device("cpu"), frames)
    for _ in range(3):
        shown = []
        for step in range(STEPS):
            shown.append(obs["eye"])
            assert torch.equal(rollout.observe(step, obs)["eye"], obs["eye"])
            rollout.act(step, torch.zeros(WORLDS, 1))
            obs, _, terminated, truncated, _ = env.step(torch.rand(WORLDS, 1) - 0.3)
            rollout.done[step] = terminated | truncated
        order = torch.randperm(STEPS * WORLDS)
        for batch, rows in zip(rollout.batch().take(order).split(4), order.split(4), strict=True):
            assert isinstance(batch.obs["eye"], Clips)
            assert torch.equal(batch.assembled().obs["eye"], torch.cat(shown)[rows])
    kept = rollout._pictures["eye"]
    assert kept.shape == (STEPS + 2, WORLDS, SIDE, SIDE, 3), "each frame once, and two that the first step looks back to"


@pytest.mark.parametrize("algo", ["PPO", "A2C", "RecurrentPPO"])
def test_a_gradient_from_frames_equals_that_from_whole_stacks(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> dict[str, torch.Tensor]:
        config = RunConfig(env="tests.envs.flipbook:Flipbook", algo=algo, encoder="simple2dcnn", total_steps=30,
                           overrides={"n_steps": 5}, n_envs=WORLDS, device="cpu", threads=1)  # fmt: skip
        return make_trainer(config, make_vec(config.env, WORLDS, threads=1)).learn(30).policy.state_dict()

    frames = trained()
    monkeypatch.setattr("kit.trainers.on_policy.stacks_of_pictures", lambda *_: {})
    stacks = trained()
    assert all(torch.allclose(frames[name], value, atol=1e-6) for name, value in stacks.items())
