"""Errors a user can cause: one sentence that names what, the value and the remedy."""

from __future__ import annotations

import importlib
from types import ModuleType


class UserError(ValueError):
    """A wrong request. The message is one sentence; the command line prints it and exits with code 2."""


class Interrupted(Exception):
    """Raised to leave a trainer's `learn()` at once, because `should_stop` returned True.

    In the middle of an iteration the trainer's own state is incomplete; the copy that `state()` returned at the last
    boundary between iterations is valid.
    """


class Overflow(RuntimeError):
    """An env needed more contacts or constraint rows than were allocated. A smaller `n_envs` does not help."""


def need(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or raise `UserError` naming the pip extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise UserError(f"{module} is not installed; it comes with `pip install 'kit[{extra}]'`.") from None
