"""Tasks as vector envs: kit's own by name, one's own by module:Class, and every Gymnasium env by its id.

Importing this registers kit's tasks with Gymnasium; `gymnasium.make("kit.envs:kit/Reach-v0")` does both. Names can be
looked up without loading torch or MuJoCo.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kit.envs.registry import alone, carry, describe, find, make_task, make_vec, names, opponents, plays

if TYPE_CHECKING:
    from kit.envs.card import Card as Card
    from kit.envs.card import Part as Part
    from kit.envs.card import numbers as numbers
    from kit.envs.contract import BatchEnv as BatchEnv
    from kit.envs.task import MujocoTask as MujocoTask
    from kit.envs.task import Task as Task
    from kit.envs.vec import TensorEnv as TensorEnv

__all__ = [
    "BatchEnv", "Card", "MujocoTask", "Part", "Task", "TensorEnv",
    "alone", "carry", "describe", "find", "make_task", "make_vec", "names", "numbers", "opponents", "plays",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What tasks are written with, loaded on first use."""
    where = {"Card": "card", "Part": "card", "numbers": "card", "BatchEnv": "contract", "TensorEnv": "vec"}
    where |= {"MujocoTask": "task", "Task": "task"}
    if name not in where:
        raise AttributeError(f"module 'kit.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kit.envs.{where[name]}"), name)
