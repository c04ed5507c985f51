"""Tests of observation groups: delivered entries, frames, noise, snapshots, bad groups, Gymnasium envs, kit's tasks."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from kit.envs import TensorEnv, describe, make_task, make_vec
from kit.envs.obs import leaves, pick
from kit.envs.sb3 import TensorVecEnv
from kit.errors import UserError
from tests.envs.secret import Secret

SECRET = "tests.envs.secret:Secret"
pytestmark = pytest.mark.timeout(900)  # a first launch on a machine compiles kernels


def made(groups: list[str] | None = None, n: int = 2, **options: Any) -> Any:
    return make_vec(SECRET, n, env_options=options if groups is None else {**options, "obs_groups": groups})


def test_delivered_entries_and_rewards_by_hand() -> None:
    """By hand, with actions of 0.5. The secret of env i is i + 1 after `reset` and i + 2 in the next episode."""
    env = made()
    assert env.obs_groups == {"policy": ("seen",), "critic": ("seen", "hidden")}, "default groups: policy and critic"
    obs, half = env.reset(0), torch.full((2, 1), 0.5)
    assert obs["seen"].tolist() == [[0, 0], [0, 0]] and obs["hidden"].tolist() == [[1, 0, 1], [2, 0, 1]]
    obs, reward, *_ = env.step(half)
    assert obs["seen"].tolist() == [[1, 0.5], [1, 0.5]] and reward.tolist() == [0.5, 1.0]
    assert obs["hidden"].tolist() == [[1, 0.5, 1], [2, 1, 1]]
    for _ in range(3):
        obs, _, _, truncated, info = env.step(half)
    assert truncated.all() and info["final_obs"]["hidden"].tolist() == [[1, 0.5, 1], [2, 1, 1]]
    assert obs["hidden"].tolist() == [[2, 0, 1], [3, 0, 1]] and obs["seen"].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("groups", "entries", "who"),
    [([], None, {}), (["teacher"], {"seen", "hidden"}, {"policy": ("seen",), "teacher": ("hidden",)}),
     (["critic", "teacher"], {"seen", "hidden"},
      {"policy": ("seen",), "critic": ("seen", "hidden"), "teacher": ("hidden",)}),
     (["policy"], None, {})],
)  # fmt: skip
def test_entries_of_no_group_are_neither_computed_nor_delivered(groups: list[str], entries: Any, who: Any) -> None:
    env, known = made(groups), describe(SECRET, {"obs_groups": groups})
    obs = env.reset(0)
    assert env.observation_space == known.observation_space and env.obs_groups == known.obs_groups == who
    assert env.observation_space.contains({k: v[0].numpy() for k, v in obs.items()} if entries else obs[0].numpy())
    if entries is None:
        assert isinstance(obs, torch.Tensor) and obs.shape == (2, 2), "a single entry is delivered without a Dict"
        assert env.task.computed == 0 and env.task_info.sees[""] == env.task.task_info.sees["seen"]
    else:
        assert set(obs) == entries and env.task.computed


def test_frames_snapshots_and_noise_with_groups() -> None:
    env = made(["teacher"], eye=True)
    plain = made([], eye=True)
    assert env.frames == plain.frames == {"eye": 2} and set(plain.reset(0)) == {"eye", "seen"}
    obs, _ = env.reset(0), [env.step(torch.full((2, 1), 0.5)) for _ in range(2)]
    saved = env.snapshot()
    obs, *_ = env.step(torch.ones(2, 1))
    assert obs["eye"].shape == (2, 2, 3, 36, 36) and obs["eye"][0, :, 0, 0, 0].tolist() == [100, 150]
    env.step(torch.ones(2, 1))
    env.restore(saved)
    again, *_ = env.step(torch.ones(2, 1))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves("", obs), leaves("", again), strict=True))

    noisy, blind = made(["critic"], randomize=True), made([], randomize=True)
    obs, alone = noisy.reset(3), blind.reset(3)
    assert not torch.equal(obs["seen"], torch.zeros(2, 2)) and torch.equal(obs["seen"], alone)
    assert (obs["hidden"][:, 2] == 1).all(), "only the policy's entries have noise"


def test_nested_entries_are_delivered_whole() -> None:
    env = made(["teacher"], nested=True)
    obs = env.reset(0)
    assert set(obs["hidden"]) == {"secret", "rest"} and obs["hidden"]["rest"].shape == (2, 2)
    assert isinstance(pick(obs, env.obs_groups["policy"]), torch.Tensor)
    assert set(pick(obs, env.obs_groups["teacher"])) == {"hidden"}, "a nested Dict keeps its name"


def test_gymnasium_and_sb3_wrappers_return_all_delivered_entries() -> None:
    single = gymnasium.make("kit/Dishwashing-v0", obs_groups=["critic"], shift_s=2.0)
    check_env(single.unwrapped, skip_render_check=True)
    assert set(single.reset(seed=0)[0]) == {"state", "privileged"}
    view = TensorVecEnv(made(["critic"]))
    assert {name: value.shape for name, value in view.reset().items()} == {"seen": (2, 2), "hidden": (2, 3)}


class Wrong(Secret):
    def __init__(self, **groups: Any) -> None:
        super().__init__()
        self.obs_groups = groups


@pytest.mark.parametrize(
    ("option", "says"),
    [(["judge"], "'judge' is not one of env='tests.envs.secret:Secret''s groups; it has critic, teacher"),
     ("critic", "'critic' must be a list of some of critic, teacher"), (True, "must be a list"),
     ([3], "3 is not one of")],
)  # fmt: skip
def test_unknown_groups_are_refused(option: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        made(option)


def test_invalid_group_declarations_are_refused() -> None:
    with pytest.raises(UserError, match="env='Ant' has no group besides 'policy'"):
        make_vec("Ant", 1, env_options={"obs_groups": ["critic"]})
    with pytest.raises(UserError, match="'critic' names 'truth', which is not an entry of the observation; it has"):
        TensorEnv(Wrong(policy=("seen",), critic=("truth",)), 1)
    with pytest.raises(UserError, match="has no group 'policy'"):
        TensorEnv(Wrong(critic=("seen",)), 1)
    with pytest.raises(UserError, match="obs_groups 'critic' has no entries; name some, or leave the group out"):
        TensorEnv(Wrong(policy=("seen",), critic=()), 1)
    reach: Any = make_task("Reach")
    reach.obs_groups = {"policy": ("state",)}
    with pytest.raises(UserError, match="needs a Dict observation space"):
        TensorEnv(reach, 1)


class Told(gymnasium.Env):
    """Gymnasium env that declares groups in an attribute."""

    obs_groups = {"policy": ("seen",), "critic": ("seen", "truth")}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = spaces.Dict({"seen": spaces.Box(-1, 1, (2,)), "truth": spaces.Box(-1, 1, (1,))})
        self.action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_a_gymnasium_env_may_have_groups_too() -> None:
    name = f"{__name__}:Told"
    assert make_vec(name, 1).obs_groups == describe(name).obs_groups == Told.obs_groups


# -- kit's tasks ---------------------------------------------------------------------------------------------------

OFFERED: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "Go1Joystick": ({}, ("state",), ("state", "privileged"), ("state", "privileged")),
    "G1Joystick": ({}, ("state",), ("state", "privileged"), ("state", "privileged")),
    "Dishwashing": ({}, ("state",), ("state", "privileged"), ("state", "privileged")),
    "DishwashingVideo": ({"size": 32}, ("clip",), ("state", "privileged"), ("state",)),
    "ReachVision": ({"size": 32, "cameras": ["top"]}, ("top", "joints"), ("state",), ("state",)),
}


@pytest.mark.parametrize("name", OFFERED)
def test_kits_tasks_have_privileged_entries_for_critic_and_teacher(name: str) -> None:
    options, *offered = OFFERED[name]
    env: Any = make_vec(name, 2, seed=1, env_options={**options, "obs_groups": ["critic", "teacher"]})
    assert env.obs_groups == dict(zip(("policy", "critic", "teacher"), offered, strict=True))
    plain = make_vec(name, 2, seed=1, env_options=options)
    assert plain.obs_groups == {}
    assert plain.task_info.sees.keys() >= {"" if len(offered[0]) == 1 else "joints"} - {"clip"}
    for _ in range(30):
        action = 2 * torch.rand(2, *env.action_space.shape) - 1
        obs, least = env.step(action)[0], plain.step(action)[0]
    assert all(entry.isfinite().all() for _, entry in leaves("", obs))
    same = pick(obs, offered[0], bare=isinstance(least, torch.Tensor))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves("", same), leaves("", least), strict=True))
    for entry in {"state", "privileged"} & set(obs):
        widths = [part.width for part in env.task_info.sees[entry]]
        assert obs[entry].shape[1] == sum(widths) and all(part.what for part in env.task_info.sees[entry])


@pytest.mark.parametrize(("video", "numbers"), [("DishwashingVideo", "Dishwashing"), ("ReachVision", "Reach")])
def test_the_teacher_of_a_vision_task_observes_what_the_state_task_delivers(video: str, numbers: str) -> None:
    seer: Any = make_vec(video, 3, seed=2, env_options={"size": 32, "obs_groups": ["teacher"]})
    reader: Any = make_vec(numbers, 3, seed=2)
    for step in range(40):
        action = 2 * torch.rand(3, *reader.action_space.shape) - 1
        obs, *_ = seer.step(action)
        expected, *_ = reader.step(action)
        assert torch.equal(pick(obs, seer.obs_groups["teacher"]), expected), step


def test_joystick_privileged_entry_is_the_simulators_state() -> None:
    env: Any = make_vec("Go1Joystick", 3, seed=0, env_options={"obs_groups": ["critic"], "randomize": True})
    task, sim = env.task, env.task.sim
    known: dict[str, torch.Tensor] = {}
    pushed = False
    for _ in range(600):
        obs, *_ = env.step(torch.zeros(3, 12))
        rows = obs["privileged"].double().split([part.width for part in env.task_info.sees["privileged"]], 1)
        known = dict(zip([part.what.split(",")[0] for part in env.task_info.sees["privileged"]], rows, strict=True))
        push = known["velocity added by a push in this step"].norm(dim=1)
        pushed |= bool(((push > 0.0999) & (push < 1.0001)).any())
        assert ((push == 0) | ((push > 0.0999) & (push < 1.0001))).all(), "a push adds 0.1 to 1 m/s"
    assert pushed

    def close(what: str, expected: torch.Tensor) -> None:
        assert torch.allclose(known[what], expected.double(), atol=1e-5), what

    close("velocity ahead", task.sensor("linvel_b"))
    close("joint velocities", sim.qvel[:, 6:])
    close("height of the base", sim.site_xpos[:, task.model.site("base").id, 2:])
    close("forces of the actuators", sim.actuator_force / 20)
    close("feet on the ground", task.contact)
    friction, mass = sim.parameter("pair_friction"), sim.parameter("body_mass")
    close("friction of the feet on the ground", friction[:, :, :1].mean(1))
    close("mass", mass.sum(1, keepdim=True) / task.model.body_mass.sum())
    assert len(set(known["mass"].flatten().tolist())) == 3
    weight = (known["force between each foot and the ground"].view(3, 4, 3) * mass.sum(1).view(3, 1, 1) * 9.81).sum(1)
    assert torch.allclose(weight[:, 2], sum(task.sensor(f"foot{i}_contact")[:, 3] for i in range(4)), rtol=1e-4)
    assert not torch.allclose(obs["state"][:, :3].double(), known["velocity ahead"], atol=1e-4), "'state' has noise"


def test_dishwashing_privileged_entry_is_the_plates_state() -> None:
    env: Any = make_vec("Dishwashing", 4, seed=0, env_options={"obs_groups": ["critic"]})
    for _ in range(30):
        obs, *_ = env.step(env.scripted())
    known, plate = obs["privileged"].double(), env.task.plate
    assert torch.allclose(known[:, 0], plate[:, 7] / 50, atol=1e-5) and ((known[:, 0] >= 1) & (known[:, 0] <= 2)).all()
    assert torch.allclose(known[:, 2:4], plate[:, [6, 2]], atol=1e-6)
    assert torch.allclose(known[:, 5], plate[:, 5] / 0.12, atol=1e-5) and (known[:, 5] > 0).any()
    force = obs["state"][:, 64].double()  # contact force, divided by the limit of the weakest plate
    assert torch.allclose(known[:, 1] * known[:, 0], force, atol=1e-5)


def test_reach_vision_accepts_the_older_option_critic_state() -> None:
    options = {"cameras": ["top"], "size": 32, "critic_state": True}
    env = make_vec("ReachVision", 2, env_options=options)
    assert env.obs_groups == {"policy": ("top", "joints"), "critic": ("critic_state",)}
    assert torch.equal(env.reset(0)["critic_state"], make_vec("Reach", 2).reset(0))


def test_the_task_page_shows_delivered_entries() -> None:
    from kit.ui.task import task

    text = task(SECRET, {"obs_groups": ["teacher"]})._repr_html_()
    assert "hidden: the secret" in text and "seen: the latest action" in text
    assert "<b>1</b> the secret" not in task(SECRET, {"obs_groups": []})._repr_html_()
