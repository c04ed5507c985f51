"""Tasks as vector envs: kit's own by name, and every registered Gymnasium env by its id.

Importing this registers kit's tasks with Gymnasium; `gymnasium.make("kit.envs:kit/Reach-v0")` does both. Names can be
looked up without loading torch or MuJoCo.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

import gymnasium

from kit.errors import UserError

if TYPE_CHECKING:
    from kit.envs.foreign import ForeignEnv
    from kit.envs.shared import SharedEnv
    from kit.envs.task import Share, Task
    from kit.envs.vec import TensorEnv
    from kit.machine.group import Group

__all__ = ["Task", "TensorEnv", "check", "make_task", "make_vec", "names"]

_TASKS = {
    "Ant": "kit.envs.ant:Ant",
    "G1Joystick": "kit.envs.joystick_robots:G1Joystick",
    "Go1Joystick": "kit.envs.joystick_robots:Go1Joystick",
    "Reach": "kit.envs.reach:Reach",
}
"""Task name -> module:class; the module is imported when the task is made."""


def names() -> list[str]:
    """kit's own tasks."""
    return sorted(_TASKS)


def make_task(name: str, **options: object) -> Task:
    """The task called `name`, built anew with the `options` of its constructor."""
    if name not in _TASKS:
        raise UserError(_unknown(name))
    module, _, cls = _TASKS[name].partition(":")
    task: Task = getattr(importlib.import_module(module), cls)(**options)
    return task


def make_vec(
    env: str,
    n_envs: int = 1,
    device: str = "cpu",
    seed: int = 0,
    threads: int | None = None,
    group: Group | None = None,
) -> TensorEnv | ForeignEnv | SharedEnv:
    """A vector env of `n_envs` worlds.

    `env` is one of kit's tasks ("Reach"; "kit/Reach-v0" is the same) or any registered Gymnasium id ("Ant-v5").
    `threads` is how many CPU threads share the physics, by default one per usable core. The processes of `group` share
    out the worlds.
    """
    if not isinstance(n_envs, int) or n_envs < 1:
        raise UserError(f"n_envs={n_envs!r} must be a whole number of at least 1.")
    check(env)
    if group is not None:
        from kit.envs.shared import SharedEnv, share_of

        return SharedEnv(_make(env, n_envs // group.size, device, seed, threads, share_of(group, n_envs)), group)
    return _make(env, n_envs, device, seed, threads, None)


def _make(env: str, n: int, device: str, seed: int, threads: int | None, share: Share | None) -> TensorEnv | ForeignEnv:
    if _task_name(env) in _TASKS:
        from kit.envs.vec import TensorEnv

        return TensorEnv(make_task(_task_name(env)), n, device, seed, threads, autoreset=share is None, share=share)
    from kit.envs.foreign import ForeignEnv

    return ForeignEnv(env, n, device, seed, share=share)


def check(env: str) -> None:
    """Raise `UserError` if `make_vec` would not know `env`; nothing is built."""
    if _task_name(env) not in _TASKS and (env.startswith("kit/") or not _in_gymnasium(env)):
        raise UserError(_unknown(env))


def _task_name(env: str) -> str:
    return env.removeprefix("kit/").removesuffix("-v0") if env.startswith("kit/") else env


def _in_gymnasium(env: str) -> bool:
    try:
        gymnasium.spec(env)
    except (gymnasium.error.Error, ModuleNotFoundError):
        return False
    return True


def _unknown(env: str) -> str:
    ids = [*_TASKS, *gymnasium.registry]
    folded = {name.lower(): name for name in ids}
    close = [folded[name] for name in difflib.get_close_matches(env.lower(), folded, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(close)}?" if close else "any registered Gymnasium id works too."
    return f"env={env!r} is unknown; kit's own are {', '.join(names())}; {hint}"


def __getattr__(name: str) -> Any:
    """`Task` and `TensorEnv`, loaded on first use."""
    where = {"Task": "kit.envs.task", "TensorEnv": "kit.envs.vec"}
    if name not in where:
        raise AttributeError(f"module 'kit.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(where[name]), name)


for _name in _TASKS:
    gymnasium.register(
        f"kit/{_name}-v0",
        entry_point="kit.envs.gym:TaskEnv",
        vector_entry_point="kit.envs.gym:TaskVectorEnv",
        kwargs={"task": _name},
    )
