"""Tests of `Replay`: sampling, lost rows, row numbers, restoring from segments."""

import pytest
import torch
from fake_env import FakeEnv, trainer

from kit.trainers.replay import Replay

N = 2


def filled(rows: int, capacity: int = 5, replay: Replay | None = None) -> Replay:
    """Fill a replay up to `rows` rows and return it.

    Row r has obs r, next_obs r + ½, action 10 r and reward 100 r in both envs.
    """
    replay = Replay(capacity, N, torch.device("cpu")) if replay is None else replay
    for r in range(replay.written, rows):
        ones = torch.ones(N, 1)
        replay.add(
            ones * r, ones * 10 * r, torch.full((N,), 100.0 * r), ones * (r + 0.5), torch.tensor([False, r == 3])
        )
    return replay


def test_sampling_draws_whole_transitions_of_the_latest_rows() -> None:
    batch = filled(7).sample(500)
    rows = batch.obs[:, 0]
    assert set(rows.tolist()) == {2, 3, 4, 5, 6}
    assert torch.equal(batch.actions[:, 0], rows * 10)
    assert torch.equal(batch.rewards, rows * 100)
    assert torch.equal(batch.next_obs[:, 0], rows + 0.5)
    assert 0 < batch.terminated.sum() < (rows == 3).sum()
    assert set(filled(3).sample(100).obs[:, 0].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("lost", [1, 3, 5, 7])
def test_forgotten_rows_are_never_sampled(lost: int) -> None:
    """Row numbers continue after `forget`; earlier rows are not sampled, wherever the ring wraps."""
    replay = filled(lost)
    replay.forget()
    assert len(replay) == 0
    for rows in range(lost + 1, lost + 9):
        filled(rows, replay=replay)
        expected = set(range(max(lost, rows - 5), rows))
        assert set(replay.sample(200).obs[:, 0].tolist()) == expected and len(replay) == len(expected)
    with pytest.raises(ValueError):
        filled(lost + 2, replay=filled(lost)).rows(lost + 3, lost + 4)


def test_rows_are_numbered_from_the_first_ever() -> None:
    replay = filled(7)
    assert replay.written == 7 and len(replay) == 5
    rows = replay.rows(3, 7)
    assert rows["obs"][:, 0, 0].tolist() == [3, 4, 5, 6]
    assert rows["actions"].shape == (4, N, 1)
    rows["obs"].zero_()
    assert replay.rows(3, 7)["obs"][0, 0, 0] == 3
    for start, stop in ((1, 7), (3, 8), (5, 4)):
        with pytest.raises(ValueError):
            replay.rows(start, stop)


@pytest.mark.parametrize("pieces", [[(0, 7)], [(2, 7)], [(0, 4), (4, 7)], [(4, 7), (0, 4)], [(2, 3), (3, 6), (6, 9)]])
def test_a_replay_is_restored_from_segments(pieces: list[tuple[int, int]]) -> None:
    """Segments may have any bounds, and rows that are too old or, from work that was lost, too new."""
    everything, original = filled(9, capacity=99), filled(7)
    restored = Replay(5, N, torch.device("cpu"))
    restored.written = 7
    for start, stop in pieces:
        restored.load(everything.rows(start, stop), start)
    for name, value in original.rows(2, 7).items():
        assert torch.equal(restored.rows(2, 7)[name], value)
    for replay in (original, restored):
        torch.manual_seed(0)
        replay.drawn = replay.sample(50)
    assert torch.equal(original.drawn.obs, restored.drawn.obs)


def test_sac_stores_final_observations_and_terminations() -> None:
    """At an episode end next_obs is the final observation; `terminated` is False at time limits."""
    model = trainer("SAC", FakeEnv(4, limit=5), learning_starts=10**6)
    model.learn(80)
    rows = model.replay_rows(0, model.replay_written)
    clock, next_clock = rows["obs"][..., 2], rows["next_obs"][..., 2]
    torch.testing.assert_close(next_clock, clock + 1 / 5)
    assert rows["actions"].abs().max() <= 1
    reached = rows["next_obs"][..., :2].norm(dim=-1) < 0.3
    assert torch.equal(rows["terminated"], reached)
    assert (next_clock > 0.99).any()
