"""Vector envs: kit's own tasks by name, your own by "module:Class", and every Gymnasium env by its id.

Importing this package registers kit's tasks with Gymnasium (`gymnasium.make("kit.envs:kit/Reach-v0")`). The import
does not load torch or MuJoCo; looking up one of kit's tasks loads both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kit.envs.registry import (
    child_environ,
    describe,
    find,
    learner_side,
    make_task,
    make_vec,
    names,
    opponents,
    robot_envs,
    without_opponents,
)

if TYPE_CHECKING:
    from kit.envs.contract import BatchEnv as BatchEnv
    from kit.envs.task import MujocoTask as MujocoTask
    from kit.envs.task import Task as Task
    from kit.envs.task_info import Field as Field
    from kit.envs.task_info import TaskInfo as TaskInfo
    from kit.envs.task_info import numbers as numbers
    from kit.envs.vec import TensorEnv as TensorEnv

__all__ = [
    "BatchEnv", "Field", "MujocoTask", "Task", "TaskInfo", "TensorEnv",
    "child_environ", "describe", "find", "learner_side", "make_task", "make_vec", "names", "numbers",
    "opponents", "robot_envs", "without_opponents",
]  # fmt: skip
OLD_NAMES = {"Card": "TaskInfo", "Part": "Field"}
"""Former name -> present name, kept for one release."""


def __getattr__(name: str) -> Any:
    """Import these names when they are first used, because their modules load torch and MuJoCo."""
    modules = {"TaskInfo": "task_info", "Field": "task_info", "numbers": "task_info"}
    modules |= {"MujocoTask": "task", "Task": "task", "BatchEnv": "contract", "TensorEnv": "vec"}
    name = OLD_NAMES.get(name, name)
    if name not in modules:
        raise AttributeError(f"module 'kit.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kit.envs.{modules[name]}"), name)
