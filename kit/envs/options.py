"""A task's options as one frozen dataclass: every constant with its unit, its bounds and where it comes from."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from kit.errors import UserError


def number(default: float, low: float, high: float) -> Any:
    """A field from `low` to `high`."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `env_options` may say: subclasses add fields, numbers made with `number`. A value of the wrong kind or out
    of bounds raises `UserError`."""

    task: ClassVar[str]
    """Whose they are."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if not f.metadata:
                continue
            value, low, high = getattr(self, f.name), f.metadata["low"], f.metadata["high"]
            kinds = int if f.type == "int" else int | float
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                kind = "whole number" if f.type == "int" else "number"
                raise UserError(f"env_options {f.name}={value!r} must be a {kind} from {low:g} to {high:g}.")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The defaults, with what `options` say. An unknown name raises `UserError`."""
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]}? " if close else ""
                whose = f"is not one of {cls.task}'s; {hint}valid are {', '.join(names)}."
                raise UserError(f"env_options {name}={options[name]!r} {whose}")
        return cls(**options)
