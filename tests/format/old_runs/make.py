"""Create the runs in this folder with the released code:

    git worktree add --detach OLD 57936ac
    PYTHONPATH=OLD python tests/format/old_runs/make.py

Each run is stopped at step CUT. recorded.json gets the fingerprints at step END and actions of the policies.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from reference import fixed, processor

import kit
from kit.encoders.r3d18 import torchvision
from kit.runs import rollouts, training
from kit.runs.fingerprint import fingerprint

HERE = Path(__file__).parent
CUT, END = 96, 192
"""Step at which a run is stopped and stored here, and step at which it is finished."""
WEIGHTS = "timesformer"
"""Folder with the frozen encoder's weights, next to the runs."""

STEPS = {"n_steps": 16, "batch_size": 16, "n_epochs": 2}
NET = {"net_arch": [8]}
SEEN = {"cameras": ["front"], "size": 32, "frames": 2}
FROZEN = {"features": 4, "weights": WEIGHTS, "frozen": True}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {
        "env": "kit.envs.reach:Reach", "eval_every": 64,
        "overrides": {**STEPS, "normalize": True, "policy_kwargs": NET},
    },
    "sac": {
        "algo": "SAC", "overrides": {"learning_starts": 40, "batch_size": 16, "buffer_size": 160, "policy_kwargs": NET},
    },
    "recurrent_ppo": {"algo": "RecurrentPPO", "overrides": {**STEPS, "policy_kwargs": {**NET, "lstm_hidden_size": 8}}},
    "frozen_encoder": {
        "env": "ReachVision", "encoder": "timesformer", "env_options": SEEN,
        "overrides": {**STEPS, "policy_kwargs": {**NET, "features_extractor_kwargs": FROZEN}},
    },
    "critic_state": {
        "env": "ReachVision", "encoder": "simple2dcnn", "env_options": {**SEEN, "size": 28, "critic_state": True},
        "overrides": {**STEPS, "policy_kwargs": {**NET, "features_extractor_kwargs": {"features": 8}}},
    },
}  # fmt: skip


def train(name: str, runs_dir: str, cut: int | None = None) -> kit.Run:
    """Train to step END, or stop at the first `Training.boundary` at or after step `cut`."""
    boundary = training.Training.boundary

    def cutting(self: training.Training) -> None:
        if cut is not None and self.trainer.num_timesteps >= cut:
            self._requests.stop("cut")
        boundary(self)

    training.Training.boundary = cutting  # type: ignore[method-assign]
    try:
        fields = {"total_steps": END, "n_envs": 2, "threads": 1, "device": "cpu", "eval_every": 0, **RUNS[name]}
        return kit.train(kit.RunConfig(run_name=name, runs_dir=runs_dir, checkpoint_every="1h", **fields))
    finally:
        training.Training.boundary = boundary  # type: ignore[method-assign]


def make(name: str) -> dict[str, Any]:
    run = train(name, "runs", CUT)
    status = run.status()
    assert (status["state"], status["step"]) == ("interrupted", CUT), status
    actions = acts(run)
    for noise in ("tb", "worker.log", ".lock", "control", "videos"):
        path = run.path / noise
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (run.path / "status.json").write_text(json.dumps({**json.loads((run.path / "status.json").read_text()),
                                                      "process": None}))  # fmt: skip
    shutil.rmtree(HERE / name, ignore_errors=True)
    shutil.copytree(run.path, HERE / name)
    uncut = train(name, "uncut")
    ends = {"resumed": fingerprint(kit.resume(run.path)), "uncut": fingerprint(uncut)}
    return {"cut": CUT, "actions": actions, "end_actions": acts(uncut), "fingerprints": ends}


def acts(run: kit.Run) -> list[list[float]]:
    """Return the actions of the run's latest policy for fixed observations."""
    policy = run.policy("latest")
    return policy.predict(fixed(policy.observation_space), deterministic=True)[0].tolist()


def weights() -> None:
    """Save random weights of a tiny TimeSformer for two frames of 32×32 pixels, 31 kB."""
    torchvision(WEIGHTS)  # transformers imports it, and a plain import may fail
    from transformers import TimesformerConfig, TimesformerModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    config = TimesformerConfig(image_size=32, patch_size=16, num_frames=2, **sizes)
    TimesformerModel(config).save_pretrained(HERE / WEIGHTS)


def main() -> None:
    rollouts.EPISODES = 4
    weights()
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)  # so that no config contains a path of this machine
        shutil.copytree(HERE / WEIGHTS, WEIGHTS)
        recorded = {"processor": processor(), "runs": {name: make(name) for name in RUNS}}
    (HERE / "recorded.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
