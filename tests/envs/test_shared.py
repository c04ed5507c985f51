"""Worlds shared out among processes get the random numbers that they would get in one."""

import os

import pytest
import torch

from kit.envs import make_task
from kit.envs.foreign import ForeignEnv
from kit.envs.task import Share
from kit.envs.vec import TensorEnv

WORLDS = 4


def first_obs(name, share=None):
    n = WORLDS if share is None else 2
    return TensorEnv(make_task(name), n, seed=3, threads=1, autoreset=share is None, share=share).reset(seed=3)


@pytest.mark.parametrize("name", ["Reach", "Ant", "Go1Joystick", "G1Joystick"])
def test_the_parts_begin_like_the_whole(name):
    if "Joystick" in name and not os.environ.get("MENAGERIE_ROOT"):
        pytest.skip("MENAGERIE_ROOT names no folder with the robots' models")
    parts = [first_obs(name, Share(first, WORLDS)) for first in (0, 2)]
    assert torch.equal(torch.cat(parts), first_obs(name))
    assert not torch.equal(*parts)


def test_foreign_parts_begin_like_the_whole():
    parts = [ForeignEnv("CartPole-v1", 2, seed=3, share=Share(first, WORLDS)).reset(seed=3) for first in (0, 2)]
    assert torch.equal(torch.cat(parts), ForeignEnv("CartPole-v1", WORLDS, seed=3).reset(seed=3))
