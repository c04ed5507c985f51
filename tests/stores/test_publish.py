"""Tests of `kit.push`: the model repository, the code of the model card, refusals, secrets."""

from __future__ import annotations

import io
import json
import re
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

import kit
from kit.encoders.convolutions import Simple2DEncoder
from kit.envs.obs import tree_map
from kit.envs.play import play
from kit.errors import UserError
from kit.runs.opponents import make_env
from kit.runs.publish import EACH_STEP
from kit.runs.run import Run
from kit.stores import open_store
from kit.stores.copier import Copier
from tests.envs.corridor import Walk
from tests.envs.slide import Slide
from tests.runs.crash import create
from tests.stores.hub_server import READ_TOKEN, HubServer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def short_films(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_FILM_S", "0.1")


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = {"n_steps": 32, "batch_size": 64, "n_epochs": 1, "normalize": True}
    runs = str(tmp_path_factory.mktemp("runs"))
    config = kit.RunConfig(env="Reach", n_envs=4, eval_every=256, device="cpu", threads=1, overrides=overrides)
    return kit.train(config, total_steps=256, runs_dir=runs)


def test_push_creates_a_model_repository(reach: Run, hub: HubServer) -> None:
    from huggingface_hub import ModelCard

    assert kit.push(reach, "hf://me/reach", episodes=2) == f"{hub.endpoint}/me/reach"
    repo = hub.repos["me/reach"]
    assert repo.private and len(repo.log) == 1
    there = {"README.md", "ppo-Reach.zip", "ppo-Reach.json", "config.yaml", "results.json", "replay.mp4"}
    assert there <= set(repo.files)
    assert not list(reach.path.glob("exports")), "push must not create exports/ in the run"

    card = ModelCard(repo.files["README.md"].decode())
    (said,) = card.data.eval_results or []
    scores = json.loads(repo.files["results.json"])
    assert (card.data.model_name, said.dataset_name, said.metric_type) == ("PPO", "Reach", "mean_reward")
    assert said.metric_value == f"{scores['mean_reward']:.2f} +/- {scores['std_reward']:.2f}"
    assert scores["n_eval_episodes"] == 2 and scores["is_deterministic"]
    assert yaml.safe_load(repo.files["config.yaml"])["env"] == "Reach"


class Parts(Slide):
    """Slide with a Dict observation: place and speed."""

    def __init__(self) -> None:
        super().__init__()
        number = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"place": number, "speed": number})

    def observe(self) -> Any:
        return {"place": self.sim.qpos.clone(), "speed": self.sim.qvel.clone()}


class Fixed(Simple2DEncoder):
    """Stub for a pretrained frozen encoder: small, random weights."""

    def __init__(self, space: Any, features: int = 8, frozen: bool = True) -> None:
        super().__init__(space, features)


ASYMMETRIC = {"cameras": ["top"], "size": 36, "frames": 2, "critic_state": True}
FLIPBOOK = "tests.envs.flipbook:Flipbook"
FROZEN = {"policy_kwargs": {"features_extractor_kwargs": {"frozen": True}}}
CARDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "PPO, scaled": ({"env": "Reach", "overrides": {"normalize": True}}, {"stable_baselines3", "onnxruntime"}),
    "SAC": ({"env": "Reach", "algo": "SAC"}, {"stable_baselines3", "onnxruntime"}),
    "remembering, scaled": (
        {"env": "Reach", "algo": "RecurrentPPO", "overrides": {"normalize": True}}, {"sb3_contrib", "onnxruntime"},
    ),
    "a Dict, scaled": (
        {"env": f"{__name__}:Parts", "overrides": {"normalize": True}}, {"stable_baselines3", "onnxruntime"},
    ),
    "an image": ({"env": FLIPBOOK, "env_options": {"alone": True, "frames": 1}}, {"onnxruntime"}),
    "images and nested numbers": ({"env": "tests.envs.corridor:Corridor"}, {"onnxruntime"}),
    "a critic that sees more": (
        {"env": "ReachVision", "encoder": "simple2dcnn", "env_options": ASYMMETRIC}, {"onnxruntime"},
    ),
    "a critic that knows more numbers, scaled": (
        {"env": "tests.envs.secret:Secret", "overrides": {"normalize": True}}, {"onnxruntime"},
    ),
    "a frozen encoder": (
        {"env": FLIPBOOK, "encoder": "simple2dcnn", "overrides": FROZEN}, {"onnxruntime"},
    ),
}  # fmt: skip
"""Case -> (config fields of the run, packages that the code blocks of its model card use, one per block)."""


@pytest.mark.parametrize("case", CARDS)
def test_the_code_of_a_model_card_computes_the_policys_actions(
    case: str, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every code block of the card is executed on the observations of 4 successive steps."""
    from huggingface_hub import constants

    pytest.importorskip("onnxruntime")
    fields, packages = CARDS[case]
    if case == "a frozen encoder":
        monkeypatch.setattr("kit.encoders.load", lambda name: Fixed)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("kit.runs.publish.find_spec", lambda name: name if name.startswith("onnx") else None)
    run = create(tmp_path, "run", total_steps=64, **fields)
    run = kit.resume(run.path)
    kit.push(run, "hf://me/model", episodes=1)
    card = hub.repos["me/model"].files["README.md"].decode()
    about = json.loads(next(data for name, data in hub.repos["me/model"].files.items() if name.endswith(".json")))
    blocks = [part.split("\n```")[0] for part in card.split("```python\n")[1:]]
    acts_by = [next(name for name in packages if re.search(rf"^(from|import) {name}", code, re.M)) for code in blocks]
    assert sorted(acts_by) == sorted(packages)

    actor, env = run.policy().as_actor(), make_env(run.config, 1, 7)
    spaces = [dict[str, Any]() for _ in blocks]
    for step, played in enumerate(islice(play(env, actor, env.reset(seed=7)), 4)):
        for code, space in zip(blocks, spaces, strict=True):
            space["observation"] = tree_map(lambda x: x[0].numpy(), played.obs)
            exec(code.split(EACH_STEP)[1] if step else code, space)
            np.testing.assert_allclose(space["action"], played.action[0], atol=1e-5)
    session = spaces[acts_by.index("onnxruntime")]["policy"]
    assert [i.name for i in session.get_inputs()] == [i["name"] for i in about["inputs"] + about["memory"]]


def test_push_refuses_a_subfolder_a_users_readme_and_a_read_only_token(
    reach: Run, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_push_to_a_file_is_refused_and_drive_is_google_drive(
    reach: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for target in ("file", "file/below", "/proc/model"):
        with pytest.raises(UserError, match=rf"url='{target}' cannot be written \(.*\); name another folder\."):
            kit.push(reach, target, episodes=1)
    monkeypatch.setenv("KIT_DRIVE_ROOT", str(tmp_path / "drive"))
    with pytest.raises(UserError, match=r"'drive:models/reach' needs Google Drive at .*drive; on Colab run"):
        kit.push(reach, "drive:models/reach", episodes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    Path("drive").mkdir()
    assert kit.push(reach, "drive:models/reach", episodes=1) == str(tmp_path / "drive/models/reach")
    assert Path("drive/models/reach/ppo-Reach.zip").is_file()


SECRET = "hf_" + "aB3dE6gH9j" * 3


class Keyed(Walk):
    """Env with a secret in its options."""

    def __init__(self, key: str = "", **options: Any) -> None:
        super().__init__(**options)


def test_no_secret_is_uploaded_and_the_run_can_be_resumed(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches all files of the pushed model, also inside its zip, and of the copied run."""
    monkeypatch.setattr("kit.runs.publish.find_spec", lambda package: None)  # no video and no ONNX file, to save time
    run = kit.train(
        env=f"{__name__}:Keyed", env_options={"key": f"Bearer {SECRET}", "length": 4}, run_name="keyed", eval_every=0,
        total_steps=64, n_envs=2, runs_dir=str(tmp_path), overrides={"n_steps": 16, "batch_size": 32, "n_epochs": 1},
    )  # fmt: skip
    named = run.config.replace(store=f"s3://bucket/{SECRET}", tracker=f"wandb:{SECRET}")
    (run.path / "config.yaml").write_text(named.to_yaml())
    copied = tmp_path / "store"
    kit.push(Run(run.path), "hf://me/keyed", episodes=1)
    copier = Copier(run.path, open_store(str(copied), write=True), "me")
    copier.run_pass(final=True)
    copier.close()

    sent = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    sent |= hub.repos["me/keyed"].files
    with zipfile.ZipFile(io.BytesIO(sent["ppo-tests.stores.test-publish-Keyed.zip"])) as packed:
        sent |= {name: packed.read(name) for name in packed.namelist()}
    assert {"keyed/config.yaml", "config.yaml", "ppo-tests.stores.test-publish-Keyed.json", "README.md"} <= set(sent)
    assert [name for name, data in sent.items() if SECRET.encode() in data] == []
    assert SECRET in (run.path / "config.yaml").read_text(), "the local config must keep the secret"

    resumed = {"runs_dir": str(tmp_path / "there"), "total_steps": 128}
    with pytest.raises(UserError, match=r"env_options=\{'key': 'Bearer \(hidden\)'.* lack secrets, which are not"):
        kit.resume(f"{copied}/keyed", **resumed)
    with pytest.raises(UserError, match=r"env_options=.* differs from the run's"):
        kit.resume(f"{copied}/keyed", env_options={"key": "Bearer x", "length": 5}, **resumed)
    there = kit.resume(f"{copied}/keyed", env_options={"key": "Bearer other", "length": 4}, store=None, **resumed)
    assert there.status()["state"] == "finished" and there.status()["step"] == 128
