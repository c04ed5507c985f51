"""Tests of `GymnasiumEnv`: episode ends, totals, success, snapshots, subprocesses, images, missing packages."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from kit.envs.gymnasium_env import GymnasiumEnv
from kit.errors import UserError


class Countdown(gymnasium.Env):
    """Env that counts down from 3 and ends with success; observations are nested dicts."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Dict({"at": spaces.Dict({"left": spaces.Box(0, 9, (1,), np.float64)})})
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 3
        return self._obs(), {}

    def step(self, action):
        self.left -= int(action)
        return self._obs(), 1.0, self.left == 0, False, {"is_success": self.left == 0}

    def _obs(self):
        return {"at": {"left": np.array([float(self.left)])}}

    def render(self):
        return np.arange(4, dtype=np.uint8).reshape(2, 2, 1).repeat(3, axis=2)


gymnasium.register("test/Countdown-v0", Countdown, max_episode_steps=4)


def test_episode_ends_totals_and_success_by_hand():
    env = GymnasiumEnv("test/Countdown-v0", 2)
    assert env.observation_space["at/left"].shape == (1,) and env.reset(seed=0)["at/left"].tolist() == [[3], [3]]
    actions = torch.tensor([[1, 0], [1, 0], [1, 0], [0, 0]])
    steps = [env.step(action) for action in actions]
    assert [step[2].tolist() for step in steps] == [[False, False], [False, False], [True, False], [False, False]]
    assert [step[3].tolist() for step in steps] == [[False, False], [False, False], [False, False], [False, True]]
    obs, _, _, _, info = steps[2]
    assert obs["at/left"].tolist() == [[3], [3]] and info["final_obs"]["at/left"].tolist() == [[0], [3]]
    assert info["success"].tolist() == [True, False]
    assert info["episode_return"].tolist() == [3, 3] and info["episode_length"].tolist() == [3, 3]
    assert steps[3][4]["episode_length"].tolist() == [1, 4]


def test_envs_without_snapshots_restart_deterministically():
    env = GymnasiumEnv("CartPole-v1", 2, seed=3)
    assert not env.snapshots and "starts new episodes" in env.snapshot_note
    for _ in range(5):
        env.step(torch.tensor([0, 1]))
    saved = env.snapshot()

    def go_on() -> torch.Tensor:
        other = GymnasiumEnv("CartPole-v1", 2, seed=9)
        other.restore(saved)
        return torch.stack([other.step(torch.tensor([0, 1]))[0] for _ in range(5)])

    assert torch.equal(go_on(), go_on())


@pytest.mark.parametrize("name", ["Hopper-v5", "Reacher-v5", "Humanoid-v5", "InvertedDoublePendulum-v5"])
def test_snapshots_of_gymnasiums_mujoco_envs_are_exact(name):
    env, other = GymnasiumEnv(name, 2, seed=0), GymnasiumEnv(name, 2, seed=1)
    assert env.snapshots
    env.action_space.seed(0)
    actions = [torch.as_tensor(np.stack([env.action_space.sample()] * 2)) for _ in range(120)]
    for action in actions[:30]:
        env.step(action)
    saved = env.snapshot()
    expected = [env.step(action) for action in actions]
    other.restore(saved)
    for action, step in zip(actions, expected, strict=True):
        again = other.step(action)
        assert all(torch.equal(a, b) for a, b in zip(step[:4], again[:4], strict=True))


def test_subprocesses_give_the_same_observations():
    inline, apart = GymnasiumEnv("HalfCheetah-v5", 2, seed=0), GymnasiumEnv("HalfCheetah-v5", 2, seed=0, processes=True)
    saved = inline.snapshot()
    action = torch.full((2, 6), 0.5)
    expected = [inline.step(action)[0] for _ in range(10)]
    assert all(torch.equal(obs, apart.step(action)[0]) for obs in expected)
    apart.restore(saved)
    assert all(torch.equal(obs, apart.step(action)[0]) for obs in expected)
    apart.close()


def test_images_of_gymnasium_envs_are_resized():
    picture = GymnasiumEnv("test/Countdown-v0", 2).render(height=4, width=6)
    assert picture.shape == (2, 1, 4, 6, 3) and picture.dtype == torch.uint8
    assert picture[0, 0, :, :, 0].tolist() == [[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2


class Plain(gymnasium.Env):
    """Env without images, and without a parameter `render_mode`."""

    observation_space = action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


class Blind(Plain):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self):
        return None


gymnasium.register("test/Plain-v0", Plain, max_episode_steps=7)


@pytest.mark.parametrize("env", ["test/Plain-v0", Plain, Blind])
def test_an_env_without_images_is_stepped_and_refused_for_images(env):
    made = GymnasiumEnv(env, 2)
    made.step(torch.tensor([0, 1]))
    with pytest.raises(UserError, match=r"cannot be rendered: its render\(\) returns no image"):
        made.render()


def test_the_time_limit_is_that_of_the_env_as_made():
    assert GymnasiumEnv("CartPole-v1", 1).episode_steps == 500
    assert GymnasiumEnv("CartPole-v1", 1, max_episode_steps=5000).episode_steps == 5000
    assert GymnasiumEnv("test/Plain-v0", 1).episode_steps == 7
    assert GymnasiumEnv(Plain, 1).episode_steps == 1000, "without a time limit"


def test_a_missing_dependency_is_a_user_error():
    gymnasium.register("test/Broken-v0", "no_such_module:Env")
    with pytest.raises(UserError, match=r"test/Broken-v0.*no_such_module"):
        GymnasiumEnv("test/Broken-v0", 1)


class Shown(gymnasium.Env):
    """Env with the given spaces, whose observations are `first` after a reset and `later` after a step."""

    def __init__(self, observation_space=None, action_space=None, first=0.0, later=0.0, reward=0.0, ends=False):
        self.observation_space = observation_space or spaces.Dict({"a": spaces.Box(-1, 1, (1,), np.float64)})
        self.action_space = action_space or spaces.Discrete(2)
        self.first, self.later, self.reward, self.ends = first, later, reward, ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(self.first), {}

    def step(self, action):
        return self._obs(self.later), self.reward, self.ends, False, {}

    def _obs(self, value):
        return {"a": np.array([value])} if isinstance(self.observation_space, spaces.Dict) else 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"later": np.nan}, r"step\(\) returned NaN or infinity in the observation 'a'; look"),
        ({"later": 1e300}, r"step\(\) returned NaN or infinity in the observation 'a'; look"),  # too large for float32
        ({"later": -np.inf, "ends": True}, r"step\(\) returned NaN or infinity in the observation 'a'; look"),
        ({"reward": np.nan}, r"step\(\) returned NaN or infinity in the reward; look"),
        ({"first": np.nan}, r"reset\(\) returned NaN or infinity in the observation 'a'; look"),
    ],
)
def test_numbers_that_would_ruin_a_policy_are_refused(options, says):
    with pytest.raises(UserError, match=f"env='Shown': {says}"):
        GymnasiumEnv(Shown, 2, **options).step(torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("kind", "space", "says"),
    [
        ("action", spaces.Discrete(2, start=1), "starts at 1; let its numbers start at 0"),
        ("action", spaces.MultiDiscrete([3, 2], start=[0, -1]), "starts at 0, -1; let its numbers start at 0"),
        ("observation", spaces.Discrete(2, start=1), "starts at 1; let its numbers start at 0"),
        ("action", spaces.Box(-np.inf, np.inf, (1,)), "has no finite bounds; give its Box finite low and high"),
        ("action", spaces.Box(-1, np.inf, (1,)), "has no finite bounds; give its Box finite low and high"),
        ("observation", spaces.Sequence(spaces.Discrete(2)), r"is Sequence\(Discrete\(2\).*, which has no fixed"),
        ("observation", spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), r".a is Sequence\("),
        ("action", spaces.Dict({"a": spaces.Discrete(2)}), "is a Dict; make it a Box, Discrete, MultiDiscrete"),
        ("action", spaces.Box(0, 3, (1,), np.int64), "is a Box of int64; make it MultiDiscrete, or a Box of float32"),
    ],
)
def test_spaces_that_no_policy_fits_are_refused(kind, space, says):
    with pytest.raises(UserError, match=f"env='Shown': {kind}_space ?{says}"):
        GymnasiumEnv(Shown, 1, **{f"{kind}_space": space})
