"""Tests of asymmetric actor-critic: observation groups of actor and critic, training, exact resume, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from safetensors.torch import load_file
from test_trainer_resume import equal

import kit
from kit import RunConfig
from kit.encoders import choose
from kit.encoders.asymmetric import OffPolicyGroups
from kit.envs import describe, make_vec
from kit.envs.obs import tree_map
from kit.errors import UserError
from kit.trainers import Interrupted, make_trainer
from kit.trainers.ppo import PPO
from tests.runs.crash import create

pytestmark = pytest.mark.filterwarnings("ignore")
SECRET = "tests.envs.secret:Secret"
HYPER: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 8, "batch_size": 16, "n_epochs": 2},
    "A2C": {},
    "SAC": {"learning_starts": 8, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}},
    "TD3": {"learning_starts": 8, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}},
    "CrossQ": {"learning_starts": 8, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}},
    "RecurrentPPO": {"n_steps": 8, "batch_size": 16, "n_epochs": 2},
}
KINDS: dict[str, dict[str, Any]] = {"numbers": {}, "images": {"eye": True}, "nested": {"nested": True}}


def trainer(algo: str, groups: list[str] | None = None, seed: int = 0, **more: Any) -> Any:
    overrides = HYPER[algo] | {name: more.pop(name) for name in ("policy_kwargs", "normalize") if name in more}
    options = {**more, **({} if groups is None else {"obs_groups": groups})}
    config = RunConfig(env=SECRET, env_options=options, algo=algo, n_envs=2, device="cpu", threads=1, seed=seed,
                       overrides=overrides)  # fmt: skip
    return make_trainer(config, make_vec(SECRET, 2, seed=seed, env_options=options))


def values(model: Any, obs: Any) -> torch.Tensor:
    """Return the critic's values of `obs`; for SAC and TD3 the Q-values of action 0."""
    seen = model.as_actor().preprocess(obs)
    with torch.no_grad():
        if hasattr(model, "critic"):
            return torch.stack(model.critic(seen, torch.zeros(2, 1)))
        return model.networks.values(model.networks.with_hidden_state(seen))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algo", HYPER)
def test_the_critic_reads_its_group_and_the_actor_reads_the_policy_group(algo: str, kind: str) -> None:
    model = trainer(algo, **KINDS[kind]).learn(48)
    groups, obs = model.tensor_env.obs_groups, model.tensor_env.reset(1)

    def without(*names: str) -> Any:
        return {n: tree_map(lambda x: torch.full_like(x, torch.nan), v) if n in names else v for n, v in obs.items()}

    action = model.act(obs)
    assert action.isfinite().all() and torch.equal(model.act(without("hidden")), action)
    assert torch.equal(model.act({name: obs[name] for name in groups["policy"]}), action), "the policy group suffices"
    value = values(model, obs)
    assert value.isfinite().all() and values(model, without("hidden")).isnan().all()
    if kind == "images":
        dark = {**obs, "eye": 255 - obs["eye"]}
        assert torch.equal(values(model, dark), value) and not torch.equal(model.act(dark), action)
    else:
        critic = model.critic if algo in ("SAC", "TD3", "CrossQ") else model.policy
        extractor = critic.features_extractor if algo in ("SAC", "TD3", "CrossQ") else critic.vf_features_extractor
        assert extractor.features_dim == 5
        actor = model.actor if algo in ("SAC", "TD3", "CrossQ") else model.policy
        assert actor.features_extractor.features_dim == 2, "the actor's features must be its two inputs"


@pytest.mark.parametrize(
    ("algo", "kind"), [("PPO", "numbers"), ("RecurrentPPO", "images"), ("SAC", "numbers"), ("SAC", "images")]
)
def test_an_interrupted_run_resumes_exactly(algo: str, kind: str) -> None:
    options: dict[str, Any] = {**KINDS[kind], "normalize": kind == "numbers"}
    whole = trainer(algo, **options).learn(64)
    first = trainer(algo, **options)
    state, boundaries = None, 0

    def stop() -> None:
        nonlocal state, boundaries
        boundaries += 1
        if boundaries == 2:
            state = first.state()
            raise Interrupted

    first.on_boundary = stop
    with pytest.raises(Interrupted):
        first.learn(64)
    torch.manual_seed(99)
    second = trainer(algo, seed=0, **options)
    second.load_state(state)
    if algo == "SAC":
        second.load_replay(first.replay_rows(0, first.replay_written), 0)
    second.learn(64)
    assert equal(second.state(), whole.state())


def test_every_parameter_of_a_critic_learns() -> None:
    """The optimizer also has the critic's layers if their width differs from the actor's."""
    for algo in HYPER:
        model = trainer(algo)
        before = {name: p.clone() for name, p in model.policy.named_parameters()}
        model.learn(64)
        still = [name for name, p in model.policy.named_parameters() if torch.equal(p, before[name])]
        assert not still, algo


@pytest.mark.parametrize("policy_kwargs", [{"enable_critic_lstm": False}, {"n_lstm_layers": 2, "lstm_hidden_size": 8}])
def test_recurrent_critic_without_lstm_or_with_two_layers(policy_kwargs: dict[str, Any]) -> None:
    model = trainer("RecurrentPPO", policy_kwargs=policy_kwargs).learn(32)
    assert values(model, model.tensor_env.reset(0)).isfinite().all()


def test_teacher_observations_do_not_change_the_policy() -> None:
    """Training with the teacher's observation group added gives the same policy class and weights as without it."""
    for algo in ("PPO", "RecurrentPPO", "SAC"):  # A2C has PPO's policy class, TD3 and CrossQ have SAC's groups
        for kind in ("numbers", "images"):
            alone, beside = (trainer(algo, groups, **KINDS[kind]).learn(48) for groups in ([], ["teacher"]))
            assert "hidden" in beside.tensor_env.reset(0) and type(alone.policy) is type(beside.policy)
            assert equal(dict(alone.policy.state_dict()), dict(beside.policy.state_dict())), (algo, kind)


def test_a_two_line_class_adds_observation_groups_to_sb3s_td3() -> None:
    from stable_baselines3 import TD3
    from stable_baselines3.td3.policies import MultiInputPolicy

    from kit.envs.sb3 import TensorVecEnv

    class AsymmetricTD3(OffPolicyGroups, MultiInputPolicy):
        """Policy with observation groups for TD3."""

    kwargs = choose("auto", describe(SECRET).observation_space, {}, describe(SECRET).obs_groups).policy_kwargs
    model = TD3(AsymmetricTD3, TensorVecEnv(make_vec(SECRET, 2)), policy_kwargs=kwargs, learning_starts=4, device="cpu")
    model.learn(24)
    assert model.critic.features_extractor.features_dim == 5 and model.actor.features_extractor.features_dim == 2


EYE: tuple[dict[str, Any], list[str]] = ({"eye": True}, ["obs.eye", "obs.seen"])


@pytest.mark.parametrize(
    ("to", "options", "inputs"),
    [("onnx", {}, ["obs.seen"]), ("onnx", *EYE), ("onnx", {"obs_groups": ["teacher"]}, ["obs.seen"]),
     ("onnx", {"obs_groups": []}, ["obs"]), ("torchscript", *EYE), ("safetensors", *EYE)],
)  # fmt: skip
def test_an_export_takes_the_policy_group_only(
    to: str, options: dict[str, Any], inputs: list[str], tmp_path: Path
) -> None:
    if to == "onnx":
        pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    run = create(tmp_path, "run", env=SECRET, env_options=options, overrides={"normalize": True})
    path = kit.export(run, to, 0)
    about = json.loads(path.with_suffix(".json").read_text())
    assert sorted(entry["name"] for entry in about["inputs"]) == inputs
    assert set(about["normalizer"]) - {"clip", "epsilon"} == {name for name in inputs if "eye" not in name}
    described = {entry["name"]: entry for entry in about["inputs"]}[inputs[-1]]
    assert [part["what"] for part in described["parts"]] == ["steps of the episode", "the latest action"]
    if to == "torchscript":
        assert len(list(torch.jit.load(path).graph.inputs())) == 1 + len(inputs), "the module itself and the inputs"
    if to == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path.read_bytes())
        assert sorted(entry.name for entry in session.get_inputs()) == inputs
    if to == "safetensors":
        names = " ".join(load_file(path))
        assert "policy_net" in names and "value" not in names and "vf" not in names


def test_invalid_combinations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="shared_lstm=true gives the critic the actor"):
        trainer("RecurrentPPO", policy_kwargs={"shared_lstm": True, "enable_critic_lstm": False})
    space, groups = describe(SECRET, {"eye": True})[0], {"policy": ("eye", "seen"), "critic": ("seen", "hidden")}
    with pytest.raises(UserError, match="frozen=True stores features instead of observations"):
        choose("simple2dcnn", space, {"frozen": True}, groups)
    with pytest.raises(UserError, match=r"critic see images \(eye\) and the policy none"):
        choose("auto", space, {}, {"policy": ("seen",), "critic": ("eye",)})
    with pytest.raises(UserError, match="encoder='simple2dcnn' needs images"):
        choose("simple2dcnn", space, {}, {"policy": ("seen",), "critic": ("hidden",)})
    prefixed = spaces.Dict({"seen": spaces.Box(-1, 1, (2,)), "critic_state": spaces.Box(-1, 1, (2,))})
    with pytest.raises(UserError, match="'critic_state' is no longer hidden from the actor by its name"):
        choose("auto", prefixed)
    monkeypatch.setattr(PPO, "policy_aliases", sb3.PPO.policy_aliases)
    with pytest.raises(UserError, match="cannot give the critic other observations than the policy"):
        kit.resolve(RunConfig(env=SECRET, algo="PPO"))


def test_critics_may_see_images_too() -> None:
    space = describe(SECRET, {"eye": True})[0]
    made = choose("auto", space, {}, {"policy": ("eye",), "critic": ("eye", "hidden")})
    from kit.encoders.asymmetric import AsymmetricActorCritic

    policy = AsymmetricActorCritic(space, spaces.Box(-1, 1, (1,)), lambda _: 1e-3, **made.policy_kwargs)
    assert policy.pi_features_extractor.features_dim + 3 == policy.vf_features_extractor.features_dim
    obs = {"eye": torch.zeros(2, 2, 3, 36, 36), "seen": torch.full((2, 2), torch.nan), "hidden": torch.ones(2, 3)}
    assert policy.predict_values(obs).shape == (2, 1) and policy(obs)[0].isfinite().all()
