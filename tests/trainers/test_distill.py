"""Tests of `Distill`: the loss by hand, the teacher's share of envs, stored labels, learning from images."""

import pytest
import torch

import kit
from kit.config import RunConfig
from kit.errors import UserError
from kit.runs.teacher import ScriptedTeacher
from kit.trainers import make_trainer
from kit.trainers.planning import plan
from kit.trainers.replay import Transitions

CHASE = "tests.envs.chase:Chase"
SMALL = {"n_steps": 4, "batch_size": 32, "gradient_steps": 4, "policy_kwargs": {"net_arch": [32]}}


def made(env=CHASE, n_envs=8, **overrides):
    fields = {"env": env, "n_envs": n_envs, "threads": 1, "overrides": SMALL | overrides}
    config = plan(RunConfig(algo="Distill", teacher="scripted", **fields)).config
    trainer = make_trainer(config, kit.make_vec(config.env, n_envs, "cpu", 0, 1, config.env_options))
    trainer.set_teacher(ScriptedTeacher(trainer.tensor_env))
    return trainer


def test_loss_is_smooth_l1_in_half_ranges_of_the_action():
    """Actions range from -2 to 2, so errors of 1 and 4 are 0.5 and 2 half ranges."""
    trainer = made()
    obs = trainer.as_actor().preprocess(trainer._last_obs)
    with torch.no_grad():
        mean = trainer.policy.get_distribution(obs).mode()
    labels = mean + torch.tensor([1.0, 4.0] * 4).unsqueeze(1)
    loss = trainer.loss(trainer.features(obs), labels)
    assert loss.item() == pytest.approx(((0.5 - 0.05) + (2 - 0.05)) / 2)  # |x| - β/2 above β = 0.1


def test_teacher_acts_first_and_the_student_last():
    trainer = made(teacher_until=0.5, teacher_noise=0.0)
    label = torch.full((8, 1), 1.5)
    student = trainer.act(trainer._last_obs)
    for progress, teachers in ((0.0, 8), (0.25, 4), (0.5, 0), (1.0, 0)):
        trainer._current_progress_remaining = 1 - progress
        action = trainer._mixed(label, trainer._last_obs)
        assert torch.equal(action[:teachers], label[:teachers])
        assert torch.allclose(action[teachers:], student[teachers:])


def test_labels_are_the_teachers_and_images_are_stored_once():
    """Stored actions are the scripted teacher's for the stored state, also in envs where the student acted."""
    trainer = made(teacher_until=0.5)
    trainer.learn(320)
    batch = trainer.replay_buffer.sample(200, with_next=False)
    place, mark = batch.obs["state"].unbind(1)
    assert torch.allclose(batch.actions[:, 0], (10 * (mark - place)).clamp(-2, 2), atol=1e-5)
    assert batch.obs["eye"].shape == (200, 2, 1, 36, 36)
    assert trainer.replay_buffer._images["eye"].ring.shape[1:] == (8, 36, 36, 1)


def test_a_student_learns_from_images():
    """Random actions end within 0.1 of the mark in a tenth of the episodes."""
    trainer = made(n_steps=8, gradient_steps=8)
    trainer.learn(6_000)
    env = kit.make_vec(CHASE, 64, "cpu", 5, 1)
    obs = env.reset(seed=5)
    for _ in range(20):
        obs, _, _, _, info = env.step(trainer.act(obs))
    assert info["success"].float().mean() > 0.8


def test_state_prediction_is_a_second_loss_with_a_head_outside_the_policy():
    trainer, plain = made(state_coef=0.5), made()
    assert trainer.policy.state_dict().keys() == plain.policy.state_dict().keys()
    obs = trainer.as_actor().preprocess(trainer._last_obs)
    features = trainer.policy.extract_features(obs, trainer.policy.pi_features_extractor)
    predicted = trainer._state_head(features)
    batch = Transitions(trainer._last_obs, torch.zeros(8, 1), torch.zeros(8), {}, torch.zeros(8))
    _, loss = trainer.gradient_step(obs, batch)
    assert loss.item() == pytest.approx((predicted - trainer._last_obs["state"]).square().mean().item(), rel=1e-5)
    trainer.learn(640)
    assert trainer._head_optimizer.state_dict()["state"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"teacher": None}, "algo='Distill' needs a teacher"),
        ({"algo": "PPO"}, "teacher='scripted' has no effect with algo='PPO'"),
        ({"overrides": {"gae_lambda": 0.9}}, "gae_lambda=0.9 is not one of Distill's"),
        (
            {"overrides": {"state_coef": 1.0, "policy_kwargs": {"features_extractor_kwargs": {"frozen": True}}}},
            "state_coef=1.0 needs the teacher's observations, and with a frozen encoder only its features",
        ),
        ({"overrides": {"teacher_until": 2.0}}, "teacher_until=2.0 is out of range"),
    ],
)
def test_invalid_settings_are_refused(fields, sentence, tmp_path):
    config = {"env": CHASE, "algo": "Distill", "teacher": "scripted", "runs_dir": str(tmp_path)} | fields
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        kit.train(RunConfig(**config), total_steps=64)
    assert not list(tmp_path.glob("*/config.yaml"))
