"""Task info: a task's description for people (observation fields, action fields, reward terms, end of an episode)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from gymnasium import spaces


class Field(NamedTuple):
    """Consecutive numbers of an observation or action, with their meaning and unit."""

    what: str
    width: int
    unit: str = ""
    """Physical size of the value 1, such as "rad" or "0.4 m/s"; empty for fractions and flags."""


class TaskInfo(NamedTuple):
    """Description of a task, shown by `kit.ui.task` and in exports. Every field is optional."""

    sees: Mapping[str, Sequence[Field]] = MappingProxyType({})
    """Observation entry -> its fields, for entries that are vectors; "" if the observation is a single vector."""
    does: Sequence[Field] = ()
    """Fields of the action."""
    pays: Sequence[tuple[float, str]] = ()
    """Reward terms: the weight and what it is paid for, such as (5.0, "per metre closer to the goal")."""
    ends: str = ""
    """Condition that ends an episode early."""
    succeeds: str = ""
    """Condition that makes an episode a success."""
    lessons: str = ""
    """Curriculum: stages to train in, where training with the default options from the start would fail."""


def numbers(fields: Sequence[Field]) -> spaces.Box:
    """Box space, unbounded and float32, of a vector with these fields."""
    return spaces.Box(-np.inf, np.inf, (sum(field.width for field in fields),), np.float32)
