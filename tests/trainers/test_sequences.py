"""Tests of recurrent rollouts: padded sequences, minibatches from stored hidden states, row order, truncations."""

from __future__ import annotations

import pytest
import torch
from fake_env import trainer

from kit.trainers.recurrent_ppo import sequences, unroll
from kit.trainers.rollout import RecurrentBatch, Rollout

STEPS, WORLDS = 8, 3


def test_layout_of_padded_sequences() -> None:
    """Rows 0 to 2, row 3, and rows 4 to 5, by hand; the first row always starts a sequence."""
    found = sequences(torch.tensor([False, False, False, True, True, False]))
    assert found.first.tolist() == [0, 3, 4]
    assert found.row.tolist() == [[0, 3, 4], [1, 4, 5], [2, 5, 5]]
    assert found.place.tolist() == [0, 3, 6, 1, 2, 5]
    assert found.row.flatten()[found.place].tolist() == [0, 1, 2, 3, 4, 5]


def lived(lstm: torch.nn.LSTM) -> tuple[Rollout, torch.Tensor]:
    """Return a rollout of random observations and episode ends, and the outputs of `lstm`, computed step by step."""
    generator = torch.Generator().manual_seed(0)
    rollout, outputs = Rollout(STEPS, WORLDS, torch.device("cpu")), []
    hidden = cell = torch.randn(2, WORLDS, 5, generator=generator)  # the rollout starts in the middle of an episode
    rollout.begin()
    for step in range(STEPS):
        obs = rollout.store_obs(step, torch.randn(WORLDS, 4, generator=generator))
        rollout.store_actions(step, torch.full((WORLDS, 2), float(step)))
        rollout.store_hidden_state(step, {"actor": torch.stack([hidden, cell]).permute(2, 0, 1, 3)})
        out, (hidden, cell) = lstm(obs.unsqueeze(0), (hidden, cell))
        outputs.append(out[0])
        rollout.done[step] = torch.rand(WORLDS, generator=generator) < 0.3
        hidden, cell = (x.masked_fill(rollout.done[step].view(-1, 1), 0.0) for x in (hidden, cell))
    assert rollout.done.any()
    return rollout, torch.stack(outputs)


@pytest.mark.parametrize("size", [1, 5, 24])
@torch.no_grad()
def test_unrolled_minibatches_equal_stepwise_outputs(size: int) -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(4, 5, num_layers=2)
    rollout, outputs = lived(lstm)
    batch = rollout.batch()
    assert isinstance(batch, RecurrentBatch)
    order = torch.arange(STEPS * WORLDS).view(STEPS, WORLDS).T.flatten().roll(-7)  # env by env, rotated by 7 rows
    for rows, piece in zip(order.split(size), batch.take(order).split(size), strict=True):
        told = unroll(lstm, piece.obs, piece.hidden_state["actor"], sequences(piece.episode_starts))
        torch.testing.assert_close(told, outputs.flatten(0, 1)[rows], rtol=0, atol=1e-6)


def test_an_epoch_visits_rows_env_by_env_in_time_order() -> None:
    model = trainer("RecurrentPPO")
    starts = set()
    for _ in range(20):
        order = model._permutation(64)
        step, world = (order // 4).tolist(), (order % 4).tolist()
        assert sorted(order.tolist()) == list(range(64))
        assert all(step[i + 1] == (step[i] + 1) % 16 for i in range(63))
        assert all(world[i + 1] == (world[i] + (step[i] == 15)) % 4 for i in range(63))
        starts.add(order[0].item())
    assert len(starts) > 10


def test_final_observations_are_stored_for_truncated_envs_only() -> None:
    rollout = Rollout(2, 3, torch.device("cpu"))
    rollout.begin()
    rollout.rewards[:] = 1.0
    rollout.store_truncated(1, torch.tensor([False, True, False]), torch.tensor([[1.0], [2.0], [3.0]]))
    asked: list[torch.Tensor] = []
    rollout.bootstrap(lambda obs: asked.append(obs) or 10 * obs[:, 0], gamma=0.5)
    assert [obs.tolist() for obs in asked] == [[[2.0]]]
    assert rollout.rewards.tolist() == [[1, 1, 1], [1, 11, 1]]
