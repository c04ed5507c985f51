"""What is wanted of a session: requests as files in the run, which work from any process that sees the folder, and what
they, signals and clocks amount to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal, cast, get_args

Command = Literal["pause", "unpause", "stop", "checkpoint"]


def request(run_path: Path, command: Command) -> None:
    """Ask the process at work in the run, or about to be, for `command`. It looks five times a second. An empty file,
    whose name says it: also a full disk takes that."""
    folder = run_path / "control"
    folder.mkdir(exist_ok=True)
    (folder / f"{time.time_ns():020d}-{os.getpid()}.{command}").touch()


def take(run_path: Path) -> list[Command]:
    """The requests waiting, oldest first; each is handed out once."""
    commands: list[Command] = []
    for path in sorted((run_path / "control").glob("[0-9]*.*")):
        path.unlink(missing_ok=True)
        if (command := path.suffix[1:]) in get_args(Command):
            commands.append(cast(Command, command))
    return commands


class Requests:
    """Written by any thread, read by the one that trains. A stop is for good, and its first reason counts."""

    def __init__(self) -> None:
        self.paused = self.checkpoint = self.hurry = False
        self.reason: str | None = None
        """Why to stop; None while nobody wants that."""

    def obey(self, command: Command) -> None:
        if command == "stop":
            self.stop("stopped on request")
        self.checkpoint |= command == "checkpoint"
        self.paused = command == "pause" or (self.paused and command != "unpause")

    def stop(self, reason: str) -> None:
        """Ask for a checkpoint and the end."""
        if self.reason is None:
            self.reason = reason
