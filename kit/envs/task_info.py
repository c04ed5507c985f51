"""Task info: a task's description for people (observation fields, action fields, reward terms, end of an episode)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from gymnasium import spaces


class Field(NamedTuple):
    """Description of `width` consecutive numbers of an observation or action: `what` they are, and their unit."""

    what: str
    width: int
    unit: str = ""
    """What a value of 1 means: a unit ("rad") or a quantity ("0.4 m/s"); empty if dimensionless."""


class TaskInfo(NamedTuple):
    """Description of a task, shown by `kit.ui.task` and in exports. Every field is optional."""

    sees: Mapping[str, Sequence[Field]] = MappingProxyType({})
    """Observation entry -> its fields, for entries that are vectors; "" if the observation is a single vector."""
    does: Sequence[Field] = ()
    """Fields of the action."""
    pays: Sequence[tuple[float, str]] = ()
    """Reward terms: the weight and what it is paid for, such as (5.0, "per metre closer to the goal"). An entry with
    weight 0 is a note."""
    ends: str = ""
    """Condition that ends an episode early."""
    succeeds: str = ""
    """Condition that makes an episode a success."""
    lessons: str = ""
    """Curriculum: the stages to train in, for tasks that cannot be learned directly with the default options."""
    robot: Sequence[str] = ()
    """Feet, home pose, gains or hand, as found in the model of your own robot; one line each."""


def numbers(fields: Sequence[Field]) -> spaces.Box:
    """Return the space of a vector with these `fields`: an unbounded Box (total width,), float32."""
    return spaces.Box(-np.inf, np.inf, (sum(field.width for field in fields),), np.float32)
