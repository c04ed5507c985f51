"""Tests of training a pretrained policy further: critic warm-up of PPO and SAC, normalisation, `policy_of`."""

import shutil

import pytest
import torch

import kit
from kit.config import RunConfig
from kit.encoders.asymmetric import CRITICS
from kit.errors import UserError
from kit.runs.teacher import ScriptedTeacher
from kit.trainers import make_trainer
from kit.trainers.planning import plan
from tests.envs.chase import Chase

CHASE, STATE = "tests.envs.chase:Chase", "tests.envs.chase:ChaseState"
PPO = {"n_steps": 16, "batch_size": 32, "n_epochs": 2}


class Watched(Chase):
    """Chase with an observation group for the critic: the state vector."""

    obs_groups = Chase.obs_groups | {"critic": ("state",)}


class Seen(Chase):
    """Chase with an observation group for the critic: the image and the state vector."""

    obs_groups = Chase.obs_groups | {"critic": ("eye", "state")}


WATCHED, SEEN = f"{__name__}:Watched", f"{__name__}:Seen"


def made(env, algo, groups=(), **overrides):
    options = {"obs_groups": list(groups)} if groups else {}
    teacher = "scripted" if algo == "Distill" else None
    overrides = {"policy_kwargs": {"net_arch": [16], "log_std_init": -1.0}} | overrides
    fields = {"n_envs": 4, "threads": 1, "env_options": options, "teacher": teacher, "overrides": overrides}
    config = plan(RunConfig(env=env, algo=algo, encoder="auto" if env == STATE else "clip_cnn", **fields)).config
    return make_trainer(config, kit.make_vec(config.env, 4, "cpu", 0, 1, config.env_options))


@pytest.fixture(scope="module")
def student():
    trainer = made(CHASE, "Distill", n_steps=4, batch_size=32, gradient_steps=4)
    trainer.set_teacher(ScriptedTeacher(trainer.tensor_env))
    trainer.learn(320)
    trainer.policy.log_std.data.fill_(0.5)
    return trainer


def actor_weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.policy.named_parameters() if not n.startswith(CRITICS)}


@pytest.mark.parametrize(("env", "groups"), [(CHASE, ()), (WATCHED, ("critic",))])
def test_the_actor_does_not_change_during_critic_warmup(student, env, groups):
    """The actor stays unchanged for two iterations of 64 steps, then learns; an asymmetric critic starts untrained."""
    trainer = made(env, "PPO", groups, critic_warmup=128, **PPO)
    trainer.warm_start(student.state())
    obs = student.tensor_env.reset(seed=3)
    mine = {"eye": obs["eye"], "state": obs["state"]} if groups else obs["eye"]
    assert torch.allclose(trainer.act(mine), student.act(obs), atol=1e-6)
    before, critic = actor_weights(trainer), trainer.policy.value_net.weight.detach().clone()
    assert before["log_std"].item() == -1.0
    trainer.learn(128)
    assert all(torch.equal(p, before[n]) for n, p in actor_weights(trainer).items())
    assert not torch.equal(trainer.policy.value_net.weight, critic)
    trainer.learn(192)
    after = actor_weights(trainer)
    assert not torch.equal(after["action_net.weight"], before["action_net.weight"])
    assert (after["action_net.weight"] - before["action_net.weight"]).abs().max() < 5 * 4 * 3e-4  # 4 steps of lr 3e-4


def test_without_warm_up_the_policy_has_to_fit(student):
    trainer = made(WATCHED, "PPO", ("critic",), **PPO)
    with pytest.raises(UserError, match="does not fit"):
        trainer.warm_start(student.state())


def test_without_update_obs_the_pretrained_statistics_stay():
    """With update_obs=False the mean of observations stays that of the pretrained policy."""
    first = made(STATE, "PPO", normalize=True, **PPO)
    second = made(STATE, "PPO", normalize={"update_obs": False}, critic_warmup=64, **PPO)
    first.learn(128)
    second.warm_start(first.state())
    before = first.normalizer.obs_moments["obs"].mean.clone()
    second.learn(128)
    assert torch.equal(second.normalizer.obs_moments["obs"].mean, before)
    first.learn(192)
    assert not torch.equal(first.normalizer.obs_moments["obs"].mean, before)


def test_only_one_of_the_two_runs_may_normalise_returns(student):
    trainer = made(CHASE, "PPO", critic_warmup=64, normalize={"norm_obs": False}, **PPO)
    trainer.warm_start(student.state())
    assert trainer.normalizer.return_moments.count < 1


def test_sac_trains_an_imitated_policy_further():
    """During critic warm-up the deterministic actions stay the student's, and exploration adds small noise only."""
    student = made(STATE, "Distill", policy_of="SAC", n_steps=4, batch_size=32, gradient_steps=4)
    student.set_teacher(ScriptedTeacher(student.tensor_env))
    student.learn(320)
    trainer = made(STATE, "SAC", critic_warmup=100, learning_starts=20, batch_size=32)
    trainer.warm_start({**student.state(), "optimizer": {}})
    obs = kit.make_vec(STATE, 4, "cpu", 9, 1).reset(seed=9)
    action = student.act(obs)
    assert torch.equal(trainer.act(obs), action)
    with torch.no_grad():
        assert (trainer.explore(obs) - trainer.as_actor().scale(action)).abs().max() < 4 * 0.37  # 4 σ, σ = exp(-1)
    critic = trainer.critic.qf0[0].weight.detach().clone()
    trainer.learn(100)
    assert torch.equal(trainer.act(obs), action)
    assert not torch.equal(trainer.critic.qf0[0].weight, critic)
    trainer.learn(120)
    assert not torch.equal(trainer.act(obs), action)


def test_imitation_loss_for_policy_of_sac():
    """Labels of ±2 are scaled to ±1 for SAC's policy; smooth L1 is |x| - 0.05 above 0.1."""
    trainer = made(STATE, "Distill", policy_of="SAC", n_steps=4, batch_size=32)
    obs = torch.zeros(8, 2)
    labels = trainer.act(obs).detach() + 0.6
    assert trainer.loss(trainer.features(obs), labels).item() == pytest.approx(0.3 - 0.05, abs=1e-5)
    with pytest.raises(UserError, match="policy_of='A2C' is unknown"):
        made(STATE, "Distill", policy_of="A2C")
    with pytest.raises(UserError, match="cannot be saved as a zip of PPO"):
        trainer.save("model.zip")


@pytest.mark.parametrize(("env", "groups"), [(CHASE, ()), (WATCHED, ("critic",))])
def test_with_freeze_encoder_the_layers_after_it_learn_as_without(student, env, groups):
    """After one update of one minibatch the encoder is the student's; all other weights are as without the option."""
    once = {"critic_warmup": 1, "n_steps": 16, "batch_size": 64, "n_epochs": 1, "max_grad_norm": 1e9}
    plain, frozen = (made(env, "PPO", groups, **once, freeze_encoder=freeze) for freeze in (False, True))
    for trainer in (plain, frozen):
        trainer.warm_start(student.state())
        torch.manual_seed(1)
        trainer.learn(64)
    learnt, expected = frozen.policy.state_dict(), plain.policy.state_dict()
    for name, value in student.policy.state_dict().items():
        if name.startswith("features_extractor."):
            mine = next(n for n in learnt if n.split(".")[-3:] == name.split(".")[-3:] and n.startswith("features_"))
            assert torch.equal(learnt[mine], value), name
            assert not torch.equal(expected[mine], value), name
    heads = [name for name in expected if not name.startswith(("features_", "pi_features_", "vf_features_"))]
    assert heads
    for name in heads:
        torch.testing.assert_close(learnt[name], expected[name], rtol=0, atol=2e-6, msg=name)


def test_a_run_with_a_frozen_encoder_resumes_exactly_and_stores_it_once(tmp_path):
    """Uncut and resumed runs end with equal weights; the encoder is one file, and the student's run is not needed."""
    fields = {"encoder": "clip_cnn", "n_envs": 4, "threads": 1, "eval_every": 0, "runs_dir": str(tmp_path)}
    taught = {"n_steps": 4, "batch_size": 32, "gradient_steps": 4, "policy_kwargs": {"net_arch": [16]}}
    student = kit.train(env=CHASE, algo="Distill", teacher="scripted", total_steps=64, overrides=taught, **fields)
    overrides = PPO | {"critic_warmup": 64, "freeze_encoder": True, "policy_kwargs": {"net_arch": [16]}}
    more = fields | {"algo": "PPO", "overrides": overrides, "checkpoint_every": 64, "teacher": None}
    uncut = kit.train(start_from=f"{student.path}@latest", total_steps=192, run_name="uncut", **more)
    cut = kit.train(start_from=f"{student.path}@latest", total_steps=128, run_name="cut", **more)
    shutil.rmtree(student.path)
    kit.resume(cut.path, total_steps=192)
    weights = [run.policy("latest").policy.state_dict() for run in (uncut, cut)]
    assert weights[0] and all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert len(list((uncut.path / "frozen").iterdir())) == 1


def test_a_frozen_encoder_needs_images_and_a_critic_without_them():
    with pytest.raises(UserError, match="freeze_encoder=true needs one of kit's image encoders"):
        made(STATE, "PPO", freeze_encoder=True, **PPO)
    with pytest.raises(UserError, match="the critic's observation group has some"):
        made(SEEN, "PPO", ("critic",), freeze_encoder=True, **PPO)
