"""Tests of `kit.export`: ONNX and TorchScript match the policy; SB3 zip, safetensors, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from safetensors.torch import load_file

import kit
from kit.errors import UserError
from kit.runs import export as exporting
from kit.runs.run import Run
from tests.runs.crash import create

pytestmark = pytest.mark.filterwarnings("ignore")
CORRIDOR = {"env": "tests.envs.corridor:Corridor"}
CASES: dict[str, dict[str, Any]] = {
    "numbers": {"env": "Reach"},
    "pictures in a nested dict": {**CORRIDOR, "overrides": {"policy_kwargs": {"net_arch": [8]}}},
    "SAC, squashed": {"env": "Reach", "algo": "SAC"},
    "four choices, remembering": {"env": "Mission", "algo": "RecurrentPPO", "n_envs": 4},
}


@pytest.fixture(scope="module")
def ant(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of Ant with 256 steps and normalised observations."""
    overrides = {"n_steps": 64, "batch_size": 128, "n_epochs": 1, "normalize": True}
    fields: dict[str, Any] = {"n_envs": 4, "eval_every": 0, "device": "cpu", "threads": 1, "overrides": overrides}
    return kit.train(env="Ant", total_steps=256, runs_dir=str(tmp_path_factory.mktemp("runs")), **fields)


@pytest.mark.parametrize("to", ["onnx", "torchscript"])
@pytest.mark.parametrize("case", CASES)
def test_an_exported_function_matches_the_policy(to: str, case: str, tmp_path: Path) -> None:
    if to == "onnx":
        pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    run = create(tmp_path, "run", **CASES[case])
    path = kit.export(run, to, 0)
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["largest_difference"] <= 1e-5 and about["algo"] == run.config.algo
    assert path.parent == run.path / "exports" and not [*path.parent.glob(".*")]
    if case == "numbers":
        assert [part["width"] for part in about["inputs"][0]["parts"]] == [7, 7, 3, 3, 3, 1]
        assert about["outputs"][0]["high"] == [1.0] * 7
    if case == "four choices, remembering":
        assert [kept["name"] for kept in about["memory"]] == ["memory_0"]


WITHOUT_KIT = """
import json, sys
import gymnasium, numpy as np, onnxruntime
policy = onnxruntime.InferenceSession(sys.argv[1])
env = gymnasium.make("Ant-v5")
obs, _ = env.reset(seed=3)
actions = []
for _ in range(20):
    action = policy.run(["action"], {"obs": obs[None].astype(np.float32)})[0][0]
    actions.append(action.tolist())
    obs, *_ = env.step(action)
assert "kit" not in sys.modules and "torch" not in sys.modules
print(json.dumps(actions))
"""


def test_the_onnx_policy_runs_without_kit(ant: Run, tmp_path: Path) -> None:
    """Compares its actions in Gymnasium's Ant-v5, which has the same observations as kit's Ant, with `predict`."""
    pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    import gymnasium

    path = kit.export(ant, "onnx", "latest", tmp_path / "ant.onnx")
    ran = subprocess.run([sys.executable, "-c", WITHOUT_KIT, str(path)], capture_output=True, text=True, check=True)
    policy, env = ant.policy("latest"), gymnasium.make("Ant-v5")
    obs, _ = env.reset(seed=3)
    for action in json.loads(ran.stdout):
        expected, _ = policy.predict(obs.astype(np.float32), deterministic=True)
        np.testing.assert_allclose(action, expected, atol=2e-5)
        obs, *_ = env.step(np.array(action, np.float32))


def test_sb3_zip_and_safetensors_hold_the_policy(ant: Run) -> None:
    """Stock SB3 loads the zip; on observations normalised with the JSON's statistics, it acts like the run's policy."""
    policy = ant.policy("latest")
    zipped = kit.export(ant, "sb3", "latest")
    about = json.loads(zipped.with_suffix(".json").read_text())
    scale = about["normalizer"]["obs"]
    obs = np.random.default_rng(0).normal(size=(9, 105)).astype(np.float32)
    seen = (obs - np.array(scale["mean"])) / np.sqrt(np.array(scale["var"]) + about["normalizer"]["epsilon"])
    stock = sb3.PPO.load(zipped, device="cpu")
    actions, _ = stock.predict(seen.clip(-10, 10).astype(np.float32), deterministic=True)
    np.testing.assert_allclose(actions, policy.predict(obs, deterministic=True)[0], atol=1e-5)
    weights = load_file(kit.export(ant, "safetensors", "latest"))
    assert all(torch.equal(weights[name], value) for name, value in policy.policy.state_dict().items())


def test_refused_exports_raise_one_sentence(ant: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="to='tflite' is not an export format; valid are onnx, torchscript, sb3"):
        kit.export(ant, "tflite")
    with pytest.raises(UserError, match=r"must end in \.pt"):
        kit.export(ant, "torchscript", path=tmp_path / "ant.onnx")
    (tmp_path / "ant.pt").mkdir()
    with pytest.raises(UserError, match=r"ant\.pt is a folder; name a file in it"):
        kit.export(ant, "torchscript", path=tmp_path / "ant.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["ant.pt"]
    with pytest.raises(UserError, match=r"/proc/ant\.pt cannot be written \(.*\); free some space there, or use"):
        kit.export(ant, "torchscript", path="/proc/ant.pt")
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(UserError, match="torchscript cannot hold this policy"):
        kit.export(ant, "torchscript", "latest", tmp_path / "out" / "ant.pt")
    assert [*(tmp_path / "out").iterdir()] == []


def test_an_export_whose_actions_are_nan_is_refused(ant: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.jit, "load", lambda path: lambda obs: [torch.full((len(obs), 8), torch.nan)])
    with pytest.raises(UserError, match="torchscript cannot hold this policy: its actions differ by nan"):
        kit.export(ant, "torchscript", "latest", tmp_path / "ant.pt")
    assert [*tmp_path.iterdir()] == []
