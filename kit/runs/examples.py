"""Example runs that come with the package: trained policies to watch, compare and train on."""

from __future__ import annotations

import shutil
from pathlib import Path

import kit
from kit.errors import UserError, suggest
from kit.format.leftovers import temporary
from kit.runs.run import Run


def example(name: str = "go1", runs_dir: str | Path = "runs") -> Run:
    """Copy the example run `name` into `runs_dir`, unless a run of this name is there; return the run.

    "go1" is a robot dog, trained with domain randomisation; it has its best policy and two earlier ones.
    """
    examples = {path.name: path for path in (Path(kit.__file__).parent / "examples").iterdir()}
    if name not in examples:
        raise UserError(f"example={name!r} is unknown; {suggest(name, examples)}.")
    target = Path(runs_dir).expanduser() / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary(target.parent) as folder:
            shutil.copytree(examples[name], folder / name)
            (folder / name).rename(target)
    return Run(target)
