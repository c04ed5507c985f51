"""Tests of custom encoders, `encoder="module:Class"`: training, resume, refused classes and options."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.errors import UserError
from kit.runs.fingerprint import fingerprint
from tests.encoders.own import Edges, Scaled

IMAGES: dict[str, Any] = {"env": "ReachVision", "env_options": {"cameras": ["top"], "size": 24, "frames": 2}}
CASES: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "images": (Edges, IMAGES, {"features": 8}),
    "numbers": (Scaled, {"env": "Reach"}, {"factor": 3.0}),
}


@pytest.mark.parametrize(("case", "algo"), [("images", "PPO"), ("numbers", "PPO"), ("numbers", "TD3")])
def test_run_with_custom_encoder_trains_and_resumes(tmp_path: Path, case: str, algo: str) -> None:
    """A run resumed from the checkpoint before the last ends with the same fingerprint."""
    made, fields, options = CASES[case]
    small = {"n_steps": 16, "n_epochs": 1} if algo == "PPO" else {"learning_starts": 8}
    config = kit.RunConfig(
        **fields, algo=algo, n_envs=2, threads=1, seed=3, eval_every=0, device="cpu", total_steps=64,
        encoder=f"tests.encoders.own:{made.__name__}", runs_dir=str(tmp_path), checkpoint_every=32,
        overrides={**small, "batch_size": 16, "policy_kwargs": {"net_arch": [8], "features_extractor_kwargs": options}},
    )  # fmt: skip
    whole = kit.train(config, run_name="whole")
    assert whole.status()["state"] == "finished", whole.status()
    extractors = [module for module in whole.policy("latest").policy.modules() if type(module) is made]
    assert extractors, "the policy does not use the encoder"
    if isinstance(extractors[0], Scaled):
        assert torch.equal(extractors[0](torch.ones(1, 24)), torch.full((1, 24), 3.0))
    cut = shutil.copytree(whole.path, tmp_path / "cut")
    shutil.rmtree(kit.Run(cut).checkpoints()[-1].path)
    assert [saved.step for saved in kit.Run(cut).checkpoints()] == [32]
    assert fingerprint(kit.resume(cut)) == fingerprint(whole)


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        ("tests.encoders.own:Nothing", "cannot be loaded"),
        ("tests.encoders.nowhere:Edges", "cannot be loaded"),
        ("tests.encoders.own:Grid", "not a features extractor class"),
        ("edges", "unknown"),
    ],
)
def test_invalid_encoder_is_refused(encoder: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        kit.resolve(kit.RunConfig(env="Reach", encoder=encoder))


def test_options_of_a_custom_encoder_are_checked() -> None:
    kwargs = {"policy_kwargs": {"features_extractor_kwargs": {"faktor": 3.0}}}
    with pytest.raises(UserError, match=r"faktor=3\.0 is not one of .*did you mean factor"):
        kit.resolve(kit.RunConfig(env="Reach", encoder="tests.encoders.own:Scaled", overrides=kwargs))


def test_an_image_encoder_of_ones_own_is_refused_without_images() -> None:
    with pytest.raises(UserError, match=r"encoder='tests.encoders.own:Edges' needs images and this env gives Box"):
        kit.resolve(kit.RunConfig(env="Reach", encoder="tests.encoders.own:Edges"))
