"""kit's exceptions, and checks of arguments that raise `UserError`."""

from __future__ import annotations

import difflib
import importlib
import sysconfig
import textwrap
import traceback
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGES = Path(__file__).parent, Path(sysconfig.get_path("stdlib"))
_PACKAGE_NAMES = {"site-packages", "dist-packages"}
"""Folders of kit, of Python and of installed packages, whose files are not the user's."""


class UserError(ValueError):
    """A wrong request. The message is one sentence: what is wrong, the value, and the remedy.

    The command line prints the message and exits with code 2.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows in place of a traceback. JupyterLab would break them inside words."""
        return textwrap.wrap(f"UserError: {self}", 100, break_long_words=False, break_on_hyphens=False)


class Interrupted(Exception):
    """Raised by a trainer's `learn()` to stop in the middle of an iteration.

    The reason: `should_stop` returned True, or another process of a distributed training has ended. The trainer's
    state is then incomplete. The last `state()` from the end of an iteration stays valid.
    """


class Overflow(RuntimeError):
    """An env needed more contacts or constraint rows than were allocated. A smaller `n_envs` does not help."""


def suggest(name: str, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unknown `name`: "did you mean gamma? valid are ..."."""
    spelled = {word.lower(): word for word in valid}
    close = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.5)
    hint = f"did you mean {spelled[close[0]]}? " if close else ""
    return f"{hint}valid are {', '.join(spelled.values())}"


def first_line(error: BaseException) -> str:
    """Return the first line of the message of `error`, or its class's name if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def explain(error: BaseException) -> str:
    """Describe an error in one line: one of kit's own by its message, another also by its type.

    If it was raised in a file that belongs to no package, such as a task of the user's own, the file, line and function
    come first: "own.py, line 33, in reward: KeyError: 'b'". A notebook's cell has a line, but no file.
    """
    message = " ".join(str(error).split())
    if message and (isinstance(error, UserError) or type(error).__module__.startswith("kit.")):
        return message
    text = f"{type(error).__name__}: {message}".removesuffix(": ")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if any(part.startswith("ipykernel_") for part in file.parts):
            return f"line {frame.lineno} of a cell, in {frame.name}: {text}"
        is_package = _PACKAGE_NAMES.intersection(file.parts) or any(map(file.is_relative_to, _PACKAGES))
        if file.is_file() and not is_package:
            return f"{file.name}, line {frame.lineno}, in {frame.name}: {text}"
    return text


def not_python(what: str, error: SyntaxError) -> UserError:
    """Return the error for a module with a syntax error. `what`: who named it, such as "env='mine:Task'"."""
    file = (error.filename or "").rpartition("/")[2]
    return UserError(f"{what} cannot be read: {file}, line {error.lineno}: {error.msg}.")


def check_names(field: str, given: Mapping[str, Any], owner: str, known: Collection[str]) -> None:
    """Raise `UserError` if a key of `given` is not in `known`. `field`: the RunConfig field; `owner`: what has the
    names `known`, such as the task or the algorithm."""
    for name, value in given.items():
        if name not in known:
            raise UserError(f"{field} {name}={value!r} is not one of {owner}'s; {suggest(str(name), known)}.")


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise `UserError` unless `value` is a whole number of at least `least`, and at most `most` if that is given."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"{name}={value!r} must be a whole number {limits}.")


def need(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or raise `UserError` naming the pip extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise UserError(f"{module} is not installed; it comes with `pip install 'kit[{extra}]'`.") from None
