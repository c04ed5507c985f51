"""Tests of frame stacking: contents by hand, episode starts, number of rendered images, snapshots, bad options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kit import make_vec
from kit.envs.gym import TaskEnv, TaskVectorEnv
from kit.envs.registry import describe
from kit.envs.sb3 import TensorVecEnv
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from tests.envs.flipbook import SIDE, Flipbook

NAME = "tests.envs.flipbook:Flipbook"
TURN = torch.ones(3, 1)


def pages(obs: dict[str, torch.Tensor]) -> list[list[int]]:
    """Return the red value of each frame in each env's stack. Checks that all pixels of a frame are equal."""
    eye = obs["eye"]
    assert torch.equal(eye, eye[..., :1, :1].expand_as(eye))
    return eye[:, :, 0, 0, 0].tolist()


def test_stacked_frames_by_hand() -> None:
    env = TensorEnv(Flipbook(), 3)  # episodes of env w end after w + 2 steps; for env 2 this is also the time limit
    assert pages(env.reset(0)) == [[1, 1, 1], [11, 11, 11], [21, 21, 21]]  # second reset; frame 0 was before it
    env.task.drawn = 0
    steps = [env.step(TURN) for _ in range(5)]
    assert [pages(step[0]) for step in steps] == [
        [[1, 1, 2], [11, 11, 12], [21, 21, 22]],
        [[4, 4, 4], [11, 12, 13], [21, 22, 23]],  # env 0 was reset
        [[4, 4, 5], [15, 15, 15], [22, 23, 24]],
        [[7, 7, 7], [15, 15, 16], [26, 26, 26]],
        [[7, 7, 8], [15, 16, 17], [26, 26, 27]],
    ]
    finals = [pages(step[4]["final_obs"]) for step in steps]
    assert (finals[1][0], finals[2][1], finals[3][2]) == ([1, 2, 3], [12, 13, 14], [23, 24, 25])
    assert finals[0] == pages(steps[0][0])
    assert steps[1][0]["step"].tolist() == [[0], [2], [2]] and steps[1][4]["final_obs"]["step"].tolist() == [[2]] * 3
    assert env.task.drawn == 5 * 3 + 4, "3 images per step, and one for each of the 4 resets"


def test_stacks_of_a_single_image_are_copies() -> None:
    env = TensorEnv(Flipbook(2, alone=True), 2)
    obs = env.reset(0)
    assert obs.shape == (2, 2, 3, SIDE, SIDE) and obs.dtype == torch.uint8
    obs.fill_(99)
    after = env.step(TURN[:2])[0]
    assert after[:, :, 0, 0, 0].tolist() == [[1, 2], [11, 12]]


def test_a_snapshot_holds_the_stacks() -> None:
    env = make_vec(NAME, 3)
    env.reset(0)
    env.step(TURN)
    saved = env.snapshot()
    expected = [pages(env.step(TURN)[0]) for _ in range(3)]
    again = make_vec(NAME, 3)
    again.restore(saved)
    assert [pages(again.step(TURN)[0]) for _ in range(3)] == expected


def test_gymnasium_and_sb3_wrappers_return_stacks() -> None:
    space = describe(NAME).observation_space["eye"]
    assert space.shape == (3, 3, SIDE, SIDE) and space.dtype == np.uint8
    assert TaskEnv(NAME).reset(seed=0)[0] in TaskEnv(NAME).observation_space
    vector = TaskVectorEnv(NAME, 2)
    assert vector.reset(seed=0)[0] in vector.observation_space
    assert TensorVecEnv(make_vec(NAME, 2)).reset()["eye"].shape == (2, 3, 3, SIDE, SIDE)


class Wrong(Flipbook):
    def __init__(self, **frames: object) -> None:
        super().__init__()
        self.frames = frames  # type: ignore[assignment]


@pytest.mark.parametrize(("frames", "says"), [({"ear": 3}, "'ear' is not a Box"), ({"eye": 0}, "0 must be a whole")])
def test_invalid_frames_are_refused(frames: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        TensorEnv(Wrong(**frames), 1)


def test_the_stack_of_a_diverged_env_ends_with_a_black_frame() -> None:
    class Unstable(Flipbook):
        def failed(self) -> torch.Tensor:
            return self.step == 1

    final = TensorEnv(Unstable(), 2).step(TURN[:2])[4]["final_obs"]
    assert pages(final)[1] == [10, 10, 0]
