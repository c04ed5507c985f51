"""A policy on the Hub: what its users find there, and open with their own tools."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import stable_baselines3 as sb3
import yaml

import kit
from kit.errors import UserError
from kit.runs.run import Run
from tests.stores.hub_server import READ_TOKEN, HubServer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def short_films(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_FILM_S", "0.5")


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = {"n_steps": 32, "batch_size": 64, "n_epochs": 1, "normalize": True}
    runs = str(tmp_path_factory.mktemp("runs"))
    config = kit.RunConfig(env="Reach", n_envs=4, eval_every=256, device="cpu", threads=1, overrides=overrides)
    return kit.train(config, total_steps=256, runs_dir=runs)


def test_a_policy_becomes_a_model_of_the_hub(
    reach: Run, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import ModelCard, constants

    assert kit.push(reach, "hf://me/reach", episodes=2) == f"{hub.endpoint}/me/reach"
    repo = hub.repos["me/reach"]
    assert repo.private and len(repo.log) == 1
    there = {"README.md", "ppo-Reach.zip", "ppo-Reach.json", "config.yaml", "results.json", "replay.mp4"}
    assert there <= set(repo.files)
    assert not list(reach.path.glob("exports")), "the run is left as it was"

    card = ModelCard(repo.files["README.md"].decode())
    (said,) = card.data.eval_results or []
    scores = json.loads(repo.files["results.json"])
    assert (card.data.model_name, said.dataset_name, said.metric_type) == ("PPO", "Reach", "mean_reward")
    assert said.metric_value == f"{scores['mean_reward']:.2f} +/- {scores['std_reward']:.2f}"
    assert scores["n_eval_episodes"] == 2 and scores["is_deterministic"]
    assert yaml.safe_load(repo.files["config.yaml"])["env"] == "Reach"

    text = repo.files["README.md"].decode()
    code = text.split("```python\n")[1].split("```")[0].split("action, _")[0]
    space: dict[str, object] = {}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    exec(code, space)
    assert isinstance(space["model"], sb3.PPO)
    observation = np.linspace(-2, 2, 24)
    theirs, _ = space["model"].predict(space["see"](observation), deterministic=True)  # type: ignore[operator]
    ours, _ = reach.policy().predict(observation, deterministic=True)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_no_secret_of_the_config_is_sent(reach: Run, hub: HubServer, tmp_path: Path) -> None:
    """A password in the store's URL, a token among the task's options: in no file, packed ones opened."""
    import shutil
    import zipfile

    run = Run(shutil.copytree(reach.path, tmp_path / "told"))
    secrets = ("hunter2-s3", "hf_" + "aB3" * 10)
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    config |= {"store": f"s3://me:{secrets[0]}@bucket/runs", "tracker": f"trackio:{secrets[1]}"}
    (run.path / "config.yaml").write_text(yaml.safe_dump(config))
    kit.push(Run(run.path), "hf://me/told", episodes=1)
    files = hub.repos["me/told"].files
    assert b"(hidden)" in files["config.yaml"] and b"s3://" in files["config.yaml"]
    for name, data in files.items():
        parts = [data]
        if name.endswith(".zip"):
            (tmp_path / name).write_bytes(data)
            with zipfile.ZipFile(tmp_path / name) as packed:
                parts = [packed.read(part) for part in packed.namelist()]
        assert not any(secret.encode() in part for secret in secrets for part in parts), name


def test_nothing_is_sent_where_it_must_not(reach: Run, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"is not a model repository on the Hub; write hf://you/model"):
        kit.push(reach, "hf://me/reach/below")
    kit.push(reach, "hf://me/mine", episodes=1)
    hub.repos["me/mine"].files["README.md"] = b"my own words"
    with pytest.raises(UserError, match=r"has a README.md that kit did not write"):
        kit.push(reach, "hf://me/mine", episodes=1)
    assert len(hub.repos["me/mine"].log) == 1
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with pytest.raises(UserError, match="read-only"):
        kit.push(reach, "hf://me/other")
