"""Rollouts for policies that remember: cut into sequences, they tell each step's memory again."""

from __future__ import annotations

import pytest
import torch

from kit.trainers.rollout import Rollout

STEPS, WORLDS = 8, 3


def remembered() -> Rollout:
    """A policy that remembers the sum of what it saw since its episode began; episodes end at random."""
    generator = torch.Generator().manual_seed(0)
    rollout, memory = Rollout(STEPS, WORLDS, torch.device("cpu")), torch.zeros(WORLDS, 1)
    rollout.begin()
    for step in range(STEPS):
        obs = torch.randint(10, (WORLDS, 1), generator=generator).float()
        rollout.observe(step, {"number": obs})
        rollout.act(step, torch.full((WORLDS, 2), float(step)))
        rollout.remember(step, (memory,))
        rollout.values[step] = (memory + obs)[:, 0]  # what it would say
        rollout.done[step] = torch.rand(WORLDS, generator=generator) < 0.3
        memory = (memory + obs).masked_fill(rollout.done[step].unsqueeze(1), 0.0)
    assert rollout.done.any()
    return rollout


@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_what_was_remembered_comes_out_again(length: int) -> None:
    sequences = remembered().sequences(length)
    assert sequences.batch.obs["number"].shape == (length, WORLDS * STEPS // length, 1)
    (memory,) = sequences.memory
    for obs, begun, said in zip(sequences.batch.obs["number"], sequences.begun, sequences.batch.values, strict=True):
        memory = memory.masked_fill(begun.unsqueeze(1), 0.0) + obs
        assert torch.equal(memory[:, 0], said)


def test_sequences_are_of_one_world_in_order() -> None:
    rollout = remembered()
    sequences = rollout.sequences(4)
    assert sequences.batch.actions[:, :2, 0].T.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert torch.equal(sequences.batch.values[:, 3], rollout.values[4:, 1]), "number 3 is the second half of world 1"
    with pytest.raises(ValueError, match="do not divide"):
        rollout.sequences(3)


def test_final_observations_are_kept_only_where_an_episode_was_cut() -> None:
    rollout = Rollout(2, 3, torch.device("cpu"))
    rollout.begin()
    rollout.rewards[:] = 1.0
    rollout.cut(1, torch.tensor([False, True, False]), torch.tensor([[1.0], [2.0], [3.0]]))
    assert rollout._cuts[0][3].tolist() == [[2.0]]
    rollout.bootstrap(lambda obs: 10 * obs[:, 0], gamma=0.5)
    assert rollout.rewards.tolist() == [[1, 1, 1], [1, 11, 1]]
