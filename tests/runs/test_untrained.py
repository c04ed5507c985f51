"""Tests of the checkpoint at step 0, random or warm-started, in exports, videos, saliency maps and viewers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import kit
from kit.errors import UserError
from kit.format import checkpoint
from kit.runs.run import Run
from kit.runs.session import Session
from kit.runs.video import record
from kit.ui import gallery
from kit.ui.seeing import what_it_sees
from kit.ui.viewing import Viewer
from tests.runs.crash import SMALL, create


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = create(tmp_path_factory.mktemp("runs"), "parent", total_steps=64, seed=3)
    assert Session(run.path)() == 0
    return run


@pytest.fixture(scope="module")
def child(parent: Run) -> Run:
    return kit.train(start_from=f"{parent.path}@64", run_name="child")


def weights(run: Run, step: int, folder: Path) -> dict[str, torch.Tensor]:
    return load_file(kit.export(run, "safetensors", step, folder / f"{run.name}.safetensors"))


def forget_the_record(run: Run) -> None:
    """Remove `untrained` from the checkpoint of step 0, as in runs of an older version."""
    state = run.find(0).read()
    state["session"].pop("untrained", None)
    checkpoint.write(run.path / "checkpoints", 0, state)


def recorded(run: Run) -> bool:
    return json.loads((run.find(0).path / "state.json").read_text())["session"]["untrained"]


@pytest.mark.parametrize("older", [False, True], ids=["", "written by an older version"])
def test_step_0_after_a_warm_start_is_the_parents_policy(
    parent: Run, child: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    pytest.importorskip("mediapy")
    monkeypatch.setenv("KIT_FILM_S", "0.5")
    shutil.copytree(child.path, tmp_path / "child")
    run = Run(tmp_path / "child")
    if older:
        forget_the_record(run)
    theirs, ours = weights(parent, 64, tmp_path), weights(run, 0, tmp_path)
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)

    first, second = tmp_path / "parent.mp4", tmp_path / "child.mp4"
    record(parent, 64, size=64, episodes=1, path=first)
    record(run, 0, size=64, episodes=1, path=second)
    assert first.read_bytes() == second.read_bytes(), "the same episode, with deterministic actions"

    page = gallery.checkpoints_side_by_side(run, cameras=["front"], episodes=1)._repr_html_()
    assert "before training" not in page and "step 0, 0 % of training · step 64, 100 % of training" in page
    assert older or recorded(run) is False


def test_step_0_after_a_warm_start_has_the_parents_saliency_maps(tmp_path: Path) -> None:
    pytest.importorskip("mediapy")
    config = kit.RunConfig(
        env="tests.encoders.painted:Painted", encoder="simple2dcnn", n_envs=2, total_steps=64, eval_every=0,
        device="cpu", threads=1, runs_dir=str(tmp_path), overrides=SMALL["PPO"],
    )  # fmt: skip
    first = kit.train(config, run_name="first")
    second = kit.train(start_from=f"{first.path}@64", run_name="second")
    glows = [what_it_sees(it, step, after=0) for it, step in ((first, 64), (second, 0))]
    assert all(np.array_equal(a, b) for a, b in zip(*glows, strict=True))


def test_step_0_after_a_warm_start_is_refused_without_its_checkpoint(child: Run, tmp_path: Path) -> None:
    shutil.copytree(child.path, tmp_path / "child")
    run = Run(tmp_path / "child")
    checkpoint.discard(run.find(0).path)
    for use in (lambda: kit.export(run, "safetensors", 0), lambda: record(run, 0)):
        with pytest.raises(UserError, match=r"step=0 has no checkpoint .* there is: 64"):
            use()
    assert run.steps() == [64]


def test_an_unsaved_untrained_policy_is_filmed(parent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mediapy")
    monkeypatch.setenv("KIT_FILM_S", "0.1")
    run = create(tmp_path, "unsaved", total_steps=64, eval_every=0)
    assert Session(run.path)() == 0 and 0 not in [saved.step for saved in run.policies()]
    for page in (gallery.from_cameras(run, ["front"], 1, step=0), gallery.failures(run, "front", 1, step=0)):
        assert "video" in page._repr_html_()


def test_a_viewer_labels_step_0(parent: Run, child: Run) -> None:
    pytest.importorskip("mjviser")
    for run, names in ((parent, ["before training", "step 64"]), (child, ["step 0", "step 64"])):
        shown = Viewer(run, 0, port=8891)
        shown.close()
        assert list(shown._policies) == [*names, "by hand", "scripted: straight"]


@pytest.mark.parametrize("older", [False, True], ids=["", "written by an older version"])
def test_a_run_stopped_before_its_first_step_is_untrained(tmp_path: Path, older: bool) -> None:
    run = create(tmp_path, "run")
    session = Session(run.path)
    session.requests.stop("stopped before the first step")
    assert session() == 75
    if older:
        forget_the_record(run)
    assert [run.is_untrained(found) for found in run.checkpoints()] == [True]
    assert older or recorded(run) is True
