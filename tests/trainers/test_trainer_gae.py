"""Tests of `gae` and `Rollout`: advantages by hand with γ = ½ and λ = ½, bootstrapped time limits."""

import torch

from kit.trainers.rollout import Rollout, gae

GAMMA = LAMBDA = 0.5


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).unsqueeze(1)


def test_gae_without_an_end() -> None:
    """δ = (1 + ½·4 - 2, 1 + ½·6 - 4, 1 + ½·8 - 6) = (1, 0, -1); A = (1 + ¼·(0 - ¼), 0 - ¼, -1)."""
    rewards, values, done = column(1, 1, 1), column(2, 4, 6), torch.zeros(3, 1, dtype=torch.bool)
    advantages = gae(rewards, values, done, torch.tensor([8.0]), GAMMA, LAMBDA)
    assert advantages.flatten().tolist() == [0.9375, -0.25, -1.0]


def test_gae_stops_at_an_episode_end() -> None:
    """The second step ends the episode: δ = (1, 1 - 4, -1), A = (1 - ¾, -3, -1)."""
    done = torch.tensor([[False], [True], [False]])
    advantages = gae(column(1, 1, 1), column(2, 4, 6), done, torch.tensor([8.0]), GAMMA, LAMBDA)
    assert advantages.flatten().tolist() == [0.25, -3.0, -1.0]


def test_gae_ignores_last_values_after_an_episode_end() -> None:
    done = torch.tensor([[False], [False], [True]])
    advantages = gae(column(1, 1, 1), column(2, 4, 6), done, torch.tensor([1e9]), GAMMA, LAMBDA)
    assert advantages.flatten().tolist() == [1 + 0.25 * (0 + 0.25 * -5), -1.25, -5.0]


def rollout_of_two_worlds() -> Rollout:
    """In both envs an episode ends at step 1: env 0 terminates, env 1 is truncated with final value 10."""
    rollout = Rollout(3, 2, torch.device("cpu"))
    rollout.begin()
    rollout.rewards[:] = 1.0
    rollout.values[:] = torch.tensor([[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]])
    rollout.done[1] = True
    rollout.store_truncated(1, torch.tensor([False, True]), torch.tensor([[7.0], [10.0]]))
    return rollout


def test_truncations_are_bootstrapped_and_terminations_are_not() -> None:
    """Env 1's reward at step 1 becomes 1 + ½·10 = 6, so δ_1 = 6 - 4 = 2; env 0 has 1 - 4 = -3."""
    rollout = rollout_of_two_worlds()
    rollout.bootstrap(lambda obs: obs[:, 0], GAMMA)
    rollout.finish(torch.tensor([8.0, 8.0]), GAMMA, LAMBDA)
    assert rollout.rewards.tolist() == [[1, 1], [1, 6], [1, 1]]
    assert rollout.advantages.tolist() == [[0.25, 1.5], [-3.0, 2.0], [-1.0, -1.0]]
    assert rollout.returns.tolist() == [[2.25, 3.5], [1.0, 6.0], [5.0, 5.0]]


def test_begin_clears_the_truncations_of_the_previous_rollout() -> None:
    rollout = rollout_of_two_worlds()
    rollout.begin()
    rollout.bootstrap(lambda obs: obs[:, 0], GAMMA)
    assert rollout.rewards.eq(1).all()


def test_truncations_in_several_steps_and_envs() -> None:
    rollout = Rollout(4, 3, torch.device("cpu"))
    rollout.begin()
    rollout.store_truncated(0, torch.tensor([True, False, False]), torch.tensor([[1.0], [2.0], [3.0]]))
    rollout.store_truncated(2, torch.tensor([False, True, True]), torch.tensor([[4.0], [5.0], [6.0]]))
    rollout.bootstrap(lambda obs: obs[:, 0], 1.0)
    assert rollout.rewards.tolist() == [[1, 0, 0], [0, 0, 0], [0, 5, 6], [0, 0, 0]]
