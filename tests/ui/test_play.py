"""Tests of the hidden state in evaluation, video, export and viewer: kept in an episode, reset at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import kit
from kit.errors import UserError
from kit.runs.evaluation import Evaluator
from kit.runs.run import Run, load_policy
from kit.runs.video import record
from kit.ui.seeing import what_it_sees
from tests.envs.clock import Clock
from tests.runs.crash import SMALL, create
from tests.ui.fabricate import connect, wait_for

CLOCK = {"env": "tests.envs.clock:Clock"}
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setitem(SMALL, "tests.envs.clock:COUNTING", SMALL["PPO"])
    monkeypatch.setattr(Clock, "wrong", 0)
    monkeypatch.setattr(Clock, "ends", 0)
    return create(tmp_path, "run", algo="tests.envs.clock:COUNTING", **CLOCK)


def evaluation(run: Run, request: pytest.FixtureRequest) -> None:
    found = Evaluator(run.config, 100)(load_policy(run.config, None).as_actor())
    assert found is not None and found["episodes"] >= 100


def video(run: Run, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("mediapy")
    record(run, 0, episodes=5, size=64)


def scrubber(run: Run, request: pytest.FixtureRequest) -> None:
    for number in range(5):
        kit.ui.episode(run, 0, number)


def onnx(run: Run, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    kit.export(run, "onnx", 0)


def torchscript(run: Run, request: pytest.FixtureRequest) -> None:
    kit.export(run, "torchscript", 0)


def viewer(run: Run, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("mjviser")
    threads = torch.get_num_threads()
    shown = kit.ui.view(run, 0, port=8892)
    try:
        connect(shown, request.getfixturevalue("monkeypatch"))
        wait_for(lambda: Clock.ends >= 5)
    finally:
        shown.close()
        torch.set_num_threads(threads)


@pytest.mark.parametrize("use", [evaluation, video, scrubber, onnx, torchscript, viewer], ids=lambda f: f.__name__)
def test_the_policy_counts_the_steps_of_its_episode(
    use: Callable[[Run, pytest.FixtureRequest], None], run: Run, request: pytest.FixtureRequest
) -> None:
    use(run, request)
    assert Clock.ends >= 5 and Clock.wrong == 0


def test_saliency_maps_of_a_recurrent_policy_are_refused(run: Run) -> None:
    pytest.importorskip("mediapy")
    with pytest.raises(UserError, match="is recurrent: its actions depend on more than the current image"):
        what_it_sees(run, 0)
