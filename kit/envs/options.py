"""Base class for a task's options: a frozen dataclass, whose numeric fields have a default and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from kit.errors import UserError, check_names


def number(default: float, low: float, high: float) -> Any:
    """Declare a numeric field whose valid values are `low` to `high`, both included."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a task, set by `env_options`. Subclasses add fields; numeric fields are declared with `number`.

    A number of the wrong type or out of bounds raises `UserError`. Other fields are not checked.
    """

    task: ClassVar[str]
    """Name of the task, for error messages."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if not f.metadata:
                continue
            value, low, high = getattr(self, f.name), f.metadata["low"], f.metadata["high"]
            whole = f.type in ("int", int)  # text in modules with `from __future__ import annotations`
            kinds = int if whole else int | float
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                kind = "whole number" if whole else "number"
                raise UserError(f"env_options {f.name}={value!r} must be a {kind} from {low:g} to {high:g}.")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Build from the defaults, overridden by `options`. An unknown name raises `UserError`."""
        check_names("env_options", options, cls.task, [f.name for f in fields(cls)])
        return cls(**options)
