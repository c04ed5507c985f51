"""Control commands (pause, unpause, stop, checkpoint) as files in the run directory, readable from any process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal, cast, get_args

Command = Literal["pause", "unpause", "stop", "checkpoint"]
ON_REQUEST = "stopped on request"
"""Reason of a run that ended because of the command "stop"."""


def request(run_path: Path, command: Command) -> None:
    """Send `command` to the run's training process, which polls five times a second.

    A training process discards the commands sent before its start. The command is the suffix of an empty file's name,
    because an empty file can be created even on a full disk.
    """
    folder = run_path / "control"
    folder.mkdir(exist_ok=True)
    (folder / f"{time.time_ns():020d}-{os.getpid()}.{command}").touch()


def take(run_path: Path) -> list[Command]:
    """Return the waiting commands, oldest first, and delete their files."""
    commands: list[Command] = []
    for path in sorted((run_path / "control").glob("[0-9]*.*")):
        path.unlink(missing_ok=True)
        if (command := path.suffix[1:]) in get_args(Command):
            commands.append(cast(Command, command))
    return commands


class Requests:
    """Requests to the training thread. Other threads set them when a command, a signal or a time limit arrives."""

    def __init__(self) -> None:
        self.paused = self.checkpoint = False
        self.hurry = False  # True after a signal: the process may be killed within seconds
        self.reason: str | None = None
        """Reason to stop, None to continue. The first reason is kept: a stop cannot be revoked."""

    def obey(self, command: Command) -> None:
        """Set the flags that `command` stands for."""
        if command == "stop":
            self.stop(ON_REQUEST)
        self.checkpoint |= command == "checkpoint"
        self.paused = command == "pause" or (self.paused and command != "unpause")

    def stop(self, reason: str) -> None:
        """Tell training to write a checkpoint and end."""
        if self.reason is None:
            self.reason = reason
