"""What a task says of itself to people: what is seen and set, by name and unit, what is paid, how an episode ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from gymnasium import spaces


class Field(NamedTuple):
    """Some numbers that a policy sees or sets."""

    what: str
    width: int
    unit: str = ""
    """What 1 stands for, such as "rad" or "0.4 m/s"; nothing for shares and flags."""


class TaskInfo(NamedTuple):
    """Everything has a default: a task need not say it."""

    sees: Mapping[str, Sequence[Field]] = MappingProxyType({})
    """Entries of the observation that are rows of numbers, "" where it is nothing else."""
    does: Sequence[Field] = ()
    pays: Sequence[tuple[float, str]] = ()
    """The reward's weights, and what each is paid for."""
    ends: str = ""
    """What ends an episode besides its time."""
    succeeds: str = ""
    """When an episode is a success."""
    lessons: str = ""
    """In what order to teach it, where its own settings from the beginning would not do."""


def numbers(parts: Sequence[Field]) -> spaces.Box:
    """The space of a row of these, float32."""
    return spaces.Box(-np.inf, np.inf, (sum(part.width for part in parts),), np.float32)
