"""Tests of exact resume: a run interrupted after an iteration continues bit for bit in a new trainer."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from fake_env import FakeEnv, GoalEnv, rows_of, trainer

from kit.envs.sb3 import TensorVecEnv
from kit.trainers import Interrupted

TOTAL = {"PPO": 512, "RecurrentPPO": 512, "A2C": 400, "SAC": 160, "TD3": 160, "CrossQ": 160}


def equal(a: Any, b: Any) -> bool:
    """Exact equality of nested states; NaN equals NaN."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def scramble() -> None:
    """Reseed the global random generators, as in another process."""
    import random

    import numpy as np

    random.seed(99), np.random.seed(99), torch.manual_seed(99)


def run(
    algo: str, cuts: set[int], env: type[FakeEnv] = FakeEnv, **overrides: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train to the end and return the final state and all logged rows.

    `cuts`: numbers of the boundaries (ends of iterations) at which a new trainer continues from the saved state.
    """
    rows: list[dict[str, Any]] = []
    state, replay, boundary = None, None, 0
    while True:
        model = trainer(algo, env(), **overrides)
        if state is not None:
            scramble()
            model.load_state(state)
            if replay is not None:
                model.load_replay(*replay)
        logged = rows_of(model)

        def at_boundary(model: Any = model) -> None:
            nonlocal boundary, state, replay
            boundary += 1
            if boundary in cuts:
                state = model.state()
                if algo in ("SAC", "TD3", "CrossQ"):
                    start = max(0, model.replay_written - model.replay_capacity)
                    replay = (model.replay_rows(start, model.replay_written), start)
                raise Interrupted

        model.on_boundary = at_boundary
        try:
            model.learn(TOTAL[algo], log_interval=40 if algo in ("SAC", "TD3", "CrossQ") else 1)
        except Interrupted:
            rows += logged
            continue
        return model.state(), rows + logged


@pytest.mark.parametrize("algo", TOTAL)
def test_cut_runs_equal_uncut_runs(algo: str) -> None:
    """With normalised observations and a schedule; the tests below have neither."""
    settings = {"normalize": True, "learning_rate": "lin_0.001"}
    state, rows = run(algo, set(), **settings)
    assert len(rows) >= 4
    cut_state, cut_rows = run(algo, {1, 2, 7}, **settings)
    assert equal(cut_state, state)
    assert equal(cut_rows, rows)


@pytest.mark.parametrize(
    "overrides",
    [
        {"policy_kwargs": {"net_arch": {"pi": [16], "vf": [32, 32]}}},
        {"use_sde": True},
        {"clip_range": "lin_0.2", "clip_range_vf": 0.2, "target_kl": 0.01},
        {"n_steps": 10, "batch_size": 16},
    ],
    ids=["uneven", "sde", "clips", "ragged"],
)
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_cut_runs_with_other_ppo_settings(overrides: dict[str, Any]) -> None:
    assert equal(run("PPO", {2, 4}, **overrides), run("PPO", set(), **overrides))


def test_the_hidden_state_is_part_of_the_state() -> None:
    """A resume without the hidden state ends differently; after a reset, or with more envs, it is zero."""
    whole = trainer("RecurrentPPO")
    whole.learn(64)
    state = whole.state()
    assert all(memory.abs().min() > 0 for memory in state["memory"].values()), "no env may be at an episode start"
    whole.learn(64, reset_num_timesteps=False)
    ends = []
    for kept in (state, {name: values for name, values in state.items() if name != "memory"}):
        model = trainer("RecurrentPPO", seed=5)
        model.load_state(kept)
        model.learn(128)
        ends.append(equal(model.state(), whole.state()))
    assert ends == [True, False]
    whole.should_stop = lambda: True
    with pytest.raises(Interrupted):
        whole.learn(64)  # starts over with reset envs
    assert not any(memory.any() for memory in whole.state()["memory"].values())
    more = trainer("RecurrentPPO", FakeEnv(6))
    assert not more.load_state(state)
    assert all(len(memory) == 6 and not memory.any() for memory in more.state()["memory"].values())


@pytest.mark.parametrize("overrides", [{"ent_coef": 0.1}, {"use_sde": True}, {"train_freq": 4, "gradient_steps": -1},
                                       {"buffer_size": 60}], ids=["fixed", "sde", "bursts", "full"])  # fmt: skip
def test_cut_runs_with_other_sac_settings(overrides: dict[str, Any]) -> None:
    assert equal(run("SAC", {3, 17}, **overrides), run("SAC", set(), **overrides))


@pytest.mark.parametrize(("algo", "overrides"), [
    ("SAC", {}), ("SAC", {"buffer_size": 60}), ("TD3", {"buffer_size": 60}), ("CrossQ", {"buffer_size": 60}),
])  # fmt: skip
def test_cut_runs_with_hindsight(algo: str, overrides: dict[str, Any]) -> None:
    whole = run(algo, set(), GoalEnv, **overrides)
    assert equal(run(algo, {3, 17}, GoalEnv, **overrides), whole)
    assert not equal(run(algo, set(), GoalEnv, n_sampled_goal=0, **overrides), whole), "hindsight changes the run"


@pytest.mark.parametrize("algo", TOTAL)
def test_state_before_the_first_step(algo: str) -> None:
    first = trainer(algo)
    state = first.state()
    first.learn(TOTAL[algo])
    scramble()
    second = trainer(algo, seed=5)
    second.load_state(state)
    second.learn(TOTAL[algo])
    assert equal(first.state(), second.state())


@pytest.mark.parametrize("algo", TOTAL)
def test_states_are_copies(algo: str) -> None:
    """A saved state does not change while training continues and stops in the middle of an iteration."""
    model = trainer(algo)
    model.learn(128)
    state = model.state()
    kept = copy.deepcopy(state)
    polls = iter(range(10**6))
    model.should_stop = lambda: next(polls) > 20
    with pytest.raises(Interrupted):
        model.learn(10**6, reset_num_timesteps=False)
    assert equal(state, kept)
    assert not equal(model.state(), kept)


@pytest.mark.parametrize("algo", ["PPO", "RecurrentPPO"])
def test_interrupted_inside_a_rollout_and_inside_an_update(algo: str) -> None:
    """should_stop is called before each env step and each minibatch: 16 steps, then 2 epochs of 2 minibatches."""
    whole = trainer(algo)
    asked = itertools.count(1)
    whole.should_stop = lambda: next(asked) < 0
    whole.learn(128)
    assert next(asked) == 2 * (16 + 2 * 2) + 1
    for stop_at in (7, 16 + 3):
        model = trainer(algo)
        model.learn(64)
        state = model.state()  # in the middle of most episodes
        calls = itertools.chain([False] * (stop_at - 1), [True])
        model.should_stop = calls.__next__
        with pytest.raises(Interrupted):
            model.learn(64, reset_num_timesteps=False)
        model.should_stop = lambda: False
        model.load_state(state)
        model.learn(128)
        assert equal(model.state(), whole.state())


def test_reset_num_timesteps_works_as_in_sb3() -> None:
    model = trainer("PPO")
    model.learn(64)
    model.learn(64, reset_num_timesteps=False)
    assert model.num_timesteps == 128
    model.learn(64)
    assert model.num_timesteps == 64


def test_a_second_learn_starts_episodes_that_do_not_reach_into_the_first() -> None:
    """Hindsight takes goals from later steps of an episode, and these steps from before the reset end there."""
    model = trainer("SAC", GoalEnv(), learning_starts=200)
    model.learn(64)
    rows = model.replay_buffer.written
    assert not model.replay_buffer.breaks
    model.learn(64)
    assert rows - 1 in model.replay_buffer.breaks


def test_another_env_may_be_set() -> None:
    model, other = trainer("PPO"), FakeEnv(limit=5)
    model.learn(64)
    model.set_env(TensorVecEnv(other))
    model.learn(64, reset_num_timesteps=False)
    assert other.steps.any() and max(info["l"] for info in list(model.ep_info_buffer)[-4:]) <= 5
