"""What the commands share: how a subcommand is added, help texts, printing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, Protocol

RUN = "the run's directory, such as runs/my-run"
TRUST = "import modules that a run or a file names, and open a model zip, although both can run code"


class Add(Protocol):
    """Function that adds a subcommand: its name, what it does, the function that runs it and returns the exit code.

    `reports`: whether it has the flag --json.
    """

    def __call__(
        self, name: str, does: str, command: Callable[[argparse.Namespace], int], reports: bool = False
    ) -> argparse.ArgumentParser: ...


def print_value(options: argparse.Namespace, value: Any, text: str) -> int:
    """Print `text`, or with --json the `value`; return exit code 0."""
    print(json.dumps(value, indent=2) if options.json else text)
    return 0
