"""Check `overrides` from YAML or JSON, spelled as in SB3 and rl-zoo, and convert them to keyword arguments."""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from kit.config import with_point
from kit.errors import UserError, check_names, check_whole
from kit.presets import POLICY_KEYS, Row
from kit.trainers.algorithm import Algorithm

NOT_OVERRIDES = {
    *("policy", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"),
    *("rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer_class", "replay_buffer_kwargs"),
    *("action_noise", "optimize_memory_usage"),
}
"""Parameters of SB3's constructors that are not valid in `overrides`: RunConfig or kit sets them, or a file cannot
hold their values."""

NORMALIZE = {"norm_obs": bool, "norm_reward": bool, "update_obs": bool,
             "clip_obs": float, "clip_reward": float, "gamma": float, "epsilon": float}  # fmt: skip
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
POLICY_KWARGS = ("net_arch", "activation_fn", "ortho_init", "log_std_init", "full_std", "use_expln", "squash_output",
                 "clip_mean", "n_critics", "share_features_extractor", "normalize_images", "features_extractor_kwargs",
                 "lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm")  # fmt: skip

INF = float("inf")
RANGES = {
    **dict.fromkeys(("learning_rate", "gamma", "gae_lambda", "tau", "clip_range"), (0.0, 1.0)),
    **dict.fromkeys(("teacher_until", "random_share", "normalize gamma"), (0.0, 1.0)),
    **dict.fromkeys(("clip_range_vf", "vf_coef", "max_grad_norm", "target_kl", "rms_prop_eps"), (0.0, INF)),
    **dict.fromkeys(("teacher_noise", "state_coef", "exploration_noise"), (0.0, INF)),
    **dict.fromkeys(("target_policy_noise", "target_noise_clip"), (0.0, INF)),
    **dict.fromkeys(("normalize clip_obs", "normalize clip_reward", "normalize epsilon"), (0.0, INF)),
}
"""Hyperparameter -> (smallest, largest) valid value. For a schedule, only the start value is checked."""

COUNTS = {
    **dict.fromkeys(("n_steps", "batch_size", "n_epochs", "buffer_size", "train_freq"), 1),
    **dict.fromkeys(("policy_delay", "target_update_interval", "stats_window_size"), 1),
    **{"learning_starts": 0, "gradient_steps": -1, "random_shift": 0, "critic_warmup": 0, "n_sampled_goal": 0},
}
"""Hyperparameters that must be whole numbers -> smallest valid value."""

LEARNT = ("ent_coef", "target_entropy")
"""Hyperparameters of SAC that may be a text: auto, a number, and for ent_coef auto_0.1, to start with 0.1."""


def complete(algorithm: Algorithm, row: Row, overrides: Mapping[str, Any]) -> Row:
    """Merge a preset's `row` with the user's `overrides` and check the result. Raises `UserError`.

    `policy_kwargs` are merged key by key, not replaced.
    """
    hyper = nested({name: value for name, value in row.items() if name != "n_envs"})
    policy, requested = hyper.get("policy_kwargs", {}), overrides.get("policy_kwargs", {})
    hyper = {**hyper, **overrides}
    if policy and isinstance(requested, dict):
        hyper["policy_kwargs"] = policy | requested
    converted, known = arguments(algorithm, hyper), hyperparameter_types(algorithm)
    least = dict(COUNTS)
    if "train_freq" not in known:  # imitation takes no env steps, so -1 (one gradient step per env step) is invalid
        least["gradient_steps"] = 1
    # a minibatch of one has no standard deviation, by which advantages are divided
    if "n_epochs" in known and converted.get("normalize_advantage", True):
        least["batch_size"] = 2
    for name, value in converted.items():
        if name in least and not isinstance(value, tuple):  # train_freq may be (1, "episode")
            check_whole(f"overrides {name}", value, least[name])
    return hyper


def nested(row: Row) -> Row:
    """Move the network settings of `row` (`POLICY_KEYS`) into `policy_kwargs`, where SB3 expects them."""
    policy = {name: row[name] for name in POLICY_KEYS if name in row}
    if not isinstance(row.get("policy_kwargs", {}), dict):
        return row
    others = {name: value for name, value in row.items() if name not in POLICY_KEYS}
    return others | ({"policy_kwargs": others.get("policy_kwargs", {}) | policy} if policy else {})


def arguments(algorithm: Algorithm, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `overrides` as keyword arguments of the algorithm's class.

    Raises `UserError` for the first unknown name, wrong type or invalid value.
    """
    known = hyperparameter_types(algorithm)
    check_names("overrides", overrides, algorithm.name, sorted([*known, "normalize"]))
    result: dict[str, Any] = {}
    for name, value in overrides.items():
        if name == "normalize":
            result[name] = _normalize(value)
        elif name == "policy_kwargs":
            result[name] = _policy_kwargs(algorithm, value)
        else:
            result[name] = _argument(name, value, known[name])
    return result


def hyperparameter_docs(algorithm: Algorithm) -> dict[str, tuple[Any, str]]:
    """Return hyperparameter -> (default, description), from the signatures and docstrings of SB3's and kit's classes.

    The default is None if it is not a number or a text.
    """
    classes = (algorithm.policy, algorithm.stock, algorithm.trainer)
    documented = [cls for subclass in classes for cls in reversed(subclass.__mro__)]
    docs = [inspect.cleandoc(cls.__doc__ or "") for cls in documented]
    descriptions = {name: " ".join(text.split()) for doc in docs for name, text in PARAMETER.findall(doc)}
    signature = {name: p.default for cls in documented for name, p in inspect.signature(cls).parameters.items()}
    names = [name for name in hyperparameter_types(algorithm) if name != "policy_kwargs"]
    names += [name for name in POLICY_KEYS if name in inspect.signature(algorithm.policy).parameters]
    defaults = {name: value if isinstance(value := signature[name], int | float | str) else None for name in names}
    normalize = f"running normalisation of observations and rewards: true, false, or some of {', '.join(NORMALIZE)}"
    return {name: (defaults[name], descriptions.get(name, "")) for name in names} | {"normalize": (False, normalize)}


PARAMETER = re.compile(r"^:param (\w+): *(.*(?:\n[ ]+.*)*)", re.MULTILINE)
"""Name and description of a parameter in a Sphinx docstring."""


def hyperparameter_types(algorithm: Algorithm) -> dict[str, Any]:
    """Return hyperparameter -> type annotation, without `normalize`."""
    parameters = inspect.signature(algorithm.stock).parameters
    names = [name for name in algorithm.used or parameters if name not in NOT_OVERRIDES]
    return {name: parameters[name].annotation for name in names} | dict(algorithm.own)


def _argument(name: str, value: Any, annotation: Any) -> Any:
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    kinds = tuple(typing.get_origin(kind) or kind for kind in kinds)
    # SB3 annotates what may be a schedule as a callable
    accepts_schedule = any(kind not in (bool, int, float, str, dict, tuple, types.NoneType) for kind in kinds)
    if accepts_schedule and isinstance(value, str):
        return _schedule(name, value)
    _check_range(name, value, value)
    if isinstance(value, str) and name in LEARNT and value != "auto":
        start = value.removeprefix("auto_") if name == "ent_coef" else value
        if not _is_number(start) or (start != value and float(start) <= 0):
            raise UserError(f"overrides {name}={value!r} must be a number, or auto.")
    if isinstance(value, list) and tuple in kinds:
        return tuple(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds and int not in kinds:
        return float(value)
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    if not any(type(value) is kind for kind in kinds):
        expected = " or ".join(TYPE_NAMES[kind] for kind in kinds if kind in TYPE_NAMES)
        raise UserError(f"overrides {name}={value!r} must be {expected}{with_point(value)}.")
    return value


TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", types.NoneType: "null",
              tuple: "a list", dict: "a mapping"}  # fmt: skip


def _schedule(name: str, text: str) -> LinearSchedule:
    """Parse a linear schedule such as "lin_0.0003", which falls from 0.0003 to 0 over the run."""
    match = re.fullmatch(r"lin_(\d*\.?\d+(?:[eE][-+]?\d+)?)", text)
    if not match:
        remedy = with_point(text) or '; write a number, or "lin_0.0003" to fall to 0'
        raise UserError(f"overrides {name}={text!r} is not a schedule{remedy}.")
    _check_range(name, text, float(match[1]))
    return LinearSchedule(float(match[1]), 0.0, 1.0)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_range(name: str, written: Any, value: Any) -> None:
    """Raise `UserError` if `value`, spelled `written` by the user, is outside its `RANGES`."""
    low, high = RANGES.get(name, (-INF, INF))
    if type(value) in (int, float) and not low <= value <= high:
        most = f" and at most {high:g}" if high < INF else ""
        raise UserError(f"overrides {name}={written!r} is out of range; it has to be at least {low:g}{most}.")


def _normalize(value: Any) -> bool | dict[str, Any]:
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise UserError(f"overrides normalize={value!r} is not true, false or a mapping of {', '.join(NORMALIZE)}.")
    for name, setting in value.items():
        if name not in NORMALIZE:
            raise UserError(f"overrides normalize {name}={setting!r} is unknown; valid are {', '.join(NORMALIZE)}.")
    return {name: _argument(f"normalize {name}", setting, NORMALIZE[name]) for name, setting in value.items()}


def _policy_kwargs(algorithm: Algorithm, value: Any) -> dict[str, Any]:
    known = [name for name in inspect.signature(algorithm.policy).parameters if name in POLICY_KWARGS]
    if not isinstance(value, dict):
        raise UserError(f"overrides policy_kwargs={value!r} is not a mapping; valid names are {', '.join(known)}.")
    result = dict(value)
    for name in value:
        if name not in known:
            raise UserError(f"overrides policy_kwargs {name}={value[name]!r} is unknown; valid are {', '.join(known)}.")
        if name not in ("activation_fn", "net_arch"):
            annotation = inspect.signature(algorithm.policy).parameters[name].annotation
            result[name] = _argument(f"policy_kwargs {name}", value[name], annotation)
    if "activation_fn" in result:
        name = result["activation_fn"]
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise UserError(f"overrides activation_fn={name!r} is unknown; valid are {', '.join(ACTIVATIONS)}.")
        result["activation_fn"] = ACTIVATIONS[name]
    if "n_critics" in result:
        check_whole("overrides policy_kwargs n_critics", result["n_critics"], 1)
    if "net_arch" in result:
        _check_net_arch(algorithm, result["net_arch"])
    return result


def _check_net_arch(algorithm: Algorithm, value: Any) -> None:
    names = set(algorithm.heads)
    lists = value.values() if isinstance(value, dict) and set(value) == names else [value]
    if not all(isinstance(widths, list) and all(type(w) is int and w > 0 for w in widths) for widths in lists):
        raise UserError(
            f"overrides net_arch={value!r} is not a network; write its layers' widths, such as [64, 64], "
            f"or one such list for each of {' and '.join(sorted(names))}."
        )
