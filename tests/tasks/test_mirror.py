"""Tests of mirror images: a mirrored robot that acts by the mirror image moves and is paid as the image."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kit
from kit.config import default_name
from kit.envs import make_task
from kit.errors import UserError
from kit.trainers.build import make_trainer
from kit.trainers.planning import plan
from tests.tasks.robots import HOME, dog


def mirrored_world(env) -> None:
    """Replace the state of env 1 by the mirror image of env 0's: reflect y in the world, swap left and right."""
    task, sim = env.task, env.task.sim
    joints = env.mirror.action
    qpos, qvel = sim.qpos[0].clone(), sim.qvel[0].clone()
    qpos[1], qpos[4], qpos[6] = -qpos[1], -qpos[4], -qpos[6]  # y; a rotation about x or z turns the other way
    qpos[7:] = joints(qpos[7:].float())
    qvel[1], qvel[3], qvel[5] = -qvel[1], -qvel[3], -qvel[5]
    qvel[6:] = joints(qvel[6:].float())
    sim.reset(torch.tensor([False, True]), qpos=torch.stack([sim.qpos[0], qpos]), qvel=torch.stack([sim.qvel[0], qvel]),
              ctrl=torch.stack([sim.qpos[0, 7:], qpos[7:]]))  # fmt: skip
    memory = task._memory
    for name in ("noise", "air_time", "peak", "last_contact", "errors"):
        memory[name][:] = 0.0
    for name in ("action", "previous_action"):
        memory[name][1] = joints(memory[name][0])
    memory["command"][:] = torch.tensor([[0.5, 0.2, 0.3], [0.5, -0.2, -0.3]])
    memory["command_left"][:] = memory["push_left"][:] = 100.0
    memory["phase_rate"][1] = memory["phase_rate"][0]
    memory["phase"][1] = memory["phase"][0].roll(len(memory["phase"][0]) // 2)


def apart(name: str, options: dict[str, Any], steps: int) -> float:
    """Return the greatest difference between a robot and the image of its mirrored twin, relative to the values' size.

    Values are observations and rewards over `steps` random steps.
    """
    env = kit.make_vec(name, 2, seed=3, threads=1, env_options={"obs_groups": ["critic"], **options})
    env.task._least_noise.zero_()
    env.task._noise_width.zero_()
    env.reset(seed=3)
    mirrored_world(env)
    generator, most, own = torch.Generator().manual_seed(0), 0.0, 0.0
    for _ in range(steps):
        action = (torch.rand(env.action_space.shape[0], generator=generator) - 0.5) * 0.6
        obs, reward, terminated, _, _ = env.step(torch.stack([action, env.mirror.action(action)]))
        assert not terminated.any()
        for entry, flip in env.mirror.obs.items():
            most = max(most, float((flip(obs[entry][0]) - obs[entry][1]).abs().max()))
            own = max(own, float((obs[entry][0] - obs[entry][1]).abs().max()))
        most = max(most, float((reward[0] - reward[1]).abs()))
    return most / own


def test_the_mirrored_robot_moves_as_the_mirror_image(tmp_path):
    """A dog made symmetric to the last digit. Rounding grows slowly, as feet touch the ground."""
    assert apart(f"joystick:{dog(tmp_path / 'dog.xml')}", {"home": HOME}, 25) < 1e-3


@pytest.mark.parametrize("name", ["Go1Joystick", "G1Joystick", "G1Legs"])
def test_real_robots_are_symmetric_but_for_a_few_per_cent(name):
    """Their masses are not quite symmetric. A wrong sign would be off by 1."""
    try:
        assert apart(name, {}, 3) < 0.1
    except UserError as error:
        pytest.skip(f"no model of the robot: {error}")


def test_a_robot_without_left_and_right_has_no_mirror_image(tmp_path):
    three = dog(tmp_path / "three.xml", names=("fl", "fr", "rl"))
    task = make_task(f"joystick:{three}", home={name: angle for name, angle in HOME.items() if name[:2] != "rr"})
    assert task.mirror is None
    with pytest.raises(UserError, match=r"mirror=true: env='joystick:.*' has no left and right"):
        kit.train(env=f"joystick:{three}", env_options={"home": {k: v for k, v in HOME.items() if k[:2] != "rr"}},
                  overrides={"mirror": True}, runs_dir=str(tmp_path / "runs"))  # fmt: skip
    assert not (tmp_path / "runs").exists()


def test_ppo_learns_from_every_transition_and_its_image(tmp_path):
    robot = dog(tmp_path / "dog.xml")
    fields = {
        "env": f"joystick:{robot}", "env_options": {"home": HOME}, "n_envs": 4, "eval_every": 0, "total_steps": 128,
        "overrides": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "mirror": True, "normalize": True},
    }  # fmt: skip
    env = kit.make_vec(fields["env"], 4, seed=0, threads=1, env_options=fields["env_options"])
    trainer = make_trainer(plan(kit.RunConfig(device="cpu", **fields)).config, env)
    trainer.learn(128)
    rows = trainer.rollout_buffer.batch()
    both = trainer._samples()
    assert len(both) == 2 * len(rows) and torch.equal(both.obs[:64], rows.obs)
    seen, image = (trainer.normalizer.unscaled(obs) for obs in (rows.obs, both.obs[64:]))
    assert torch.allclose(image, env.mirror.obs[""](seen), atol=1e-4)
    assert torch.equal(both.actions[64:], env.mirror.action(rows.actions))
    assert torch.equal(both.advantages[64:], rows.advantages)


def test_a_run_is_named_after_the_file_of_its_robot(tmp_path):
    config = kit.RunConfig(env=f"joystick:{tmp_path / 'my dog.xml'}")
    assert default_name(config).startswith("joystick-my-dog-ppo-s0-")
