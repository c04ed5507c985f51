"""A policy as a model on the Hugging Face Hub, as its users expect one: card, scores, video, and files to load."""

from __future__ import annotations

import datetime
import json
import re
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kit
from kit.errors import UserError
from kit.runs.export import export
from kit.runs.filming import record
from kit.runs.rollouts import evaluate
from kit.runs.run import Run, opened
from kit.stores.card import MARK, curve
from kit.stores.redact import TEXT, redact_bytes
from kit.trainers import algorithm

if TYPE_CHECKING:
    from kit.stores.hub import HubStore

EPISODES, FILMED = 100, 3
USE = """## Use

With Stable-Baselines3:

```python
import json
import numpy as np
from huggingface_hub import hf_hub_download  # or load_from_hub of huggingface_sb3
from {package} import {algo}

model = {algo}.load(hf_hub_download("{repo}", "{name}.zip"))
about = json.load(open(hf_hub_download("{repo}", "{name}.json")))
{see}
action, _ = model.predict(see(observation), deterministic=True)
```

A zip of Stable-Baselines3 holds pickles: open it if you trust whoever trained it. {onnx}`{name}.json` says what every
number of the observation and of the action means.

Trained with [kit]({home}) {version}; `config.yaml` trains another: `kit train config.yaml`.
"""
SEE_NORMALIZED = """known = about["normalizer"]
def see(observation):  # as the policy was trained to see it
    scaled = (observation - np.array(known["obs"]["mean"])) / np.sqrt(np.array(known["obs"]["var"]) + known["epsilon"])
    return np.clip(scaled, -known["clip"], known["clip"]).astype(np.float32)
"""
SEE = """def see(observation):
    return observation
"""


def push(
    run: Run | str | Path, url: str, step: int | str | None = None, episodes: int = EPISODES, trust: bool = False
) -> str:
    """Put the policy of `step` (default: the best) into the model repository `url`, "hf://you/model", as one commit:
    SB3's zip, and ONNX where the extra `deploy` is there, with a JSON of what every number means, the run's
    config, an evaluation of `episodes`, a film, and a model card that says all that. A new repository is private.
    Returns its address. `trust` as in `kit.resume`. Raises `UserError`; nothing is sent then, and no README that
    somebody wrote is replaced."""
    import huggingface_hub

    from kit.stores.hub import HubStore

    run = opened(run, trust)
    if not re.fullmatch(r"hf://[^/]+/[^/]+/?", url):
        raise UserError(f"url={url!r} is not a model repository on the Hub; write hf://you/model.")
    store = HubStore(url, write=True)
    if MARK.encode() not in (store.read_or_none("README.md") or MARK.encode()):
        raise UserError(f"url={url!r} has a README.md that kit did not write; name another repository.")
    with tempfile.TemporaryDirectory(prefix="kit-push-") as folder:
        made = files(run, store, step, episodes, Path(folder))
        store.put(
            {name: _clean(name, content) for name, content in made.items()},
            message=f"{run.config.algo} on {run.config.env}",
        )
    return f"{huggingface_hub.constants.ENDPOINT}/{store.repo}"


def files(run: Run, store: HubStore, step: int | str | None, episodes: int, folder: Path) -> dict[str, Path | bytes]:
    """What is put there, by its name; made in `folder`."""
    config, number = run.config, run.find(step).step
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{config.algo.lower()}-{config.env}").strip("-")
    scores = evaluate(run, episodes, number)
    found: dict[str, Path | bytes] = {
        f"{name}.zip": export(run, "sb3", number, folder / f"{name}.zip"),
        f"{name}.json": folder / f"{name}.json",
        "config.yaml": run.path / "config.yaml",
        "results.json": json.dumps(results(scores), indent=1).encode(),
    }
    if find_spec("onnx") and find_spec("onnxruntime"):
        found[f"{name}.onnx"] = export(run, "onnx", number, folder / f"{name}.onnx")
    if find_spec("mediapy") and find_spec("imageio_ffmpeg"):
        found["replay.mp4"] = record(run, number, episodes=FILMED, path=folder / "replay.mp4")
    if drawn := curve(run.rows()):
        found["curve.png"] = drawn
    about = json.loads((folder / f"{name}.json").read_text())
    found["README.md"] = card(run, number, store.repo, name, scores, about, found).encode()
    return found


def _clean(name: str, content: Path | bytes) -> Path | bytes:
    """Without secrets, if it is text."""
    if not name.endswith(TEXT):
        return content
    return redact_bytes(content if isinstance(content, bytes) else content.read_bytes(), name)


def results(scores: dict[str, Any]) -> dict[str, Any]:
    """As huggingface_sb3 writes results.json."""
    return {
        "mean_reward": scores["mean_return"], "std_reward": scores["std_return"], "is_deterministic": True,
        "n_eval_episodes": scores["episodes"], "eval_datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        **{name: value for name, value in scores.items() if name not in ("mean_return", "std_return", "episodes")},
    }  # fmt: skip


def card(
    run: Run, step: int, repo: str, name: str, scores: dict[str, Any], about: dict[str, Any], there: dict[str, Any]
) -> str:
    """The model card, in Markdown: what the Hub reads of it is huggingface_sb3's `model-index`."""
    import yaml

    config, reached = run.config, f"{scores['mean_return']:.2f} +/- {scores['std_return']:.2f}"
    head = {
        "library_name": "stable-baselines3",
        "pipeline_tag": "reinforcement-learning",
        "tags": [config.env, "deep-reinforcement-learning", "reinforcement-learning", "stable-baselines3", "robotics"],
        "model-index": [{"name": config.algo, "results": [{
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": config.env, "type": config.env},
            "metrics": [{"type": "mean_reward", "value": reached, "name": "mean_reward", "verified": False}],
        }]}],
    }  # fmt: skip
    rows = {"return": reached, "episodes": scores["episodes"], "steps of training": f"{step:,}", "seed": config.seed}
    if scores["success_rate"] is not None:
        rows["success"] = f"{100 * scores['success_rate']:.1f} %"
    table = "\n".join(f"| {what} | {value} |" for what, value in rows.items())
    shown = {"replay.mp4": "The policy plays in [replay.mp4](replay.mp4).", "curve.png": "![learning curve](curve.png)"}
    parts = [f"---\n{yaml.safe_dump(head, sort_keys=False)}---", MARK, f"# {config.algo} on {config.env}"]
    parts += [f"Evaluated without exploration noise:\n\n| | |\n|---|---|\n{table}"]
    parts += [text for file, text in shown.items() if file in there]
    onnx = "The same policy without any pickle, normaliser inside: " if f"{name}.onnx" in there else ""
    onnx += f"`{name}.onnx`, for onnxruntime. " if onnx else ""
    stock = algorithm.find(config.algo).stock
    package, algo = stock.__module__.partition(".")[0], stock.__name__
    see = SEE_NORMALIZED if "obs" in about.get("normalizer", {}) else SEE
    parts.append(
        USE.format(
            package=package, algo=algo, repo=repo, name=name, see=see, onnx=onnx, home=kit.HOME, version=kit.__version__
        )
    )
    return "\n\n".join(parts)
