"""Tests of ReachVision: position of the ball in images, observations of policy and critic, bad options."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from kit import RunConfig, make_vec
from kit.errors import UserError
from kit.tasks.reach.vision import EYES
from kit.trainers import make_trainer

pytestmark = pytest.mark.timeout(900)  # a first launch on a machine compiles kernels


def test_it_passes_gymnasiums_check() -> None:
    env = gymnasium.make("kit/ReachVision-v0", frames=2, size=32, cameras=["front"])
    check_env(env.unwrapped, skip_render_check=True)


def test_the_ball_is_where_the_pinhole_model_projects_it() -> None:
    env: Any = make_vec("ReachVision", 12)
    obs = env.reset(3)
    assert {name: tuple(value.shape) for name, value in obs.items()} == {
        **dict.fromkeys(EYES, (12, 4, 3, 64, 64)), "joints": (12, 15),
    }  # fmt: skip
    sim, model, found = env.task.sim, env.task.model, 0
    for name in EYES:
        camera = model.camera(name).id
        away = sim.mocap_pos[:, 0] - sim.field("cam_xpos")[:, camera]
        right, up, back = torch.einsum("ni,nij->jn", away, sim.field("cam_xmat")[:, camera])
        scale = 32 / np.tan(np.radians(45 / 2))  # pixels a metre at a distance of 1 m: fovy 45 degrees, 64 pixels
        column, row = 32 + scale * right / -back - 0.5, 32 - scale * up / -back - 0.5
        for world in range(12):
            red, green, blue = obs[name][world, -1].int()
            ball = torch.nonzero((red > 90) & (green < 60) & (blue < 60))
            near = ball[(ball - torch.stack([row[world], column[world]])).abs().amax(1) < 4]
            if len(near) >= 8:  # else the arm hides it
                found += 1
                middle = near.double().mean(0)
                assert torch.allclose(middle, torch.stack([row[world], column[world]]), atol=1.0)
    assert found >= 30, "of 36 images"


def test_the_policy_observes_no_goal_and_the_critic_the_state() -> None:
    plain: Any = make_vec("ReachVision", 2, env_options={"cameras": ["top"], "size": 32, "frames": 1})
    obs = plain.reset(0)
    assert set(obs) == {"top", "joints"} and obs["top"].shape == (2, 1, 3, 32, 32)
    moved = plain.task.sim.mocap_pos.clone()
    plain.task.sim.mocap_pos.copy_(moved + 0.1)
    plain.task.measure()
    assert torch.equal(plain.task.observe()["joints"].float(), obs["joints"]), "joints do not depend on the goal"
    assert set(make_vec("ReachVision", 1, env_options={"joints": False}).reset(0)) == set(EYES)

    options = {"cameras": ["top"], "size": 32, "frames": 2, "critic_state": True}
    state = make_vec("Reach", 2).reset(0)
    for algo in ("PPO", "SAC"):
        config = RunConfig(env="ReachVision", env_options=options, algo=algo, encoder="simple2dcnn", n_envs=2,
                           device="cpu", threads=1, overrides={"learning_starts": 4} if algo == "SAC" else
                           {"n_steps": 4, "batch_size": 8})  # fmt: skip
        env = make_vec("ReachVision", 2, env_options=options)
        assert torch.equal(env.reset(0)["critic_state"], state)
        trainer = make_trainer(config, env).learn(16)
        obs = env.reset(0)
        blind = {**obs, "critic_state": torch.full_like(state, torch.nan)}
        assert torch.equal(trainer.act(obs), trainer.act(blind)), "the actor ignores critic_state"
        for critic in [trainer.policy.vf_features_extractor] if algo == "PPO" else [trainer.critic.features_extractor]:
            assert critic({"critic_state": state}).shape == (2, trainer.policy.features_extractor.features_dim
                                                             if algo == "PPO" else 128 + 15)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [({"cameras": ["back"]}, "must be a list of some of view, front"), ({"cameras": []}, "must be a list"),
     ({"size": 4}, "from 8 to 512"), ({"size": 64.5}, "whole number"), ({"frames": 0}, "at least 1"),
     ({"camera": ["top"]}, r"camera=\['top'\] is not one of ReachVision's; did you mean cameras")],
)  # fmt: skip
def test_invalid_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_vec("ReachVision", 1, env_options=options)
