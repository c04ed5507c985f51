"""Publish a policy as a model on the Hugging Face Hub, with model card, scores, video and loadable files."""

from __future__ import annotations

import datetime
import json
import re
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kit
from kit.encoders.frozen import FrozenView
from kit.errors import UserError, need
from kit.format.files import write_atomic
from kit.format.leftovers import temporary
from kit.runs.evaluation import evaluate
from kit.runs.export import export
from kit.runs.run import Run, opened
from kit.runs.video import record
from kit.stores.base import StoreError, Unusable
from kit.stores.folder import DirectoryStore
from kit.stores.model_card import MARK, curve
from kit.stores.redact import TEXT, one_line, redact_bytes
from kit.trainers import Trainer, algorithm

EPISODES, VIDEO_EPISODES = 100, 3
USE = """## Use

{code}

`observation` is an observation of the env. `{name}.json` describes every number in it and in the action.{warning}

Trained with [kit]({home}) {version}; to train it again: `kit train config.yaml`.
"""
WARNING = " A zip of Stable-Baselines3 holds pickles: open it only if you trust its author."
EACH_STEP = "# at every step"
SB3 = """import json
import numpy as np
from huggingface_hub import hf_hub_download  # or load_from_hub of huggingface_sb3
from {package} import {algo}

model = {algo}.load(hf_hub_download("{repo}", "{name}.zip"))"""
NORMALIZE = """
stats = json.load(open(hf_hub_download("{repo}", "{name}.json")))["normalizer"]
def normalize(observation, field="obs"):  # with the statistics of training
    if isinstance(observation, dict):
        return {{key: normalize(value, f"{{field}}.{{key}}") for key, value in observation.items()}}
    if field not in stats:
        return observation
    mean, var = np.array(stats[field]["mean"]), np.array(stats[field]["var"])
    scaled = (observation - mean) / np.sqrt(var + stats["epsilon"])
    return np.clip(scaled, -stats["clip"], stats["clip"]).astype(np.float32)
"""
ONNX = """import numpy as np
import onnxruntime
from huggingface_hub import hf_hub_download

policy = onnxruntime.InferenceSession(hf_hub_download("{repo}", "{name}.onnx"))"""


def push(
    run: Run | str | Path, url: str, step: int | str | None = None, episodes: int = EPISODES, trust: bool = False
) -> str:
    """Publish the policy of `step` (default: the best) to the model repository `url`, "hf://you/model"; return its URL.

    Makes one commit with an SB3 zip, an ONNX file if the extra `deploy` is installed, a JSON file that describes inputs
    and outputs, the run's config, an evaluation over `episodes`, a video, and a model card. A new repository is
    private. A README.md that kit did not write is never replaced. `url` may also be a folder or drive:FOLDER, in which
    the same files are written; then its path is returned. `trust` as in `kit.resume`. Raises `UserError` before
    anything is uploaded.
    """
    run = opened(run, trust)
    if url.lower().startswith("drive:"):
        url = str(DirectoryStore(url, write=True).root)
    if "://" not in url:
        return str(_to_folder(run, Path(url).expanduser(), step, episodes))
    import huggingface_hub

    from kit.stores.hub import HubStore

    if not re.fullmatch(r"hf://[^/]+/[^/]+/?", url):
        raise UserError(f"url={url!r} is not a model repository on the Hub; write hf://you/model.")
    store = HubStore(url, write=True)
    if MARK.encode() not in (store.read_or_none("README.md") or MARK.encode()):
        raise UserError(f"url={url!r} has a README.md that kit did not write; name another repository.")
    with tempfile.TemporaryDirectory(prefix="kit-push-") as folder:
        contents = files(run, store.repo, step, episodes, Path(folder))
        redacted = {name: _redacted(name, content) for name, content in contents.items()}
        try:
            store.put(redacted, message=f"{run.config.algo} on {run.config.env}")
        except StoreError as error:
            raise Unusable(url, f"cannot be written ({one_line(error)}); try again later.") from None
    return f"{huggingface_hub.constants.ENDPOINT}/{store.repo}"


def _to_folder(run: Run, to: Path, step: int | str | None, episodes: int) -> Path:
    """Write the files of a model repository to the folder `to`; return it. Raises `UserError` if `to` holds others."""
    card = to / "README.md"
    with ExitStack() as stack:
        try:
            if to.exists() and any(to.iterdir()) and MARK not in (card.read_text() if card.exists() else ""):
                raise UserError(f"url={str(to)!r} holds files that kit did not write; name another folder.")
            to.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".kit-push-", dir=to.parent))
            if to.exists():
                stack.enter_context(temporary(to))  # whether files can be written there, before the evaluation
        except OSError as error:
            raise UserError(f"url={str(to)!r} cannot be written ({error.strerror}); name another folder.") from None
        contents = files(run, "", step, episodes, Path(folder))
        to.mkdir(exist_ok=True)
        for name, content in contents.items():
            redacted = _redacted(name, content)
            write_atomic(to / name, redacted if isinstance(redacted, bytes) else redacted.read_bytes())
    return to


def files(run: Run, repo: str, step: int | str | None, episodes: int, folder: Path) -> dict[str, Path | bytes]:
    """Make the files of the model repository `repo` ("user/model", or "" for a local folder); return name -> file."""
    config, number = run.config, run.find(step).step
    trainer = run.policy(number)
    if not opens_in_sb3(trainer):
        need("onnx", "deploy"), need("onnxruntime", "deploy")  # otherwise the published policy works only with kit
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{config.algo.lower()}-{config.env}").strip("-")
    scores = evaluate(run, episodes, number)
    contents: dict[str, Path | bytes] = {
        f"{name}.zip": export(run, "sb3", number, folder / f"{name}.zip"),
        f"{name}.json": folder / f"{name}.json",
        "config.yaml": run.path / "config.yaml",
        "results.json": json.dumps(results(scores), indent=1).encode(),
    }
    if find_spec("onnx") and find_spec("onnxruntime"):
        contents[f"{name}.onnx"] = export(run, "onnx", number, folder / f"{name}.onnx")
    if find_spec("mediapy") and find_spec("imageio_ffmpeg"):
        contents["replay.mp4"] = record(run, number, episodes=VIDEO_EPISODES, path=folder / "replay.mp4")
    if plot := curve(run.rows()):
        contents["curve.png"] = plot
    about = json.loads((folder / f"{name}.json").read_text())
    blocks = []
    if opens_in_sb3(trainer):
        blocks.append(("With Stable-Baselines3:", with_sb3(trainer, about, config.algo, repo, name)))
    if f"{name}.onnx" in contents:
        heading = "With onnxruntime (no pickle; the model includes the normaliser):"
        blocks.append((heading, with_onnx(about, repo, name)))
    card = model_card(run, number, name, scores, blocks, contents)
    contents["README.md"] = (card if repo else _without_download(card)).encode()
    return contents


def _without_download(card: str) -> str:
    """Return the model card with examples that read local files instead of downloading them."""
    card = re.sub(r"from huggingface_hub import .*\n", "", card)
    return re.sub(r'hf_hub_download\("", ("[^"]*")\)', r"\1", card)


def _redacted(name: str, content: Path | bytes) -> Path | bytes:
    if not name.endswith(TEXT):
        return content
    return redact_bytes(content if isinstance(content, bytes) else content.read_bytes(), name)


def results(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the scores under the keys of huggingface_sb3's results.json."""
    return {
        "mean_reward": scores["mean_return"], "std_reward": scores["std_return"], "is_deterministic": True,
        "n_eval_episodes": scores["episodes"], "eval_datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        **{name: value for name, value in scores.items() if name not in ("mean_return", "std_return", "episodes")},
    }  # fmt: skip


def model_card(
    run: Run, step: int, name: str, scores: dict[str, Any], blocks: list[tuple[str, str]], contents: dict[str, Any]
) -> str:
    """Return the model card in Markdown. `blocks`: (heading, example code) pairs; `contents`: the repository's files.

    The `model-index` in its YAML header has huggingface_sb3's format; the Hub shows the score from it.
    """
    import yaml

    config, mean_return = run.config, f"{scores['mean_return']:.2f} +/- {scores['std_return']:.2f}"
    head = {
        "library_name": "stable-baselines3",
        "pipeline_tag": "reinforcement-learning",
        "tags": [config.env, "deep-reinforcement-learning", "reinforcement-learning", "stable-baselines3", "robotics"],
        "model-index": [{"name": config.algo, "results": [{
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": config.env, "type": config.env},
            "metrics": [{"type": "mean_reward", "value": mean_return, "name": "mean_reward", "verified": False}],
        }]}],
    }  # fmt: skip
    rows = {"return": mean_return, "episodes": scores["episodes"], "training steps": f"{step:,}", "seed": config.seed}
    if scores["success_rate"] is not None:
        rows["success"] = f"{100 * scores['success_rate']:.1f} %"
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    shown = {"replay.mp4": "The policy plays in [replay.mp4](replay.mp4).", "curve.png": "![learning curve](curve.png)"}
    parts = [f"---\n{yaml.safe_dump(head, sort_keys=False)}---", MARK, f"# {config.algo} on {config.env}"]
    parts += [f"Evaluated without exploration noise:\n\n| | |\n|---|---|\n{table}"]
    parts += [text for file, text in shown.items() if file in contents]
    code = "\n\n".join(f"{heading}\n\n```python\n{lines}\n```" for heading, lines in blocks)
    warning = WARNING if len(blocks) == 2 or f"{name}.onnx" not in contents else ""
    parts.append(USE.format(code=code, name=name, warning=warning, home=kit.HOME, version=kit.__version__))
    return "\n\n".join(parts)


def opens_in_sb3(trainer: Trainer) -> bool:
    """Whether SB3 can load `trainer`'s zip without kit and apply it to the env's unprocessed observations."""
    classes = [trainer.policy_class, trainer.policy_kwargs.get("features_extractor_class")]
    needs_kit = any(cls is not None and cls.__module__.partition(".")[0] == "kit" for cls in classes)
    view = trainer.as_actor().view
    return not needs_kit and not isinstance(view, FrozenView) and view.space == trainer.tensor_env.observation_space


def with_sb3(trainer: Trainer, about: dict[str, Any], algo: str, repo: str, name: str) -> str:
    """Return example code for the SB3 zip. `about`: content of its JSON file; `repo`: user/model; `name`: file stem."""
    stock = algorithm.find(algo).stock
    names = {"package": stock.__module__.partition(".")[0], "algo": stock.__name__, "repo": repo, "name": name}
    lines, obs = [SB3.format(**names)], "observation"
    if "normalizer" in about:
        lines, obs = [*lines, NORMALIZE.format(**names)], "normalize(observation)"
    if about["memory"]:
        lines.append("state, episode_start = None, np.array([True])  # repeat at the start of each episode")
        arguments = f"{obs}, state, episode_start, deterministic=True"
        lines += [EACH_STEP, f"action, state = model.predict({arguments})", "episode_start = np.array([False])"]
    else:
        lines += [EACH_STEP, f"action, _ = model.predict({obs}, deterministic=True)"]
    return "\n".join(lines)


def with_onnx(about: dict[str, Any], repo: str, name: str) -> str:
    """Return example code for the ONNX file; arguments as in `with_sb3`."""
    lines, inputs = [ONNX.format(repo=repo, name=name)], [f'"{i["name"]}": {_field(i)}[None]' for i in about["inputs"]]
    if about["memory"]:
        zeros = [f'"{state["name"]}": np.zeros({(1, *state["shape"])}, "float32")' for state in about["memory"]]
        lines.append(f"hidden_state = {{{', '.join(zeros)}}}  # repeat at the start of each episode")
        inputs.append("**hidden_state")
    feed = "{\n    " + ",\n    ".join(inputs) + ",\n}"
    lines += [EACH_STEP, f"(action, *next_state) = policy.run(None, {feed})", "action = action[0]"]
    return "\n".join([*lines, *(["hidden_state = dict(zip(hidden_state, next_state))"] if about["memory"] else [])])


def _field(entry: dict[str, Any]) -> str:
    """Return Python code that reads one observation field as an array."""
    keys = "".join(f'["{key}"]' for key in entry["name"].split(".")[1:])
    return f'np.asarray(observation{keys}, "{entry["dtype"]}")'
