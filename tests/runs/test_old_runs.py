"""Tests of runs from an earlier version: actions, exact loading, resume. See tests/format/old_runs/README.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import kit
from kit.format.checkpoint import Checkpoint
from kit.format.segments import OffPolicy, load_replay
from kit.runs import provenance
from kit.runs.fingerprint import fingerprint
from kit.runs.opponents import make_env
from kit.trainers import make_trainer
from tests.format.old_runs.reference import fixed, processor

OLD = Path(__file__).parents[1] / "format/old_runs"
RECORDED = json.loads((OLD / "recorded.json").read_text())
MOVED = {("temperature", "log_ent_coef"): "trainer"}
"""State values that are now in another component: (component, name) -> component in the earlier version."""

ROUNDS_DIFFERENTLY: dict[str, str] = {}
"""Runs that now end with rounding differences from the recorded run: name -> reason."""


@pytest.fixture(params=RECORDED["runs"])
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> kit.Run:
    """A copy of an old run; the working directory has the encoder weights that its config names."""
    name = request.param
    if name == "frozen_encoder":
        pytest.importorskip("transformers")
        shutil.copytree(OLD / "timesformer", tmp_path / "timesformer")
    shutil.copytree(OLD / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return kit.Run(tmp_path / name)


def test_the_policy_returns_the_recorded_actions(old):
    np.testing.assert_allclose(acts(old), RECORDED["runs"][old.name]["actions"], rtol=1e-4, atol=1e-6)


def test_every_state_component_is_loaded_bit_for_bit(old):
    found, config = old.latest(), old.config
    env = make_env(config, int(config.n_envs), config.seed, 1)
    try:
        trainer = make_trainer(config, env)
        was = {part: values for part, values in found.read().items() if part != "session"}
        assert trainer.load_state(found.read()), "the snapshots of the envs must be restored"
        now = as_it_was(trainer.state())
        for part, values in was.items():
            for name, value in values.items():
                assert_same(value, now[part][name], f"{part}/{name}")
        if isinstance(trainer, OffPolicy):
            load_replay(trainer, found)
            (segment,) = found.replay()
            rows = trainer.replay_rows(0, trainer.replay_written)
            for name, column in load_file(segment).items():
                assert_same(column, rows[name], f"replay/{name}")
    finally:
        env.close()


def test_a_resumed_run_ends_as_recorded(old, monkeypatch):
    recorded = RECORDED["runs"][old.name]
    assert old.status()["step"] == recorded["cut"] < old.config.total_steps
    kit.resume(old.path)
    assert (old.status()["state"], old.status()["step"]) == ("finished", old.config.total_steps), old.status()
    np.testing.assert_allclose(acts(old), recorded["end_actions"], rtol=1e-2, atol=1e-4)
    then, now = (
        {**entry["versions"], "kit": "", "processor": entry["processor"]} for entry in provenance.read(old.path)
    )
    if then != now or RECORDED["processor"] != processor():
        pytest.skip("the last bits of a run made by another processor or other versions, whose sums round differently")
    if old.name in ROUNDS_DIFFERENTLY:
        pytest.skip(f"the last bits of an older run: {ROUNDS_DIFFERENTLY[old.name]}")
    read = Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda self, *args: as_it_was(read(self, *args)))
    assert fingerprint(old) == recorded["fingerprints"]["uncut"]


def acts(run: kit.Run) -> np.ndarray:
    policy = run.policy("latest")
    return policy.predict(fixed(policy.observation_space), deterministic=True)[0]


def as_it_was(state: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return `state` with the values of `MOVED` in the components of the earlier version."""
    state = {part: dict(values) for part, values in state.items()}
    for (part, name), before in MOVED.items():
        if name in state.get(part, {}):
            state[before][name] = state[part].pop(name)
    return state


def assert_same(was: Any, now: Any, name: str) -> None:
    if not isinstance(was, torch.Tensor):
        assert was == now, name
        return
    assert was.dtype == now.dtype and was.shape == now.shape, name
    assert torch.equal(*(x.contiguous().view(torch.uint8) if x.ndim else x for x in (was, now))), name
