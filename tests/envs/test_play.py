"""Tests of `play`: hidden states, episode starts, number of episodes that count."""

from __future__ import annotations

from itertools import islice, pairwise

import torch

from kit.envs.play import HiddenState, play
from kit.envs.vec import TensorEnv
from tests.envs.clock import Clock


class Counts:
    """Policy with two hidden states of different ranks: the number of steps, and 10 plus twice this number."""

    def initial_state(self, n: int) -> HiddenState:
        return torch.zeros(n, 1), torch.full((n, 2, 3), 10.0)

    def __call__(self, obs: object, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        steps, twice = hidden_state
        return steps + 1, (steps + 1, twice + 2)


def test_hidden_states_restart_with_each_episode() -> None:
    env = TensorEnv(Clock(), 3)
    steps = [*islice(play(env, Counts(), env.reset(seed=0)), 20)]
    for step in steps:
        age, twice = step.hidden_state
        assert torch.equal(step.action, age + 1) and torch.equal(step.info["episode_length"], 1 + age[:, 0].long())
        assert torch.equal(twice, (10 + 2 * age).unsqueeze(2).expand(3, 2, 3))
        assert torch.equal(step.episode_starts, age[:, 0] == 0)
    assert all(torch.equal(a.ended, a.terminated | a.truncated) for a in steps), "without `episodes` all episodes count"
    assert all(torch.equal(a.ended, b.episode_starts) and a.next_obs is b.obs for a, b in pairwise(steps))


def test_the_same_number_of_episodes_counts_in_every_env() -> None:
    env = TensorEnv(Clock(), 8)
    steps = [*play(env, Counts(), env.reset(seed=0), episodes=3)]
    ended, done = (torch.stack([getattr(step, name) for step in steps]).sum(0) for name in ("ended", "terminated"))
    assert ended.tolist() == [3] * 8 and done.max() > 3, "some envs finish more than 3 episodes"
    assert steps[-1].ended.any(), "`play` stops after the last episode that counts"
