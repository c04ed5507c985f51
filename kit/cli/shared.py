"""What the commands share: how a subcommand is added, help texts, printing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, Protocol

RUN = "the run's directory, or its name in ./runs"
TRUST = "allow modules named in a run or config to be imported, and model zips to be opened; both can run any code"


class Add(Protocol):
    """Function that adds a subcommand.

    `does`: its help text. `command`: runs it and returns the exit code. `reports`: whether it has the flag --json.
    """

    def __call__(
        self, name: str, does: str, command: Callable[[argparse.Namespace], int], reports: bool = False
    ) -> argparse.ArgumentParser: ...


def print_value(options: argparse.Namespace, value: Any, text: str) -> int:
    """Print `text`, or with --json the `value`; return exit code 0."""
    print(json.dumps(value, indent=2) if options.json else text)
    return 0
