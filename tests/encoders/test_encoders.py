"""Tests of encoders: shapes, dtypes, refused images and options, pretrained weights, frozen features, saliency maps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import save_file

from kit.encoders import ENCODERS, OPTIONS, choose, load
from kit.errors import UserError
from kit.format.weights import fingerprint

SMALL = [name for name in ENCODERS if name not in ("r3d18", "timesformer")]
CLIP = spaces.Box(0, 255, (4, 3, 48, 48), np.uint8)
ROBOT = spaces.Dict({
    "left": CLIP, "right": CLIP, "joints": spaces.Box(-1, 1, (5,)),
})  # fmt: skip


def seen(n: int = 2) -> dict[str, torch.Tensor]:
    bytes_ = {name: torch.randint(0, 256, (n, *CLIP.shape), dtype=torch.uint8) for name in ("left", "right")}
    return bytes_ | {"joints": torch.rand(n, 5), "state": torch.full((n, 9), torch.nan)}


@pytest.mark.parametrize("name", SMALL)
def test_features_of_cameras_and_numbers(name: str) -> None:
    encoder = load(name)(ROBOT, features=16)
    obs = seen()
    features = encoder(obs)
    assert features.shape == (2, 16 + 5) and encoder.features_dim == 21
    assert features.isfinite().all(), "the encoder reads state (NaN), which its space does not contain"
    assert torch.equal(features[:, 16:], obs["joints"])
    as_floats = encoder({key: value.float() for key, value in obs.items()})
    assert torch.equal(as_floats, features)
    blinded = encoder({**obs, "right": torch.zeros_like(obs["right"])})
    assert not torch.allclose(blinded[:, :16], features[:, :16])
    earlier = {**obs, "left": obs["left"].clone()}
    earlier["left"][:, 0] = 0
    assert not torch.allclose(encoder(earlier)[:, :16], features[:, :16]), "the oldest frame has no effect"


@pytest.mark.parametrize("name", SMALL)
def test_features_do_not_depend_on_memory_layout(name: str) -> None:
    """Equal to the bit: a resumed run loads its first observation from a file, with another layout than in rollouts."""
    encoder, obs = load(name)(ROBOT), seen()
    moved = {k: v.movedim(-3, -1).contiguous().movedim(-1, -3) if v.ndim > 2 else v for k, v in obs.items()}
    assert torch.equal(encoder(moved), encoder(obs))


def test_shared_uses_one_network_for_all_cameras() -> None:
    own, shared = load("multi_camera")(ROBOT), load("multi_camera")(ROBOT, shared=True)
    assert len(own.eyes) == 2 and len(shared.eyes) == 1
    assert shared(seen()).shape == own(seen()).shape


@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [((2, 4, 3, 40, 48), torch.uint8, r"is \(4, 3, 40, 48\) and this encoder was made for \(4, 3, 48, 48\)"),
     ((2, 3, 3, 48, 48), torch.uint8, r"is \(3, 3, 48, 48\)"), ((2, 4, 3, 48, 48), torch.int64, "is torch.int64")],
)  # fmt: skip
def test_clips_of_another_shape_or_dtype_are_refused(shape: tuple[int, ...], dtype: torch.dtype, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load("simple2dcnn")(ROBOT)({**seen(), "left": torch.zeros(shape, dtype=dtype)})


@pytest.mark.parametrize(
    ("encoder", "options", "says"),
    [("simple2dcnn", {"feature": 3}, "did you mean features"), ("simple2dcnn", {"features": 0}, "whole number"),
     ("simple2dcnn", {"weights": "x"}, "weights='x' is not one of simple2dcnn's")],
)  # fmt: skip
def test_wrong_options_are_refused(encoder: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        choose(encoder, ROBOT, options)


def test_auto_chooses_simple2dcnn_for_frame_stacks() -> None:
    policy, kwargs, _ = choose("auto", CLIP)
    assert (policy, kwargs["features_extractor_class"]) == ("CnnPolicy", load("simple2dcnn"))
    told = spaces.Dict({**ROBOT, "state": spaces.Box(-1, 1, (9,))})
    made = choose("auto", told, obs_groups={"policy": tuple(ROBOT), "critic": ("state",)})
    assert (made.policy, made.policy_kwargs["features_extractor_class"]) == ("AsymmetricPolicy", load("simple2dcnn"))
    assert made.policy_kwargs["critic_entries"] == ("state",) and "state" not in made.policy_kwargs["actor_entries"]
    channels_last = spaces.Box(0, 255, (4, 48, 48, 3), np.uint8)
    assert choose("auto", channels_last, {"features": 8}).policy == "CnnPolicy"
    with pytest.raises(UserError, match="28×28 and this env gives 20×20"):
        choose("simple2dcnn", spaces.Box(0, 255, (4, 3, 20, 20), np.uint8))


def big(name: str) -> tuple[Any, spaces.Box]:
    pytest.importorskip({"r3d18": "torch", "timesformer": "transformers"}[name])
    space = spaces.Box(0, 255, (8, 3, 32, 32), np.uint8)
    try:
        return load(name)(space), space
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["r3d18", "timesformer"])
def test_pretrained_weights_load_from_a_file_and_stay_frozen(name: str, tmp_path: Path) -> None:
    made, space = big(name)
    net = next(iter(made.eyes.values())).net
    if name == "r3d18":
        save_file(net.net.state_dict(), tmp_path / "weights.safetensors")
        weights = str(tmp_path / "weights.safetensors")
    else:
        net.net.save_pretrained(tmp_path / "weights")
        weights = str(tmp_path / "weights")
    torch.manual_seed(1)
    again = load(name)(space, weights=weights, frozen=True)
    # SB3's policies re-initialise the layers of their features extractor
    again.apply(lambda m: torch.nn.init.zeros_(m.weight) if isinstance(m, torch.nn.Linear) else None)
    again.train()
    copy = next(iter(again.eyes.values())).net
    assert fingerprint(copy.net) == fingerprint(net.net) and not copy.net.training
    assert fingerprint(copy.net) != fingerprint(next(iter(load(name)(space).eyes.values())).net.net)
    assert not any(p.requires_grad for p in copy.parameters()) and any(p.requires_grad for p in again.parameters())
    clip = torch.randint(0, 256, (2, *space.shape), dtype=torch.uint8)
    expected = next(iter(made.eyes.values()))(clip.float())
    assert torch.equal(next(iter(again.eyes.values()))(clip.float()), expected)
    if name == "timesformer":  # pixels as most published weights expect them: (x - 0.45) / 0.225
        scaled = next(iter(load(name)(space, weights=weights, mean=0.45, std=0.225).eyes.values()))
        same = 255 * (0.45 + 0.225 * (clip / 255 - 0.5) / 0.5)
        torch.testing.assert_close(scaled(same), expected, rtol=1e-4, atol=1e-4)
    assert again(clip).shape == (2, 128)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    _, space = big("r3d18")
    save_file({"stem.0.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    (tmp_path / "torn.pth").write_bytes(b"PK half")
    for name, says in (("other.safetensors", "do not fit VideoResNet: stem.0.weight"), ("torn.pth", "cannot be read"),
                       ("none.pth", "does not exist")):  # fmt: skip
        with pytest.raises(UserError, match=says):
            choose("r3d18", space, {"weights": str(tmp_path / name)})


def test_grey_or_non_square_images_are_refused() -> None:
    for name, shape, says in (("r3d18", (8, 1, 32, 32), "needs RGB"), ("timesformer", (8, 3, 32, 48), "square images")):
        with pytest.raises(UserError, match=says):
            choose(name, spaces.Box(0, 255, shape, np.uint8))


@pytest.mark.parametrize("algo", ["PPO", "SAC"])
def test_frozen_features_are_stored_instead_of_images(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Fixed` is a stub for a pretrained encoder: small, random weights. It counts the observations that it encodes."""
    from kit import RunConfig, make_vec
    from kit.encoders.convolutions import Simple2DEncoder
    from kit.trainers import make_trainer

    looks: list[int] = []

    class Fixed(Simple2DEncoder):
        def __init__(self, space: Any, features: int = 8, frozen: bool = True) -> None:
            super().__init__(space, features)

        def look(self, entries: Any) -> torch.Tensor:
            looks.append(len(next(iter(entries.values()))))
            return super().look(entries)

    monkeypatch.setattr("kit.encoders.load", lambda name: Fixed)
    options = {"policy_kwargs": {OPTIONS: {"frozen": True}}}
    options |= {"learning_starts": 8, "buffer_size": 60} if algo == "SAC" else {"n_steps": 5, "batch_size": 15}
    config = RunConfig(env="tests.envs.flipbook:Flipbook", algo=algo, encoder="simple2dcnn", overrides=options,
                       n_envs=3, device="cpu", threads=1)  # fmt: skip

    def new() -> Any:
        return make_trainer(config, make_vec(config.env, 3, threads=1))

    trainer = new()
    looks.clear()
    trainer.learn(30)  # 10 steps of 3 envs; some episodes end
    assert sum(looks) <= 3 * (10 + 10 + 1), "one encoding per observation, and per final observation"
    width = trainer.observation_space.shape[0]
    if algo == "SAC":
        kept = trainer.replay_rows(0, 10)
        assert kept["obs"].shape == (10, 3, width) and "frames.eye" not in kept
    else:
        assert trainer.rollout_buffer.obs.shape == (5, 3, width)
    obs = trainer.tensor_env.reset(0)
    assert trainer.act(obs).shape == (3, 1)

    state, again = trainer.state(), new()
    again.load_state(state)
    assert torch.equal(again.act(obs), trainer.act(obs))
    with pytest.raises(UserError, match="stale"):
        again.load_policy({**state, "encoder": {"sha256": "0" * 64}})


def test_frozen_features_have_discrete_entries_one_hot() -> None:
    from kit.encoders.frozen import FrozenView

    kinds = {"kind": spaces.Discrete(3), "pair": spaces.MultiDiscrete([3, 4]), "flags": spaces.MultiBinary(2)}
    space = spaces.Dict({"eye": CLIP, "joints": ROBOT["joints"], **kinds})
    view = FrozenView(space, load("simple2dcnn")(space))
    obs = {"eye": seen()["left"], "joints": torch.rand(2, 5), "kind": torch.tensor([0, 2]),
           "pair": torch.tensor([[1, 0], [2, 3]]), "flags": torch.tensor([[0, 1], [1, 1]])}  # fmt: skip
    features = view(obs)
    assert features.shape[1:] == view.space.shape and torch.equal(view(features), features)
    flags, joints, kind, pair = features[:, -17:].split([2, 5, 3, 7], 1)
    assert flags.tolist() == [[0, 1], [1, 1]] and torch.equal(joints, obs["joints"])
    assert kind.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert pair.tolist() == [[0, 1, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0, 1]]


def test_saliency_finds_the_pixels_that_determine_the_action() -> None:
    """The policy's action is the brightness of 3×3 pixels in the upper right corner of the newest frame."""
    from stable_baselines3.common.policies import ActorCriticPolicy

    from kit.encoders.saliency import saliency

    class Corner(ActorCriticPolicy):
        def _predict(self, observation: Any, deterministic: bool = False) -> torch.Tensor:
            return observation["left"][:, -1, 0, 3:6, 37:40].float().sum((1, 2)).unsqueeze(1) / 1000

    space = spaces.Dict({"left": CLIP, "joints": spaces.Box(-1, 1, (5,))})
    policy = Corner(space, spaces.Box(-1, 1, (1,)), lambda _: 0.0, features_extractor_class=load("simple2dcnn"))
    eye = torch.zeros(2, *CLIP.shape, dtype=torch.uint8)
    eye[..., 3:6, 37:40] = 255
    (marked,) = saliency(policy, {"left": eye, "joints": torch.zeros(2, 5)}).values()
    assert marked.shape == (2, 48, 48)
    for one in marked:
        row, column = divmod(int(one.argmax()), 48)
        assert abs(row - 4) <= 2 and abs(column - 38) <= 2 and one.max() == 1
        assert one[24:].max() < 0.02 and one[:, :20].max() < 0.02


@pytest.mark.parametrize(("encoder", "package"), [("r3d18", "torchvision"), ("timesformer", "transformers")])
def test_a_missing_package_is_named(encoder: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu128")
    remedy = {"torchvision": r"'torchvision==0\.26\.\*'", "transformers": r"'kit\[clips\]'"}[package]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs {package} .*pip install {remedy}"):
        choose(encoder, spaces.Box(0, 255, (8, 3, 32, 32), np.uint8))
