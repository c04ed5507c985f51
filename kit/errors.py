"""Errors a user can cause: one sentence that names what, the value and the remedy."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
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


def suggest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str:
    """End of an error about an unknown `name`: "did you mean gamma? valid are ...".

    `cutoff`: the least similarity of a suggestion, in [0, 1] (difflib.get_close_matches).
    """
    spelled = {word.lower(): word for word in valid}
    close = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=cutoff)
    hint = f"did you mean {spelled[close[0]]}? " if close else ""
    return f"{hint}valid are {', '.join(spelled.values())}"


def need(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or raise `UserError` naming the pip extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise UserError(f"{module} is not installed; it comes with `pip install 'kit[{extra}]'`.") from None
