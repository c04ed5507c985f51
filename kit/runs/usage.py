"""Usage examples for a model card: load the policy and act, with plain Stable-Baselines3 or with onnxruntime."""

from __future__ import annotations

from typing import Any

from kit.encoders.frozen import FrozenView
from kit.trainers import Trainer, algorithm

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


def opens_in_sb3(trainer: Trainer) -> bool:
    """Whether SB3 without kit can load `trainer`'s zip and use it with the env's observations as they are."""
    classes = [trainer.policy_class, trainer.policy_kwargs.get("features_extractor_class")]
    needs_kit = any(cls is not None and cls.__module__.partition(".")[0] == "kit" for cls in classes)
    view = trainer.as_actor().view
    return not needs_kit and not isinstance(view, FrozenView) and view.space == trainer.tensor_env.observation_space


def with_sb3(trainer: Trainer, about: dict[str, Any], algo: str, repo: str, name: str) -> str:
    """Return the example for the SB3 zip. `about`: content of its JSON file; `repo`: user/model; `name`: file stem."""
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
    """Return the example for the ONNX file; arguments as in `with_sb3`."""
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
