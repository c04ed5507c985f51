"""Tests of training in Gymnasium envs with images, for several image layouts and encoders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kit import RunConfig, make_vec
from kit.trainers import make_trainer

ONE, STACK = "tests.encoders.painted:Painted", "tests.encoders.painted:PaintedStack-v0"


@pytest.mark.parametrize(
    ("encoder", "env", "layout"),
    [("simple2dcnn", ONE, "last"), ("simple2dcnn", ONE, "dict"), ("simple2dcnn", STACK, "grey"),
     ("multi_camera", STACK, "first")],
)  # fmt: skip
def test_gymnasium_env_with_images_trains(encoder: str, env: str, layout: str) -> None:
    options = {"n_steps": 64, "batch_size": 32, "learning_rate": 3e-3, "gamma": 0.0}
    config = RunConfig(env=env, env_options={"layout": layout}, encoder=encoder, n_envs=4, overrides=options,
                       device="cpu", threads=1)  # fmt: skip
    vec = make_vec(env, 4, env_options=config.env_options)
    trainer: Any = make_trainer(config, vec).learn(512)
    obs, right = vec.reset(5), []
    for _ in range(16):
        obs, reward, *_ = vec.step(trainer.act(obs))
        right.append(reward)
    assert torch.cat(right).mean() > 0.9, "the policy has not learnt which half is bright"
