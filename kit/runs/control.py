"""Requests to a training process, as files in the run: they work from any process that sees the folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Literal, get_args

from kit.format.files import write_atomic

Command = Literal["pause", "unpause", "stop", "checkpoint"]


def request(run_path: Path, command: Command) -> None:
    """Ask the process at work in the run for `command`. It looks five times a second."""
    folder = run_path / "control"
    folder.mkdir(exist_ok=True)
    write_atomic(folder / f"{time.time_ns():020d}-{os.getpid()}.json", json.dumps({"command": command}), durable=False)


def take(run_path: Path) -> list[Command]:
    """The requests waiting, oldest first; each is handed out once."""
    commands: list[Command] = []
    for path in sorted((run_path / "control").glob("[0-9]*.json")):
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            command = json.loads(path.read_text())["command"]
            if command in get_args(Command):
                commands.append(command)
        path.unlink(missing_ok=True)
    return commands
