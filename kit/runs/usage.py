"""The code that a model card shows: load the policy, act with it. With plain Stable-Baselines3, and by onnxruntime."""

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
SCALE = """
known = json.load(open(hf_hub_download("{repo}", "{name}.json")))["normalizer"]
def see(observation, entry="obs"):  # as the policy was trained to see it
    if isinstance(observation, dict):
        return {{key: see(value, f"{{entry}}.{{key}}") for key, value in observation.items()}}
    if entry not in known:
        return observation
    mean, var = np.array(known[entry]["mean"]), np.array(known[entry]["var"])
    scaled = (observation - mean) / np.sqrt(var + known["epsilon"])
    return np.clip(scaled, -known["clip"], known["clip"]).astype(np.float32)
"""
ONNX = """import numpy as np
import onnxruntime
from huggingface_hub import hf_hub_download

policy = onnxruntime.InferenceSession(hf_hub_download("{repo}", "{name}.onnx"))"""


def opens_in_sb3(trainer: Trainer) -> bool:
    """Whether Stable-Baselines3 alone can load `trainer`'s zip and feed it what the env gives: no class of this library
    in the policy, and nothing between the env's observations and the policy's."""
    classes = [trainer.policy_class, trainer.policy_kwargs.get("features_extractor_class")]
    own = any(found is not None and found.__module__.partition(".")[0] == "kit" for found in classes)
    view = trainer.as_actor().view
    return not own and not isinstance(view, FrozenView) and view.space == trainer.tensor_env.observation_space


def with_sb3(trainer: Trainer, about: dict[str, Any], algo: str, repo: str, name: str) -> str:
    """For the zip; `about` is the JSON beside it."""
    stock = algorithm.find(algo).stock
    names = {"package": stock.__module__.partition(".")[0], "algo": stock.__name__, "repo": repo, "name": name}
    lines, seen = [SB3.format(**names)], "observation"
    if "normalizer" in about:
        lines, seen = [*lines, SCALE.format(**names)], "see(observation)"
    if about["memory"]:
        lines.append("state, begins = None, np.array([True])  # again at the beginning of each episode")
        given = f"{seen}, state, begins, deterministic=True"
        lines += [EACH_STEP, f"action, state = model.predict({given})", "begins = np.array([False])"]
    else:
        lines += [EACH_STEP, f"action, _ = model.predict({seen}, deterministic=True)"]
    return "\n".join(lines)


def with_onnx(about: dict[str, Any], repo: str, name: str) -> str:
    """For the ONNX; `about` is the JSON beside it."""
    lines, given = [ONNX.format(repo=repo, name=name)], [f'"{i["name"]}": {_entry(i)}[None]' for i in about["inputs"]]
    if about["memory"]:
        zeros = [f'"{kept["name"]}": np.zeros({(1, *kept["shape"])}, "float32")' for kept in about["memory"]]
        lines.append(f"memory = {{{', '.join(zeros)}}}  # again at the beginning of each episode")
        given.append("**memory")
    named = "{\n    " + ",\n    ".join(given) + ",\n}"
    lines += [EACH_STEP, f"(action, *after) = policy.run(None, {named})", "action = action[0]"]
    return "\n".join([*lines, *(["memory = dict(zip(memory, after))"] if about["memory"] else [])])


def _entry(described: dict[str, Any]) -> str:
    keys = "".join(f'["{key}"]' for key in described["name"].split(".")[1:])
    return f'np.asarray(observation{keys}, "{described["dtype"]}")'
