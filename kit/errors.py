"""Errors a user can cause: one sentence that names what, the value and the remedy."""

from __future__ import annotations

import importlib
from types import ModuleType


class UserError(ValueError):
    """The request is wrong. Its message is one sentence; the command line prints it and exits with code 2."""


class Interrupted(Exception):
    """Leaves a trainer's `learn()` at once because `should_stop` said so. Inside an iteration the trainer's state is
    then half way; what is valid is the copy that `state()` gave at the last boundary."""


class Overflow(RuntimeError):
    """A world needed more contacts or constraint rows than it was given room for; fewer worlds would not help."""


def need(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or raise `UserError` naming the `extra` that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise UserError(f"{module} is not installed; it comes with `pip install 'kit[{extra}]'`.") from None
