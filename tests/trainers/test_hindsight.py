"""Tests of hindsight experience replay: goals worked by hand, SB3's buffer as reference, resume, Gymnasium envs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer

import kit
from kit.errors import UserError
from kit.trainers.hindsight import HindsightReplay

CPU = torch.device("cpu")
ENDS = ((2, 5, 10), (4, 5, 12))
"""Last rows of the episodes of two envs."""
ROWS = 14


def reached(achieved: Any, desired: Any) -> Any:
    """Return the reward: 0 if the achieved number is the desired one, else -1."""
    missed = (achieved != desired).any(-1)
    return -missed.astype(np.float32) if isinstance(missed, np.ndarray) else -missed.float()


def row_of(r: int) -> dict[str, Any]:
    """Return row `r` of both envs. Env e achieves the number 100 e + r; its own goal is -1. Row 4 terminates."""
    achieved = torch.tensor([[float(r)], [100.0 + r]])
    desired = torch.full((2, 1), -1.0)

    def obs(number: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"observation": number.clone(), "achieved_goal": number.clone(), "desired_goal": desired.clone()}

    done = torch.tensor([r in ends for ends in ENDS])
    return {
        "obs": obs(achieved - 1),
        "actions": achieved.clone(),
        "rewards": torch.full((2,), -1.0),
        "next_obs": obs(achieved),
        "terminated": done & (r == 4),
        "done": done,
    }


def filled(capacity: int, rows: int = ROWS, replay: HindsightReplay | None = None) -> HindsightReplay:
    replay = HindsightReplay(capacity, 2, CPU, None, 4, reached) if replay is None else replay
    for r in range(replay.written, rows):
        replay.add(**row_of(r))
    return replay


def goals(replay: HindsightReplay, size: int = 20_000) -> dict[int, set[int]]:
    """Sample; return the achieved number of each transition -> the goals that replaced its own."""
    torch.manual_seed(0)
    batch: Any = replay.sample(size)
    assert torch.equal(batch.obs["desired_goal"], batch.next_obs["desired_goal"])
    assert torch.equal(batch.rewards, reached(batch.next_obs["achieved_goal"], batch.obs["desired_goal"]))
    assert torch.equal(batch.next_obs["achieved_goal"], batch.actions), "each transition stays whole"
    found = defaultdict(set)
    for number, goal in zip(batch.actions[:, 0].tolist(), batch.obs["desired_goal"][:, 0].tolist(), strict=True):
        if goal != -1:
            found[int(number)].add(int(goal))
    own = (batch.obs["desired_goal"] == -1).float().mean().item()
    assert own == pytest.approx(0.2), "one of five keeps its goal"
    return dict(found)


def later(first: int, rows: int = ROWS) -> dict[int, set[int]]:
    """Return what `goals` should return if the rows from `first` on are stored, worked from ENDS."""
    expected = {}
    for env, ends in enumerate(ENDS):
        for r in range(first, rows):
            end = min([end for end in ends if end >= r] + [rows - 1])
            expected[100 * env + r] = {100 * env + later for later in range(r, end + 1)}
    return expected


@pytest.mark.parametrize("capacity", [20, ROWS, 7, 3])
def test_goals_come_from_the_same_episode_and_not_from_earlier_rows(capacity: int) -> None:
    """Also across the ring's edge, in episodes whose first rows were overwritten, and in episodes that go on."""
    assert goals(filled(capacity)) == later(max(0, ROWS - capacity))


def test_by_hand() -> None:
    found = goals(filled(20))
    assert found[1] == {1, 2} and found[3] == {3, 4, 5} and found[5] == {5}
    assert found[100] == {100, 101, 102, 103, 104} and found[105] == {105}
    assert found[12] == {12, 13} and found[113] == {113}, "episodes that have not ended"


def test_a_restored_buffer_samples_the_same_batches() -> None:
    original = filled(7, 11)
    restored = HindsightReplay(7, 2, CPU, None, 4, reached)
    restored.written = original.written
    restored.load(original.rows(4, 8), 4)
    restored.load(original.rows(8, 11), 8)
    for replay in (original, restored):
        filled(7, ROWS, replay)
    torch.manual_seed(3)
    a: Any = original.sample(256)
    torch.manual_seed(3)
    b: Any = restored.sample(256)
    assert torch.equal(a.obs["desired_goal"], b.obs["desired_goal"]) and torch.equal(a.rewards, b.rewards)


def test_a_reset_at_a_resume_ends_the_episodes() -> None:
    replay = filled(20, 8)
    replay.note_reset()
    filled(20, ROWS, replay)
    found = goals(replay)
    assert found[6] == {6, 7} and found[8] == {8, 9, 10}


def test_the_goals_are_those_of_sb3() -> None:
    """SB3's buffer samples from ended episodes; for their transitions both draw the same goals equally often."""
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))

    class Rewards:
        num_envs = 2

        def env_method(self, name: str, achieved: Any, desired: Any, infos: Any, indices: Any) -> list[Any]:
            return [reached(achieved, desired)]

    theirs = HerReplayBuffer(2 * 20, space, box, env=Rewards(), n_envs=2)  # type: ignore[arg-type]
    for r in range(ROWS):
        row = {name: value.numpy() if isinstance(value, torch.Tensor) else {k: v.numpy() for k, v in value.items()}
               for name, value in row_of(r).items()}  # fmt: skip
        theirs.add(row["obs"], row["next_obs"], row["actions"], row["rewards"], row["done"], [{}, {}])
    np.random.seed(0)
    torch.manual_seed(0)
    torch_obs, sb3_obs = filled(20).sample(40_000), theirs.sample(40_000)
    ours_obs: Any = torch_obs.obs
    ours, sb3 = (shares(batch.actions[:, 0], goal[:, 0]) for batch, goal in
                 ((torch_obs, ours_obs["desired_goal"]), (sb3_obs, sb3_obs.observations["desired_goal"])))  # fmt: skip
    assert ours.keys() == sb3.keys() and len(ours) > 60
    assert all(ours[pair] == pytest.approx(sb3[pair], abs=0.004) for pair in ours), "shares are about 0.015"


def shares(achieved: torch.Tensor, goal: torch.Tensor) -> dict[tuple[int, int], float]:
    """Return (achieved number, new goal) -> its share, for transitions with a new goal in ended episodes."""
    last = torch.where(achieved < 100, ENDS[0][-1], 100 + ENDS[1][-1])
    keep = (goal != -1) & (achieved <= last)
    pairs, counts = torch.stack([achieved[keep], goal[keep]], 1).unique(dim=0, return_counts=True)
    return {(int(a), int(g)): n / int(keep.sum()) for (a, g), n in zip(pairs.tolist(), counts.tolist(), strict=True)}


class Line(gymnasium.Env):
    """A point on a line steps towards a goal; one that other people's goal envs look like."""

    def __init__(self, can_compute: bool = True) -> None:
        box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.place, self.goal, self.steps = 0.0, 0.0, 0
        if can_compute:
            self.compute_reward = lambda achieved, desired, info: -(abs(achieved - desired) > 0.1).any(-1).astype(float)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal, self.steps = 0.0, self.np_random.uniform(-2, 2), 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> Any:
        self.place += 0.5 * float(action[0])
        self.steps += 1
        near = abs(self.place - self.goal) <= 0.1
        return self._obs(), float(near) - 1, False, self.steps == 10, {"is_success": near}

    def _obs(self) -> dict[str, np.ndarray]:
        place = np.array([self.place])
        return {"observation": place, "achieved_goal": place, "desired_goal": np.array([self.goal])}


@pytest.mark.parametrize("algo", ["SAC", "TD3", "CrossQ"])
def test_a_gymnasium_env_with_goals_is_trained_with_hindsight(algo: str, tmp_path: Any) -> None:
    small = {"learning_starts": 64, "batch_size": 32, "policy_kwargs": {"net_arch": [16]}}
    fields = {"env": f"{__name__}:Line", "algo": algo, "total_steps": 256, "n_envs": 2, "eval_every": 0}
    run = kit.train(**fields, overrides=small, runs_dir=str(tmp_path))
    assert run.status()["state"] == "finished"
    batch: Any = kit_replay(fields, small).sample(100)
    kept = batch.obs["desired_goal"][80:]
    assert (batch.rewards[:80] == 0).float().mean() > 0.2, "most steps reach a goal that was achieved later"
    assert batch.obs["desired_goal"][:80].unique().numel() > kept.unique().numel()


def kit_replay(fields: dict[str, Any], overrides: dict[str, Any]) -> HindsightReplay:
    """Train briefly in this process; return the replay buffer."""
    from kit.trainers.build import make_trainer
    from kit.trainers.planning import plan

    config = plan(kit.RunConfig(**fields, overrides=overrides)).config
    trainer: Any = make_trainer(config, kit.make_vec(fields["env"], fields["n_envs"]))
    trainer.learn(200)
    assert isinstance(trainer.replay_buffer, HindsightReplay)
    return trainer.replay_buffer


def test_an_env_without_compute_reward_is_refused_before_training() -> None:
    from kit.trainers.build import make_trainer
    from kit.trainers.planning import plan

    options = {"can_compute": False}
    config = plan(kit.RunConfig(env=f"{__name__}:Line", env_options=options, algo="SAC", n_envs=1)).config
    env = kit.make_vec(f"{__name__}:Line", 1, env_options=options)
    with pytest.raises(UserError, match=r"no compute_reward.*n_sampled_goal=0"):
        make_trainer(config, env)


class Slip(Line):
    """Its compute_reward has an error of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.compute_reward = lambda achieved, desired, info: achieved.norm()


def test_an_error_inside_compute_reward_is_not_taken_for_a_missing_one() -> None:
    env = kit.make_vec(f"{__name__}:Slip", 1)
    with pytest.raises(AttributeError, match="norm"):
        env.compute_reward(torch.zeros(1, 1), torch.zeros(1, 1))
