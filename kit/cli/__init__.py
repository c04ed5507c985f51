"""The command line `kit`: each subcommand calls one function of the library.

Exit codes: 0 done, 2 wrong request (one line on stderr), 75 interrupted and resumable, 1 anything else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

import kit
from kit.cli import machine, policies, runs, training
from kit.errors import UserError

WRONG_REQUEST = 2


def main(arguments: list[str] | None = None) -> None:
    """Run the command in `arguments` (default: sys.argv), and exit."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code = options.command(options)
    except UserError as error:
        print(f"kit: {error}", file=sys.stderr)
        code = WRONG_REQUEST
    except BrokenPipeError:
        code = 0
    except KeyboardInterrupt:  # not during training: `kit.train` and `kit.resume` handle it
        print("kit: interrupted", file=sys.stderr)
        code = 1
    sys.exit(code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2, as for a `UserError`."""
        self.exit(WRONG_REQUEST, f"kit: {message}; see {self.prog} --help.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kit", description="Train robot policies, and never lose a run.")
    parser.add_argument("--version", action="version", version=f"kit {kit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, does: str, command: Callable[[argparse.Namespace], int], reports: bool = False) -> _Parser:
        # without abbreviations: `kit batch --seed 3` must not mean --seeds 3
        sub = commands.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".", allow_abbrev=False)
        sub.set_defaults(command=command, parser=sub)
        if reports:
            sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    for group in (machine, training, runs, policies):
        group.add_commands(add)
    return parser
