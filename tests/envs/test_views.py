"""Tests of every registered env: tensors, seeds, snapshots, Gymnasium and SB3 wrappers with their env checkers."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecCheckNan, VecFrameStack

import kit.envs
from kit.envs import make_vec
from kit.envs.obs import leaves, pick
from kit.envs.sb3 import TensorVecEnv

TASKS = sorted({*kit.envs.names()} - {"Push", "Slide", "G1Legs"})
"""Names of kit's tasks; Push and Slide have the code of PickAndPlace, G1Legs that of G1Joystick (`test_check` checks
seeds and snapshots of all). Tests of a robot are skipped if its model files cannot be downloaded."""
GYMNASIUM = ["Ant-v5", "HalfCheetah-v5", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1"]
ENVS = [*TASKS, *GYMNASIUM]
SPACES = ["Reach", "Mission", "PickAndPlace", "ReachVision"]
"""Tasks with each kind of space: numbers, discrete actions, goals, images."""
LONG = ("HalfCheetah-v5", "Mission")
"""Envs with episodes longer than these tests."""
SMALL = {
    "ReachVision": {"cameras": ["front", "top"], "size": 16}, "Dishwashing": {"shift_s": 5.0},
    "DishwashingVideo": {"size": 32, "shift_s": 5.0},
}  # fmt: skip
"""Options for fast tests: small images, short episodes."""
SEEN = ("ReachVision", "DishwashingVideo")
"""Tasks that render every step, so they are tested for fewer steps; they have the physics of Reach and Dishwashing."""
N = 3


def make(name: str, seed: int, threads: int):
    return make_vec(name, N, seed=seed, threads=threads, env_options=SMALL.get(name))


def parts(obs) -> list:
    """Return the entries of an observation or of its space, sorted by name."""
    return [part for _, part in sorted(leaves("obs", obs), key=lambda named: named[0])]


def flat(step) -> list[torch.Tensor]:
    """Return all tensors in the result of an env's `step`."""
    obs, *others, info = step
    return [*parts(obs), *others, *parts(info)]


def sampler(env, n: int = N):
    env.action_space.seed(0)
    return lambda: torch.as_tensor(np.stack([env.action_space.sample() for _ in range(n)]))


@pytest.mark.parametrize("name", ENVS)
def test_shapes_and_dtypes_of_tensors(name):
    env = make(name, seed=0, threads=1)
    action = sampler(env)
    obs = env.reset(seed=0)
    for _ in range(60):
        obs, reward, terminated, truncated, info = env.step(action())
        for seen, final, space in zip(*map(parts, (obs, info["final_obs"], env.observation_space)), strict=True):
            assert seen.shape == final.shape == (N, *space.shape)
            assert seen.dtype in (torch.float32, torch.int64, torch.uint8) and seen.isfinite().all()
            assert torch.equal(seen[~(terminated | truncated)], final[~(terminated | truncated)])
        assert reward.shape == terminated.shape == truncated.shape == (N,)
        assert reward.dtype == torch.float32 and terminated.dtype == truncated.dtype == torch.bool
        assert not (terminated & truncated).any()
        assert info["episode_return"].shape == info["episode_length"].shape == (N,)
    one, other = ([part.clone() for part in parts(env.reset(seed=seed))] for seed in (7, 8))
    assert name == "FrozenLake-v1" or any(not torch.equal(a, b) for a, b in zip(one, other, strict=True)), "seeds"
    env.close()


@pytest.mark.parametrize("name", ["Reach", "Mission", *GYMNASIUM])
def test_the_same_seed_gives_the_same_episodes(name):
    """`kit.check_task`, which tests/envs/test_check.py runs on every task, compares seeds too."""
    def run(env) -> list[torch.Tensor]:
        first, action = env.reset(seed=7), sampler(env)
        return [part for obs in (first, *(env.step(action())[0] for _ in range(20))) for part in parts(obs)]

    env, other = make(name, seed=1, threads=1), make(name, seed=2, threads=1)
    one = run(env)
    assert all(torch.equal(a, b) for a, b in zip(one, run(env), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one, run(other), strict=True))
    if name != "FrozenLake-v1":  # always starts in the same corner
        assert not torch.equal(parts(env.reset(seed=8))[0], one[0])


@pytest.mark.parametrize("name", [*sorted({*TASKS} - {"Go1Joystick", "G1Joystick"}), "Ant-v5", "HalfCheetah-v5"])
def test_snapshots_are_bit_exact_over_random_steps(name):
    """Those of the legged robots are tested with falls and pushes in tests/tasks/test_joystick.py."""
    env = make(name, seed=0, threads=1)
    assert env.snapshots
    action = sampler(env)
    for _ in range(20 if name in SEEN else 90):
        env.step(action())
    saved = env.snapshot()
    actions = [action() for _ in range(40 if name in SEEN else 100)]
    expected = [env.step(a) for a in actions]
    assert any((step[2] | step[3]).any() for step in expected) or name in (*LONG, "ReachVision")
    for target in (env, make(name, seed=5, threads=2)):
        target.restore(saved)
        for a, step in zip(actions, expected, strict=True):
            again = target.step(a)
            assert all(torch.equal(x, y) for x, y in zip(flat(step), flat(again), strict=True))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.filterwarnings("ignore:.*A Box observation space m")
def test_gymnasium_env_passes_both_checkers(name):
    env = gymnasium.make(f"kit/{name}-v0", **SMALL.get(name, {})).unwrapped
    check_env(env, skip_render_check=True)
    sb3_check_env(env, warn=True)
    env.close()


@pytest.mark.parametrize("name", TASKS)
def test_gymnasium_env_returns_the_last_observation_of_an_episode(name):
    env = gymnasium.make(f"kit/{name}-v0", **SMALL.get(name, {}))
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(env.unwrapped.tensor_env.episode_steps):
        obs, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert obs in env.observation_space
        if terminated or truncated:
            break
    assert terminated or truncated
    made = env.unwrapped.tensor_env
    newest = {name: seen[-1] if name[4:] in made.frames else seen for name, seen in leaves("obs", obs)}
    for name, seen in leaves("obs", pick(made.task.observe(), made.task.delivered, made.task.bare)):
        assert np.array_equal(newest[name], seen[0].float())
    assert all(isinstance(value, float | bool | int) for value in info.values())
    env.close()


def test_gymnasium_envs_and_sb3_wrapper_render():
    one = gymnasium.make("kit/Reach-v0", render_mode="rgb_array", height=48, width=64, camera="top")
    one.reset(seed=0)
    assert one.render().shape == (48, 64, 3) and one.render().dtype == np.uint8
    many = gymnasium.make_vec("kit/Reach-v0", 2, render_mode="rgb_array", height=48, width=64)
    many.reset(seed=0)
    assert [picture.shape for picture in many.render()] == [(48, 64, 3)] * 2
    images = TensorVecEnv(make_vec("Reach", 2)).get_images()
    assert len(images) == 2 and images[0].shape == (240, 320, 3)


@pytest.mark.parametrize("name", SPACES)
def test_gymnasium_vector_env(name):
    env = gymnasium.make_vec(f"kit/{name}-v0", num_envs=N, max_episode_steps=15, **SMALL.get(name, {}))
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    for step in range(1, 16):
        obs, reward, terminated, truncated, infos = env.step(env.action_space.sample())
        assert obs in env.observation_space and reward.dtype == np.float64
        if step < 15:
            assert "final_obs" not in infos or (terminated | truncated).any()
    assert (truncated | terminated).all() and truncated.any()
    for world in range(N):
        last = infos["final_obs"][world]
        assert last in env.single_observation_space
        assert not all(np.array_equal(a, b[world]) for a, b in zip(parts(last), parts(obs), strict=True))
    assert infos["_final_obs"].all() and infos["final_info"]
    env.close()


def test_gymnasium_vector_env_works_with_record_episode_statistics():
    envs = gymnasium.make_vec("kit/Reach-v0", num_envs=N, max_episode_steps=5)
    counted = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    counted.reset(seed=0)
    totals = np.zeros(N)
    for _ in range(5):
        _, reward, _, _, infos = counted.step(np.zeros((N, 7), dtype=np.float32))
        totals += reward
    assert np.allclose(infos["episode"]["r"], totals) and infos["episode"]["l"].tolist() == [5] * N


@pytest.mark.parametrize("name", [*SPACES, "CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_sb3_wrapper(name):
    env = TensorVecEnv(make(name, seed=0, threads=1))
    action = sampler(env.tensor_env)
    env.seed(3)
    first = env.reset()
    env.seed(3)
    assert all(np.array_equal(a, b) for a, b in zip(parts(first), parts(env.reset()), strict=True))
    totals, lengths, episodes = np.zeros(N), np.zeros(N), 0
    for _ in range(120):
        obs, reward, done, infos = env.step(action().numpy())
        assert done.dtype == bool and len(infos) == N
        for seen, space in zip(parts(obs), parts(env.observation_space), strict=True):
            assert seen.shape == (N, *space.shape)
        totals, lengths = totals + reward, lengths + 1
        for world in np.flatnonzero(done):
            info = infos[world]
            assert info["episode"]["l"] == lengths[world]
            assert info["episode"]["r"] == pytest.approx(totals[world], rel=1e-4, abs=1e-4)
            assert [part.shape for part in parts(info["terminal_observation"])] == [p[world].shape for p in parts(obs)]
            assert isinstance(info["TimeLimit.truncated"], bool)
            episodes += 1
        totals[done] = lengths[done] = 0
    assert episodes or name in (*LONG, "Ant-v5", "Pendulum-v1")
    env.close()


def test_sb3_trains_evaluates_and_wraps():
    env = VecCheckNan(VecFrameStack(TensorVecEnv(make_vec("Reach", 4, threads=1)), 2))
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, device="cpu", seed=0)
    model.learn(256)
    assert model.num_timesteps == 256
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # evaluate_policy warns when it has to do without a Monitor
        mean, _ = evaluate_policy(model, env, n_eval_episodes=4)
    assert np.isfinite(mean)
    env.close()
