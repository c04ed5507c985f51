"""Check what a task's methods return: shapes, dtypes, devices, finite values.

A failed check raises a `UserError`: the method, what it returned, what was expected, and how to correct it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from kit.envs.contract import TOTALS
from kit.envs.obs import Obs, leaves
from kit.envs.task import Task
from kit.errors import UserError, suggest


def check_spaces(name: str, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
    """Raise `UserError` if a space of the env `name` is one that SB3's policies do not fit."""
    if not isinstance(action_space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        kinds = "Box, Discrete, MultiDiscrete or MultiBinary"
        raise UserError(f"env={name!r}: action_space is a {type(action_space).__name__}; make it a {kinds}.")
    for what, space in (*leaves("observation_space", observation_space), *leaves("action_space", action_space)):
        start = np.ravel(getattr(space, "start", 0))
        if start.any():
            text = ", ".join(map(str, start))
            raise UserError(f"env={name!r}: {what} starts at {text}; let its numbers start at 0.")
    if not isinstance(action_space, spaces.Box):
        return
    if not np.issubdtype(action_space.dtype, np.floating):
        hint = "make it MultiDiscrete, or a Box of float32 whose numbers the env rounds"
        raise UserError(f"env={name!r}: action_space is a Box of {action_space.dtype}; {hint}.")
    if not action_space.is_bounded():
        hint = "give its Box finite low and high, or wrap the env in gymnasium.wrappers.TransformAction with such a Box"
        raise UserError(f"env={name!r}: action_space has no finite bounds; {hint}.")


SPACES, TIMES = ("observation_space", "action_space"), ("episode_steps", "control_dt_s")
"""Attributes that `kit.envs.Task` declares without a value; `build` may still set those of `TIMES`."""


def check_declared(task: Task, attributes: tuple[str, ...]) -> None:
    """Raise `UserError` if `task` lacks one of `attributes`."""
    for attribute in attributes:
        if not hasattr(task, attribute):
            raise UserError(f"env={task.name!r} has no {attribute}; set it in the class or in its constructor.")


def check_first_obs(task: Task, obs: Obs, n: int) -> None:
    """Check the spaces and step counts of `task`, and what `observe` returned for `n` envs. Raises `UserError`."""
    env = task.name
    check_spaces(env, task.observation_space, task.action_space)
    for name in ("episode_steps", "substeps"):
        if (value := getattr(task, name, 1)) < 1:
            raise UserError(f"env={env!r}: {name}={value} must be at least 1.")
    _check_obs(task, "observe()", task.observation_space, obs, n, task.delivered if task.obs_groups else None)


def check_first_step(
    task: Task,
    n: int,
    reward: torch.Tensor,
    terminated: torch.Tensor,
    success: torch.Tensor | None,
    failed: torch.Tensor | None,
    info: Mapping[str, torch.Tensor],
) -> None:
    """Check what the methods of `task` returned after a step of `n` envs. Raises `UserError`."""
    require(task, "reward()", reward, (n,))
    require(task, "terminated()", terminated, (n,), torch.bool)
    for name, value in (("success()", success), ("failed()", failed)):
        if value is not None:
            require(task, name, value, (n,), torch.bool)
    require_finite(task, "reward()", reward, failed)
    for name, value in info.items():
        require(task, f"info()[{name!r}]", value, (n,))
        if name in TOTALS:
            raise UserError(f"env={task.name!r}: info() names a metric {name!r}, which the env adds; rename it.")
    rate = () if success is None else ("success_rate",)
    valid = ("mean_return", *rate, "std_return", "mean_length", *info)
    if task.score not in valid:
        what = f"score={task.score!r} is no metric of its evaluations"
        raise UserError(f"env={task.name!r}: {what}; {suggest(task.score, valid)}.")
    if task.curriculum is not None and (measure := task.curriculum.measure) not in (
        measured := (*TOTALS, *(() if success is None else ("success",)), *info)
    ):
        what = f"the curriculum measures {measure!r}, which the task's info lacks"
        raise UserError(f"env={task.name!r}: {what}; {suggest(measure, measured)}.")


def _check_obs(
    task: Task, what: str, space: gymnasium.Space, obs: Any, n: int, needed: tuple[str, ...] | None = None
) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            fail(task, what, _kind(obs), f"a dict with the keys {', '.join(space)}", "return {name: tensor}")
        for name in space if needed is None else needed:
            if name not in obs:
                got = f"the keys {', '.join(map(str, obs)) or 'none'}"
                fail(task, what, got, f"also {name!r}", "add that entry, or remove it from observation_space")
            _check_obs(task, f"{what}[{name!r}]", space[name], obs[name], n)
        return
    is_float = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    require(task, what, obs, (n, *(space.shape or ())), torch.uint8 if space.dtype == np.uint8 else None)
    if obs.is_floating_point() != is_float:
        hint = "convert it with .float()" if is_float else "convert it with .long(), or make the space a float Box"
        fail(task, what, f"dtype {obs.dtype}", f"{'floating-point numbers' if is_float else 'integers'}", hint)
    require_finite(task, what, obs, task.failed())


def check_gymnasium(name: str, env: gymnasium.Env) -> None:
    """Check what a reset and a step of the Gymnasium env `name` return. Raises `UserError`.

    Without this check, NumPy would repeat a single number for a whole observation, or complain without naming the env.
    """
    _check_returned(name, "reset()", env.observation_space, env.reset(seed=0), "observation, info")
    parts = "observation, reward, terminated, truncated, info"
    _check_returned(name, "step()", env.observation_space, env.step(env.action_space.sample()), parts)


def _check_returned(name: str, method: str, space: gymnasium.Space, returned: Any, parts: str) -> None:
    if not isinstance(returned, tuple) or len(returned) != len(parts.split(", ")):
        got = f"{len(returned)} values" if isinstance(returned, tuple) else _kind(returned)
        count = len(parts.split(", "))
        raise UserError(f"env={name!r}: {method} returned {got}, expected a tuple of {count}; return {parts}.")
    _check_shape(name, f"{method} returned an observation", space, returned[0])


def _check_shape(name: str, what: str, space: gymnasium.Space, obs: Any) -> None:
    if isinstance(space, spaces.Dict):
        for key, inner in space.items():
            if not isinstance(obs, Mapping) or key not in obs:
                raise UserError(f"env={name!r}: {what} without {key!r}; add it, or remove it from observation_space.")
            _check_shape(name, f"{what} {key!r}", inner, obs[key])
    elif space.shape is not None and (got := np.shape(obs)) != space.shape:
        expected = f"of shape {_text(got)}, expected {_text(space.shape)}"
        raise UserError(f"env={name!r}: {what} {expected}; it must agree with observation_space.")


def require(task: Task, what: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
    """Raise `UserError` unless `value` is a tensor of `shape` and `dtype` (default: any) on the task's device."""
    n = shape[0]
    if not isinstance(value, torch.Tensor):
        hint = "torch.as_tensor converts numpy arrays" if hasattr(value, "shape") else "torch.full((self.n,), x) has n"
        fail(task, what, _kind(value), f"a tensor {_text(shape)}", hint)
    got = tuple(value.shape)
    if got != shape:
        hint = f"its leading size is the number of envs, {n} here"
        if what.startswith("observe") and got[:1] == (n,):
            hint = "it must agree with observation_space"
        elif got == (*shape, 1):
            hint = "leave out keepdim=True, or take [..., 0]"
        elif got == ():
            hint = "it is a single number for all envs; reduce over dim=1 only, as in x.sum(1)"
        elif len(got) == len(shape) + 1:
            hint = "reduce the last dimension, as in x.sum(-1)"
        fail(task, what, f"shape {_text(got)}", _text(shape), hint)
    if dtype is not None and value.dtype != dtype:
        hint = "compare, as in x > 0, or convert with .bool()" if dtype == torch.bool else "convert it with .to(dtype)"
        fail(task, what, f"dtype {value.dtype}", f"{dtype}", hint)
    if value.device.type != task.device.type:
        fail(task, what, f"a tensor on {value.device}", f"{task.device}", "make it with device=self.device")


def require_finite(task: Task, what: str, value: torch.Tensor, failed: torch.Tensor | None = None) -> None:
    """Raise `UserError` if `value` (n, ...) is NaN or infinite in an env that has not `failed` (n,).

    Only on the CPU, because reading from a GPU synchronises.
    """
    if value.device.type != "cpu":
        return
    bad = ~torch.isfinite(value if failed is None else value[~failed])
    if bool(bad.any()):
        hint = "look for a division by zero, or a root or logarithm of a negative number"
        fail(task, what, "NaN or infinity", "finite numbers", hint)


def fail(task: Task, what: str, got: str, expected: str, hint: str) -> NoReturn:
    """Raise a `UserError`: `what` returned `got` instead of `expected`; `hint` says how to correct it."""
    raise UserError(f"env={task.name!r}: {what} returned {got}, expected {expected}; {hint}.")


def _kind(value: Any) -> str:
    return "None" if value is None else f"the type {type(value).__name__}"


def _text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
