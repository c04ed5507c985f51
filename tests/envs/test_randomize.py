"""Tests of domain randomisation: masses by hand, intervals, delays, noise, snapshots, bad options."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from gymnasium import spaces

import kit
from kit.envs import Task, make_vec
from kit.envs.curriculum import Curriculum
from kit.envs.randomize import ActionDelay, ModelTerm, ObservationNoise, Term
from kit.errors import UserError
from kit.sim.warp import WarpSim
from tests.envs.slide import Slide

PUSH = torch.ones(3, 1)


class Varied(Slide):
    random_terms = MappingProxyType({
        "mass": ModelTerm(("body_mass",), low=1.0, high=4.0, log=True),
        "loss": ModelTerm(("dof_frictionloss",), low=0.5, high=2.0),
        "drag": ModelTerm(("dof_damping",), low=0.1, high=0.2, how="set", every_s=2.0),
        "delay": ActionDelay(low=1, high=1),
        "line": ActionDelay(low=1, high=1),
        "noise": ObservationNoise(low=-0.5, high=0.5),
    })  # fmt: skip


ENV = f"{__name__}:Varied"


def made(seed: int = 0, **randomize: Any) -> Any:
    return make_vec(ENV, 3, seed=seed, env_options={"randomize": randomize})


@pytest.fixture(params=["C", "Warp"])
def simulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Warp":
        monkeypatch.setattr("kit.envs.task.make_sim", lambda model, n, *_: WarpSim(model, n, "cpu"))


def test_each_env_has_its_own_mass(simulator: None) -> None:
    """1 N for 1 s gives a mass of m kg a speed of 1/m m/s, and moves it by 1/m m (semi-implicit Euler)."""
    env = made(mass=True)
    mass = env.task.sim.parameter("body_mass")[:, 1].clone()
    assert len(mass.unique()) == 3 and (mass >= 1).all() and (mass <= 4).all()
    torch.testing.assert_close(env.step(PUSH)[0], (1 / mass).repeat(2, 1).T.float(), rtol=1e-5, atol=1e-5)
    env.step(PUSH), env.step(PUSH), env.step(PUSH)  # an episode has four steps
    assert not torch.isclose(env.task.sim.parameter("body_mass")[:, 1], mass).any(), "every episode draws a new mass"
    still = made(mass=[2, 2])
    assert still.step(PUSH)[0][:, 1].tolist() == pytest.approx([0.5] * 3)


def test_intervals_delay_and_noise() -> None:
    env = made(drag=True)
    drag = [env.task.sim.parameter("dof_damping")[:, 0].clone()]
    for _ in range(3):
        env.step(PUSH)
        drag.append(env.task.sim.parameter("dof_damping")[:, 0].clone())
    same = [bool(torch.equal(a, b)) for a, b in pairwise(drag)]
    assert same == [True, False, True], "drawn every 2 s; a step takes 1 s"

    late = made(delay=True)
    assert late.step(PUSH)[0].tolist() == [[0, 0]] * 3, "the first action has not arrived yet"
    assert late.step(0 * PUSH)[0].tolist() == [[1, 1]] * 3
    later = made(delay=True, line=True)
    later.step(PUSH)
    assert later.step(0 * PUSH)[0].tolist() == [[0, 0]] * 3, "two delays of one step add up"
    assert later.step(0 * PUSH)[0].tolist() == [[1, 1]] * 3
    noisy = made(noise=True)
    seen = torch.stack([noisy.step(0 * PUSH)[0] for _ in range(3)])
    assert len(seen.unique()) == seen.numel() and seen.abs().max() <= 0.5


def test_snapshots_contain_the_drawn_values(simulator: None) -> None:
    env, other = (make_vec("Ant", 3, seed=seed, env_options={"randomize": True}) for seed in (1, 2))
    actions = torch.rand(12, 3, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in actions[:6]:
        env.step(action)
    other.restore(env.snapshot())
    for action in actions[6:]:
        one, two = env.step(action), other.step(action)
        assert all(torch.equal(a, b) for a, b in zip(one[:4], two[:4], strict=True))


def test_noise_reaches_the_first_observation_of_single_envs_with_cameras() -> None:
    """Env 0 ends alone; its first joint velocity would be 0 without noise."""
    options = {"randomize": {"noise": True}, "size": 16, "cameras": ["front"], "frames": 2}
    env = make_vec("ReachVision", 3, threads=1, env_options=options)
    env.start_training(0)
    short = env.snapshot()
    short["length"][0] = env.episode_steps - 1
    env.restore(short)
    obs, _, _, truncated, _ = env.step(torch.zeros(3, 7))
    assert truncated.tolist() == [True, False, False]
    velocity = obs["joints"][0, 7:14]
    assert ((velocity != 0) & (velocity.abs() <= 0.01)).all()


def test_nothing_is_randomised_by_default() -> None:
    plain, off = make_vec("Ant", 2, seed=3), make_vec("Ant", 2, seed=3, env_options={"randomize": False})
    for _ in range(3):
        assert torch.equal(plain.step(torch.ones(2, 8))[0], off.step(torch.ones(2, 8))[0])
    assert plain.snapshot().keys() == off.snapshot().keys()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["mas"], r"randomize 'mas' is not one of env='.*Varied.'s terms; it has mass, loss, drag, delay, line, noise"),
        ({"mass": [0, 2]}, r"randomize mass=\[0, 2\] is not a range; write \[low, high\], such as \[1, 4\]"),
        ({"loss": [0, 2]}, r"loss=\[0, 2\] multiplies .* must be above 0; write \[low, high\], such as \[0.5, 2\]"),
        ({"loss": [-1, -0.5]}, r"loss=\[-1, -0.5\] multiplies the model's values by numbers that must be above 0"),
        ({"delay": [0, 1.5]}, r"randomize delay=\[0, 1.5\] must be whole numbers of steps"),
        ([["mass", [1, 2]]], r"is not true, false, a list of names or a mapping"),
        ("mass", r"randomize='mass' is not true, false, a list of names or a mapping"),
    ],
)
def test_invalid_randomize_options_are_refused(option: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        kit.resolve(kit.RunConfig(env=ENV, env_options={"randomize": option}))


def test_an_older_run_with_a_negative_scale_is_resumed(tmp_path: Path) -> None:
    """New runs are refused."""
    run = kit.train(
        env=ENV, env_options={"randomize": {"loss": [1.0, 1.5]}}, n_envs=2, total_steps=16, device="cpu", threads=1,
        eval_every=0, overrides={"n_steps": 4, "batch_size": 8}, runs_dir=str(tmp_path),
    )  # fmt: skip
    file = run.path / "config.yaml"
    file.write_text(file.read_text().replace("1.0", "-1.0"))
    assert kit.resume(run.path, total_steps=32, device="cpu").status()["step"] == 32
    with pytest.raises(UserError, match="above 0"):
        kit.branch(run)
    assert len(list(tmp_path.iterdir())) == 1


class Switch(Task):
    """Delays a Discrete action; the observation is the action that arrived last."""

    episode_steps, control_dt_s = 3, 1.0
    observation_space, action_space = spaces.Box(0, 2, (1,)), spaces.Discrete(3)
    random_terms: Mapping[str, Term] = MappingProxyType({"delay": ActionDelay(low=1, high=1)})

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.last = torch.zeros(self.n, 1)

    def advance(self, action: torch.Tensor) -> None:
        self.last = action.float().unsqueeze(1)

    def observe(self) -> torch.Tensor:
        return self.last

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self.last[:, 0]

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=torch.bool)


class Late(Switch):
    random_terms = MappingProxyType({"late": ActionDelay(low=1, high=1)})


class Hiss(Switch):
    random_terms = MappingProxyType({"hiss": ObservationNoise(low=-1, high=1, every_s=2.0)})


def test_discrete_actions_are_delayed_too() -> None:
    env = make_vec(f"{__name__}:Switch", 2, env_options={"randomize": True})
    rewards = [env.step(torch.tensor([1, 2]))[1].tolist() for _ in range(4)]
    assert rewards == [[0, 0], [1, 2], [1, 2], [0, 0]], "each episode of three steps starts without an action"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("Late", "random_terms 'late' is a name that snapshots use; rename the term"),
        ("Hiss", "random_terms 'hiss' has every_s=2.0, but observation noise is drawn at every step; leave every"),
    ],
)
def test_terms_that_do_not_work_are_refused(task: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_vec(f"{__name__}:{task}", 2, env_options={"randomize": True})


class Taught(Varied):
    """With three stages of its own."""

    curriculum = Curriculum(stages=3, at_least=0.5, episodes=10)


def test_randomisation_begins_with_the_last_stage_and_the_next_episode(simulator: None) -> None:
    """Before that a mass of 1 kg starts with 1 m/s, no delay and no noise. Delayed by a step, it starts with 0."""
    terms = {"mass": [2, 2], "delay": True, "noise": [0.25, 0.25]}
    env, other = (make_vec(f"{__name__}:Taught", 3, seed=s, env_options={"randomize": terms}) for s in (0, 1))
    env.start_training(seed=0)
    assert env.step(PUSH)[0].tolist() == [[1, 1]] * 3
    env.stage.fill_(3)  # the task's last stage is 2, and then randomisation begins
    assert env.step(PUSH)[0].tolist() == [[3, 2]] * 3, "the episode goes on as it began"
    env.step(PUSH)  # at 6 m the first episode ends
    other.start_training(seed=1)
    other.restore(env.snapshot())
    for last in (env, other):
        assert last.step(PUSH)[0].tolist() == [[0.25, 0.25]] * 3, "nothing but noise, as the first action is late"
        assert last.step(PUSH)[0].tolist() == [[0.75, 0.75]] * 3, "1 N moves 2 kg"
    judged = make_vec(f"{__name__}:Taught", 3, env_options={"randomize": terms})
    assert judged.step(PUSH)[0].tolist() == [[0.25, 0.25]] * 3, "evaluations are randomised"
