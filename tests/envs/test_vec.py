"""Tests of `TensorEnv`: termination, truncation and totals by hand, copies, autoreset, snapshots, staggering."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces

from kit.envs.task import Task
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from tests.envs.slide import Slide

FORCES = torch.tensor([[1.0], [0.5], [0.75]])
# v += F, x += v:  1, 3, 6 -> terminated at step 3;  0.5, 1.5, 3, 5 -> truncated at step 4, the time limit;
# 0.75, 2.25, 4.5, 7.5 -> beyond 6 m at the time limit: terminated, not truncated.


def test_termination_truncation_and_totals_by_hand():
    env = TensorEnv(Slide(), 3)
    assert env.reset(seed=0).tolist() == [[0, 0]] * 3
    steps = [env.step(FORCES) for _ in range(4)]
    terminated, truncated = (torch.stack([step[i] for step in steps]).tolist() for i in (2, 3))
    no = [False, False, False]
    assert terminated == [no, no, [True, False, False], [False, False, True]]
    assert truncated == [no, no, no, [False, True, False]]

    obs, reward, _, _, info = steps[2]
    assert obs.tolist() == [[0, 0], [3, 1.5], [4.5, 2.25]], "env 0 was reset"
    assert info["final_obs"].tolist() == [[6, 3], [3, 1.5], [4.5, 2.25]], "the last observation of env 0's episode"
    assert reward.tolist() == [6, 3, 4.5]
    assert info["success"].tolist() == [True, False, False]
    assert info["episode_return"].tolist() == [10, 5, 7.5]
    assert info["episode_length"].tolist() == [3, 3, 3]

    obs, reward, _, _, info = steps[3]
    assert obs.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert info["final_obs"].tolist() == [[1, 1], [5, 2], [7.5, 3]]
    assert info["episode_return"].tolist() == [1, 10, 15], "totals restart with each episode"
    assert info["episode_length"].tolist() == [1, 4, 4]


def test_actions_are_clipped():
    env = TensorEnv(Slide(), 1)
    obs = env.step(torch.tensor([[5.0]]))[0]
    assert obs.tolist() == [[1, 1]]


def test_shapes_and_types():
    env = TensorEnv(Slide(), 2, dtype=torch.float64)
    obs, reward, terminated, truncated, info = env.step(torch.zeros(2, 1))
    assert (obs.shape, obs.dtype) == ((2, 2), torch.float64)
    assert (reward.shape, reward.dtype) == ((2,), torch.float64)
    assert terminated.dtype == truncated.dtype == info["success"].dtype == torch.bool
    assert info["episode_length"].dtype == torch.int64
    assert TensorEnv(Slide(), 2).step(torch.zeros(2, 1))[1].dtype == torch.float32


def test_returned_tensors_do_not_change_in_the_next_step():
    env = TensorEnv(Slide(), 2)
    step = env.step(FORCES[:2])
    kept = [value.clone() for value in (*step[:4], *step[4].values())]
    env.step(FORCES[:2])
    assert all(torch.equal(a, b) for a, b in zip(kept, (*step[:4], *step[4].values()), strict=True))


class Views(Slide):
    """Returns views of the simulator's state."""

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self.sim.qpos[:, 0]

    def info(self) -> dict[str, torch.Tensor]:
        return {"place": self.sim.qpos[:, 0], "far": self.sim.qpos[:, 0] > 4, "speed": self.sim.qvel[:, 0]}


class Kept(Task):
    """Counts steps to 3. Returns the tensors that hold its state; `build` makes them, and they change in place."""

    episode_steps, control_dt_s = 9, 1.0
    observation_space, action_space = spaces.Box(0, 3, (1,)), spaces.Discrete(2)

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device, threads)
        self.count, self.total, self.ended = torch.zeros(n, 1), torch.zeros(n), torch.zeros(n, dtype=torch.bool)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        for state in (self.count, self.total, self.ended):
            state[mask] = 0

    def advance(self, action: torch.Tensor) -> None:
        self.count += 1
        self.total.copy_(10 * self.count[:, 0])
        self.ended.copy_(self.count[:, 0] == 3)

    def observe(self) -> torch.Tensor:
        return self.count

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self.total

    def terminated(self) -> torch.Tensor:
        return self.ended

    def success(self) -> torch.Tensor:
        return self.ended


def test_a_reset_does_not_change_results_that_are_views_of_the_state():
    env = TensorEnv(Views(), 3)
    steps = [env.step(FORCES) for _ in range(4)]
    _, reward, _, _, info = steps[2]
    assert reward.tolist() == [6, 3, 4.5] == info["place"].tolist()
    assert info["far"].tolist() == [True, False, True] and info["speed"].tolist() == [3, 1.5, 2.25]
    assert steps[3][1].tolist() == [1, 5, 7.5] == steps[3][4]["place"].tolist()
    assert list(info)[-4:] == ["place", "far", "speed", "success"]


def test_a_reset_does_not_change_results_that_are_the_state_itself():
    """Observations stay valid in later steps too, because policies compare them with the next ones."""
    env = TensorEnv(Kept(), 2)
    seen, results = [env.reset()], []
    for _ in range(4):
        obs, reward, terminated, _, info = env.step(torch.zeros(2, dtype=torch.int64))
        seen += [info["final_obs"], obs]
        results.append([reward.tolist(), terminated.tolist(), info["success"].tolist()])
    assert [obs.tolist() for obs in seen] == [[[x]] * 2 for x in (0, 1, 1, 2, 2, 3, 0, 1, 1)]
    expected = ((10, False), (20, False), (30, True), (10, False))
    assert results == [[[reward] * 2, [end] * 2, [end] * 2] for reward, end in expected]


def test_without_autoreset_finished_envs_are_not_reset():
    env = TensorEnv(Slide(), 1, autoreset=False)
    for _ in range(3):
        obs = env.step(FORCES[:1])[0]
    assert obs.tolist() == [[6, 3]]


def test_a_diverged_env_terminates_with_zeros():
    class Unstable(Slide):
        def terminated(self) -> torch.Tensor:
            return torch.zeros(self.sim.n, dtype=torch.bool)

    env = TensorEnv(Unstable(), 2)
    saved = env.snapshot()
    saved["sim.state"][1, 2] = 1e12  # time, qpos, qvel
    env.restore(saved)
    with pytest.warns(RuntimeWarning, match="diverged"):
        _, reward, terminated, truncated, info = env.step(FORCES[:2])
    assert terminated.tolist() == [False, True] and truncated.tolist() == [False, False]
    assert info["final_obs"].tolist() == [[1, 1], [0, 0]] and reward.tolist() == [1, 0]
    assert info["success"].tolist() == [False, False]


def test_snapshots_contain_totals_and_episode_lengths():
    env = TensorEnv(Slide(), 3)
    for _ in range(2):
        env.step(FORCES)
    saved = env.snapshot()
    expected = [env.step(FORCES) for _ in range(6)]
    env.restore(saved)
    for step in expected:
        again = env.step(FORCES)
        assert all(torch.equal(a, b) for a, b in zip(step[:4], again[:4], strict=True))
        assert all(torch.equal(value, again[4][name]) for name, value in step[4].items())


def test_only_the_first_episodes_are_staggered():
    """First episodes of 200 envs have random time limits of 1 to 4 steps; later episodes have all four steps."""

    class Staggered(Slide):
        staggered = True

    env = TensorEnv(Staggered(), 200)
    env.start_training(seed=0)
    still = torch.zeros(200, 1)
    first = torch.zeros(200, dtype=torch.int64)
    for step in range(1, 5):
        truncated = env.step(still)[3]
        first = torch.where(truncated & (first == 0), step, first)
    assert torch.bincount(first, minlength=5)[1:].min() > 30 and (first > 0).all()
    saved = env.snapshot()
    cuts = torch.stack([env.step(still)[3] for _ in range(8)])
    assert (cuts.sum(0) == 2).all(), "later episodes have four steps"
    other = TensorEnv(Staggered(), 200, seed=5)
    other.restore(saved)
    assert torch.equal(torch.stack([other.step(still)[3] for _ in range(8)]), cuts)
    env.reset()
    assert not env.step(still)[3].any(), "without `start_training`, as in evaluations, episodes are whole"


def test_a_task_without_physics_steps_is_refused():
    class Still(Slide):
        substeps = 0

    with pytest.raises(UserError, match=r"env='.*': substeps=0 must be at least 1"):
        TensorEnv(Still(), 1)


def test_an_unnamed_task_with_a_mistake_or_without_cameras_gets_a_sentence():
    class Nameless(Kept):
        def terminated(self) -> torch.Tensor:
            return self.total

    with pytest.raises(UserError, match=r"env='Nameless': terminated\(\) returned dtype"):
        TensorEnv(Nameless(), 1).step(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(UserError, match="env='Slide' has no camera; set `cameras`"):
        TensorEnv(Slide(), 1).render()
