"""Any Gymnasium env with pictures trains with an encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kit import RunConfig, make_vec
from kit.trainers import make_trainer


@pytest.mark.parametrize("layout", ["last", "first", "grey", "dict"])
@pytest.mark.parametrize("env", ["tests.encoders.painted:Painted", "tests.encoders.painted:PaintedStack-v0"])
@pytest.mark.parametrize("encoder", ["simple2dcnn", "multi_camera"])
def test_somebodys_pictures(encoder: str, env: str, layout: str) -> None:
    if (encoder, layout) == ("multi_camera", "grey") or (env.endswith("v0") and layout == "dict"):
        pytest.skip("once is enough")
    options = {"n_steps": 64, "batch_size": 32, "learning_rate": 3e-3, "gamma": 0.0}
    config = RunConfig(env=env, env_options={"layout": layout}, encoder=encoder, n_envs=4, overrides=options,
                       device="cpu", threads=1)  # fmt: skip
    vec = make_vec(env, 4, env_options=config.env_options)
    trainer: Any = make_trainer(config, vec).learn(512)
    obs, right = vec.reset(5), []
    for _ in range(16):
        obs, reward, *_ = vec.step(trainer.act(obs))
        right.append(reward)
    assert torch.cat(right).mean() > 0.9, "it has learnt which side is bright"
