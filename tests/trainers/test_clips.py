"""Tests of lazy frame stacks: rollout and replay store each image once and return the env's exact stacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kit import RunConfig, make_vec
from kit.envs.vec import TensorEnv
from kit.format.segments import Segment
from kit.trainers import make_trainer
from kit.trainers.clips import Clips, image_stacks
from kit.trainers.replay import Replay
from kit.trainers.rollout import Rollout
from kit.trainers.shifting import random_shift
from tests.envs.flipbook import SIDE, Flipbook

WORLDS, STEPS = 3, 7


def test_a_rollout_returns_the_envs_stacks_across_episodes_and_rollouts() -> None:
    env = TensorEnv(Flipbook(), WORLDS)  # episodes of 2, 3 and 4 steps
    obs = env.reset(0)
    frames = image_stacks(env.observation_space, env.frames)
    rollout = Rollout(STEPS, WORLDS, torch.device("cpu"), frames)
    for _ in range(3):
        shown = []
        for step in range(STEPS):
            shown.append(obs["eye"])
            assert torch.equal(rollout.store_obs(step, obs)["eye"], obs["eye"])
            rollout.store_actions(step, torch.zeros(WORLDS, 1))
            obs, _, terminated, truncated, _ = env.step(torch.rand(WORLDS, 1) - 0.3)
            rollout.done[step] = terminated | truncated
        order = torch.randperm(STEPS * WORLDS)
        for batch, rows in zip(rollout.batch().take(order).split(4), order.split(4), strict=True):
            assert isinstance(batch.obs["eye"], Clips)
            assert torch.equal(batch.materialized().obs["eye"], torch.cat(shown)[rows])
    kept = rollout._images["eye"]
    assert kept.shape == (STEPS + 2, WORLDS, SIDE, SIDE, 3), "STEPS images and two earlier ones in the stack of step 0"


@pytest.mark.parametrize("algo", ["PPO", "A2C", "RecurrentPPO"])
def test_training_with_lazy_stacks_equals_training_with_full_stacks(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> dict[str, torch.Tensor]:
        sizes = {"n_steps": 5} | ({} if algo == "A2C" else {"batch_size": 5, "n_epochs": 2})
        config = RunConfig(env="tests.envs.flipbook:Flipbook", algo=algo, encoder="simple2dcnn", total_steps=30,
                           overrides=sizes, n_envs=WORLDS, device="cpu", threads=1)  # fmt: skip
        return make_trainer(config, make_vec(config.env, WORLDS, threads=1)).learn(30).policy.state_dict()

    frames = trained()
    monkeypatch.setattr("kit.trainers.on_policy.image_stacks", lambda *_: {})
    stacks = trained()
    assert all(torch.allclose(frames[name], value, atol=1e-6) for name, value in stacks.items())


class Ledger:
    """Record of the full image stacks that were added to a replay."""

    def __init__(self) -> None:
        self.rows: list[tuple[torch.Tensor, torch.Tensor]] = []

    def play(self, env: TensorEnv, replay: Replay, obs: Any, steps: int) -> Any:
        for _ in range(steps):
            row = torch.full((WORLDS,), float(len(self.rows)))
            after, _, terminated, truncated, info = env.step(torch.rand(WORLDS, 1) - 0.3)
            done = terminated | truncated
            replay.add(obs, torch.arange(WORLDS).unsqueeze(1).float(), row, info["final_obs"], terminated, done)
            self.rows.append((obs["eye"], info["final_obs"]["eye"]))
            obs = after
        return obs

    def agrees(self, replay: Replay, rows: set[int]) -> None:
        """Check that samples come from all `rows` and no others, and equal the recorded stacks."""
        batch = replay.sample(300)
        assert set(batch.rewards.int().tolist()) == rows
        for i in range(len(batch.rewards)):
            (seen, after), world = self.rows[int(batch.rewards[i])], int(batch.actions[i, 0])
            assert torch.equal(batch.obs["eye"][i], seen[world]) and torch.equal(batch.next_obs["eye"][i], after[world])


def made(capacity: int, env: TensorEnv) -> Replay:
    return Replay(capacity, WORLDS, torch.device("cpu"), image_stacks(env.observation_space, env.frames))


def test_a_replay_returns_the_added_stacks_when_the_ring_wraps() -> None:
    env, ledger = TensorEnv(Flipbook(), WORLDS), Ledger()
    obs, replay = env.reset(0), made(10, env)
    for rows in range(1, 36):
        obs = ledger.play(env, replay, obs, 1)
        oldest = 0 if rows <= 10 else rows - 10 + 2  # full ring: earlier frames of the two oldest rows are lost
        ledger.agrees(replay, set(range(oldest, rows)))
    pictures = replay._images["eye"]
    assert pictures.ring.shape == (10, WORLDS, SIDE, SIDE, 3) and len(pictures._pool) < 40


@pytest.mark.parametrize("same_envs", [True, False])
def test_a_replay_is_restored_from_segments(same_envs: bool) -> None:
    env, ledger = TensorEnv(Flipbook(), WORLDS), Ledger()
    replay = made(12, env)
    obs = ledger.play(env, replay, env.reset(0), 17)
    again = made(12, env)
    again.written = 17
    for segment in (Segment(5, replay.rows(5, 9)), Segment(9, replay.rows(9, 17))):
        for start in range(0, len(segment), 3):
            part = segment.part(start, min(start + 3, len(segment)))
            again.load(part.rows, part.start)
    rows = set(range(7, 17))
    if same_envs:
        again.continue_from(obs)
        ledger.agrees(again, rows)
    else:
        again.note_reset()
        obs, rows = env.reset(7), rows - {16}  # next_obs of row 16 is unknown
    torch.manual_seed(1)
    obs = ledger.play(env, again, obs, 1)
    rows = {row for row in rows if row >= 8} | {17}
    ledger.agrees(again, rows)
    third = made(12, env)
    third.written, third.breaks = 18, list(again.breaks)
    third.load(again.rows(6, 18), 6)
    third.continue_from(obs)
    ledger.agrees(third, rows)


def test_sac_on_images_continues_after_its_replay_is_lost() -> None:
    """The replay fills again from row 20; its first two rows lack earlier frames and are not sampled."""
    options = {"buffer_size": 64, "learning_starts": 8, "batch_size": 8, "train_freq": 1}
    config = RunConfig(env="tests.envs.flipbook:Flipbook", algo="SAC", encoder="multi_camera", overrides=options,
                       n_envs=2, device="cpu", threads=1, total_steps=1000)  # fmt: skip
    first, other = (make_trainer(config, make_vec(config.env, 2)) for _ in range(2))
    first.learn(40)
    other.load_state(first.state())
    other.forget_replay()
    other.learn(80)
    assert other.replay_written == 40 and other.replay_first == 20
    rows = other.replay_rows(20, 40)
    assert rows["rewards"].shape[0] == 20


def test_a_random_shift_moves_all_frames_of_a_stack_equally() -> None:
    clips = torch.randint(0, 255, (200, 2, 3, 9, 10), dtype=torch.uint8)
    moved = random_shift({"eye": clips, "joints": torch.ones(200, 3)}, 2)
    assert moved["joints"].sum() == 600 and moved["eye"].dtype == torch.uint8
    padded = torch.nn.functional.pad(clips.flatten(1, 2).float(), (2, 2, 2, 2), mode="replicate").unflatten(1, (2, 3))
    seen = set()
    for clip, wide in zip(moved["eye"], padded, strict=True):
        crops = {(y, x): wide[..., y : y + 9, x : x + 10].byte() for y in range(5) for x in range(5)}
        places = [place for place, crop in crops.items() if torch.equal(crop, clip)]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) == 25


def test_sac_on_images_resumes_exactly() -> None:
    options = {"buffer_size": 60, "learning_starts": 12, "batch_size": 8, "random_shift": 2}
    config = RunConfig(env="tests.envs.flipbook:Flipbook", algo="SAC", encoder="multi_camera", overrides=options,
                       n_envs=WORLDS, device="cpu", threads=1)  # fmt: skip

    def new() -> Any:
        return make_trainer(config, make_vec(config.env, WORLDS, threads=1))

    whole, first = new().learn(105), new().learn(75)
    state, second = first.state(), new()
    second.load_state(state)
    stop = second.replay_written
    second.load_replay(first.replay_rows(stop - 20, stop), stop - 20)
    second.learn(105)
    expected, got = whole.policy.state_dict(), second.policy.state_dict()
    assert all(torch.equal(got[name], value) for name, value in expected.items())
