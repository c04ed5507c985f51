"""Tests of `plan`: values chosen for "auto", batch sizes, SAC's update ratio, errors for invalid configs."""

from __future__ import annotations

import pytest

from kit.config import RunConfig
from kit.errors import UserError
from kit.machine import limits
from kit.measure.auto import resolve
from kit.trainers import planning
from kit.trainers.algorithm import with_n_envs
from kit.trainers.planning import plan


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)


@pytest.mark.parametrize(
    ("steps", "worlds"),
    [(1_000, 8), (81_919, 8), (81_920, 16), (100_000, 16), (163_840, 32), (10_000_000, 32)],
)
def test_auto_n_envs_doubles_up_to_the_limits_of_cores_and_rollouts(steps, worlds):
    """Reach's row has 8 envs of 256 steps.

    Twenty rollouts of 16 × 256 are 81,920 steps; two cores allow 32 envs.
    """
    resolved = resolve(RunConfig(env="Reach", total_steps=steps))
    assert resolved.n_envs == worlds and resolved.overrides["batch_size"] == 256
    assert resolved.threads == 2 and resolved.device == "cpu"


@pytest.mark.parametrize(("steps", "worlds"), [(100_000, 256), (1_000_000, 2048), (40_000_000, 2048)])
def test_auto_n_envs_of_a_task_without_physics_reaches_thousands(steps, worlds):
    """Mission's row has 16 envs of 16 steps.

    Two cores allow 2,048 envs; twenty rollouts of these are 655,360 steps.
    """
    resolved = resolve(RunConfig(env="Mission", total_steps=steps))
    assert resolved.n_envs == worlds and resolved.overrides["batch_size"] == 1024
    assert resolve(RunConfig(env="Mission", preset="fast")).n_envs == 16


@pytest.mark.parametrize(("env", "steps", "worlds"), [
    ("Ant", 100_000, 128), ("Ant", 10_000_000, 2048), ("Mission", 40_000_000, 2048),
])  # fmt: skip
def test_auto_n_envs_on_a_gpu_are_thousands_unless_the_run_is_short(env, steps, worlds, monkeypatch):
    """Twenty rollouts of 128 × 24 steps are 61,440 steps, of 256 × 24 more than 100,000."""
    monkeypatch.setattr(planning, "device_of", lambda config, images: "cuda")
    resolved = resolve(RunConfig(env=env, total_steps=steps))
    assert resolved.n_envs == worlds
    assert resolved.overrides["n_steps"] == (24 if env == "Ant" else 16)


@pytest.mark.parametrize(("env", "worlds", "rollout"), [("ReachVision", 256, 256 * 8), ("HalfCheetah-v5", 16, 16 * 64)])
def test_a_gpu_simulates_hundreds_of_envs_with_cameras_and_none_of_gymnasiums(env, worlds, rollout, monkeypatch):
    """Gymnasium's envs are stepped by the CPU, one after another, whatever device trains the policy."""
    monkeypatch.setattr(planning, "device_of", lambda config, images: "cuda")
    resolved = resolve(RunConfig(env=env, total_steps=300_000))
    assert (resolved.n_envs, resolved.n_envs * resolved.overrides["n_steps"]) == (worlds, rollout)


def test_a_replay_buffer_of_images_on_a_gpu_has_room_for_the_run_only(monkeypatch):
    config = RunConfig(env="ReachVision", algo="SAC", total_steps=300_000)
    assert "buffer_size" not in plan(config).config.overrides, "a CPU reserves no memory before it is written"
    monkeypatch.setattr(planning, "device_of", lambda config, images: "cuda")
    assert plan(config).config.overrides["buffer_size"] == 300_000
    assert plan(config.replace(total_steps=3_000_000)).config.overrides["buffer_size"] == 1_000_000, "SB3's default"
    assert plan(config.replace(overrides={"buffer_size": 5000})).config.overrides["buffer_size"] == 5000


def test_on_a_gpu_ant_has_a_row_of_its_own_and_mirrored_legs_keep_their_low_rate(monkeypatch):
    """With more than lin_0.0002 mirrored updates grew until the weights were NaN."""
    ant, legs = (resolve(RunConfig(env=env, device="cpu")).overrides for env in ("Ant", "G1Legs"))
    assert (ant["learning_rate"], legs["learning_rate"], legs["mirror"]) == ("lin_0.0003", "lin_0.0002", True)
    monkeypatch.setattr(planning, "device_of", lambda config, images: "cuda")
    ant, legs = (resolve(RunConfig(env=env, total_steps=10**7)).overrides for env in ("Ant", "G1Legs"))
    assert (ant["learning_rate"], ant["batch_size"]) == ("lin_0.001", 6144)
    assert (legs["learning_rate"], legs["batch_size"]) == ("lin_0.0002", 12_288)


def test_device_auto_is_a_gpu_for_legged_robots_and_images_and_the_cpu_for_ant(monkeypatch):
    monkeypatch.setattr(planning.settings, "gpu_works", lambda: True)
    found = {env: resolve(RunConfig(env=env)).device for env in ("Ant", "G1Legs", "Go1Joystick", "ReachVision")}
    assert found == {"Ant": "cpu", "G1Legs": "cpu", "Go1Joystick": "cuda", "ReachVision": "cuda"}


def test_resolved_values_are_summarised_in_a_sentence():
    asked = RunConfig(env="Reach", total_steps=100_000)
    assert plan(asked).sentence == (
        "auto chose 16 envs on 2 threads, 256 steps of each per iteration, minibatches of 256"
    )
    assert plan(asked.replace(preset="sb3")).sentence == ""


@pytest.mark.parametrize("env", ["G1Joystick", "Go1Joystick"])
def test_joystick_rows_differ_with_the_device(env, monkeypatch):
    asked = RunConfig(env=env, total_steps=10_000)
    cpu = resolve(asked.replace(device="cpu"))
    assert (cpu.n_envs, cpu.overrides["n_steps"], cpu.overrides["batch_size"]) == (32, 128, 1024)
    monkeypatch.setattr(planning, "device_of", lambda config, images: "cuda")
    card = resolve(asked.replace(n_envs=4096))
    assert (card.overrides["n_steps"], card.overrides["batch_size"]) == (24, 12_288)  # rollout: 4096 × 24 = 98,304
    assert card.overrides["policy_kwargs"] == {
        "net_arch": [512, 256, 128], "activation_fn": "elu", "log_std_init": -1.0,
    }  # fmt: skip
    shrunk = with_n_envs(card.replace(n_envs=1000, overrides={**card.overrides, "batch_size": 12_000}), 500)
    assert (shrunk.n_envs, shrunk.overrides["batch_size"]) == (500, 12_000)
    assert with_n_envs(shrunk, 250).overrides["batch_size"] == 6000  # the whole rollout, 250 × 24


@pytest.mark.parametrize("preset", ["auto", "fast", "heavy", "beast"])
def test_sac_makes_as_many_gradient_steps_for_each_env_step_as_sb3(preset):
    hyper = resolve(RunConfig(env="Ant", algo="SAC", preset=preset)).overrides
    assert hyper["gradient_steps"] == -1 and hyper.get("train_freq", 1) == 1, "-1: as many gradient steps as env steps"
    stock = resolve(RunConfig(env="Ant", algo="SAC", preset="sb3"))
    assert stock.n_envs == 1 and stock.overrides.get("gradient_steps", 1) == 1


def test_a_rows_update_ratio_holds_for_any_number_of_envs():
    hyper = {n: resolve(RunConfig(algo="SAC", n_envs=n)).overrides["gradient_steps"] for n in (4, 8, 16)}
    assert hyper == {4: 1, 8: 2, 16: 4}
    assert resolve(RunConfig(algo="SAC", n_envs=16, overrides={"gradient_steps": 3})).overrides["gradient_steps"] == 3


def test_requested_policy_kwargs_are_merged_with_the_row():
    asked = RunConfig(env="Go1Joystick", overrides={"policy_kwargs": {"activation_fn": "elu"}})
    kwargs = resolve(asked).overrides["policy_kwargs"]
    assert kwargs == {"net_arch": [128, 128], "log_std_init": -1.0, "activation_fn": "elu"}


def test_a_batch_that_does_not_divide_is_refused_with_one_that_does():
    asked = RunConfig(env="Reach", n_envs=8, overrides={"batch_size": 300})
    with pytest.raises(UserError, match=r"batch_size=300 does not divide n_envs × n_steps = 8 × 256 = 2048; .* is 256"):
        resolve(asked)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"env": "CartPole-v1", "algo": "SAC"}, "algo='SAC' supports Box actions, and env='CartPole-v1' has Discrete"),
        ({"env": "FrozenLake-v1", "encoder": "nature_cnn"}, "encoder='nature_cnn' needs images"),
        ({"env": "Reach", "env_options": {"size": 3}}, "env_options size=3 is not one of Reach's"),
        ({"env": "nowhere:Corridor"}, "there is no module 'nowhere' on the path"),
        ({"env": "gymnasium:NoSuchEnv-v0"}, "env='gymnasium:NoSuchEnv-v0' is unknown"),
        ({"algo": "nowhere:Toy"}, "algo='nowhere:Toy' cannot be loaded"),
        ({"overrides": {"n_steps": 0}}, "n_steps=0 must be a whole number of at least 1"),
    ],
)
def test_invalid_configs_are_refused_in_one_sentence(fields, says):
    with pytest.raises(UserError, match=says) as error:
        resolve(RunConfig(**fields))
    assert "\n" not in str(error.value)


def test_settings_of_the_network_may_stand_at_the_top_level_as_panels_and_searches_name_them():
    given = {"net_arch": [24], "policy_kwargs": {"log_std_init": -2.0}, "gamma": 0.9}
    overrides = plan(RunConfig(env="Reach", overrides=given)).config.overrides
    assert overrides["policy_kwargs"] == {"net_arch": [24], "log_std_init": -2.0}
    assert "net_arch" not in overrides and overrides["gamma"] == 0.9
    with pytest.raises(UserError, match="net_arch='wide' is not a network"):
        plan(RunConfig(env="Reach", overrides={"net_arch": "wide"}))
