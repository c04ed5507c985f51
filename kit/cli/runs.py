"""Commands about runs: runs, pause, unpause, stop, checkpoint, rename, rm."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import kit
from kit.cli.shared import RUN, Add, print_value
from kit.errors import UserError

WAIT_S = 600.0
"""Maximum seconds that a command waits for its effect. An evaluation or a slow disk may delay it."""
CONTROLS: dict[str, tuple[str, str]] = {
    "pause": ("pause a run; it stays in memory", "paused"),
    "unpause": ("continue a paused run", "running"),
    "stop": ("write a checkpoint and stop a run; `kit resume` continues it", ""),
    "checkpoint": ("write a checkpoint of a run at the end of this iteration", ""),
}
"""Command for a run that trains -> (help text, state of the run once the command has taken effect, "" if another)."""


def add_commands(add: Add) -> None:
    """Add the commands to the parser."""
    runs = add("runs", "list runs", _runs, reports=True)
    runs.add_argument(
        "where", nargs="?", default="runs", metavar="DIR|URL", help="a folder of runs, or a store's URL; default: runs"
    )
    runs.add_argument("--tree", action="store_true", help="list a run below the run whose policy it started from")

    for name, (does, _) in CONTROLS.items():
        control = add(name, does, _control)
        control.set_defaults(control=name)
        control.add_argument("run", metavar="RUN", help=RUN)
    rename = add("rename", "rename a run on this machine", _rename)
    rename.add_argument("run", metavar="RUN", help=RUN)
    rename.add_argument("name", metavar="NAME", help="the new name of its folder")
    rm = add("rm", "remove a run from this machine; copies in stores stay", _rm)
    rm.add_argument("run", metavar="RUN", help=RUN)
    only_copy = "do not ask; required if this is the only copy of an unfinished run"
    rm.add_argument("--yes", action="store_true", help=only_copy)


def _runs(options: argparse.Namespace) -> int:
    from kit.machine.progress import percent
    from kit.runs.finding import RunList, family, is_url, list_runs

    if options.where != "runs" and not is_url(options.where) and not Path(options.where).expanduser().is_dir():
        raise UserError(f"{options.where} is not a folder; give a folder of runs, or a store's URL.")
    runs, lines, depth = list_runs(options.where), [], dict[str, int]()
    if options.tree and isinstance(runs, RunList):
        runs = family(runs)
    rows = runs.to_dicts()
    for run, row in zip(runs, rows, strict=True):
        name, rate, rest = row["name"], "", f"  {row['task']}" if row.get("task") else ""
        if row["success_rate"] is not None:
            rate = f"  success {percent(row['success_rate'])}"
        if isinstance(run, kit.Run):
            rest = f"  {run.size_bytes / 1e6:,.1f} MB, {run.copies()}"
            if options.tree and run.parent and run.parent[0] in depth:
                depth[row["name"]] = depth[run.parent[0]] + 1
                name = f"{'  ' * depth[row['name']]}{name} (from step {run.parent[1]:,})"
        depth.setdefault(row["name"], 0)
        done = percent(row["step"] / max(1, row["total_steps"]))
        progress = f"{row['step']:>11,} of {row['total_steps']:,} ({done})"
        lines.append(f"{name:40} {row['state']:12} {progress}{rate}{rest}")
    return print_value(options, rows, "\n".join(lines) or f"no runs in {options.where}; `kit train` starts one")


def _control(options: argparse.Namespace) -> int:
    run = kit.Run(options.run)
    if not run.is_working():
        raise UserError(f"{run.path} is not running ({run.status()['state']}); `kit resume` continues it.")
    before, target = run.status(), CONTROLS[options.control][1]
    if options.control == "checkpoint" and before["state"] == "paused":
        raise UserError(f"{run.path} is paused, and a paused run writes no checkpoints; `kit unpause` continues it.")
    try:
        getattr(run, options.control)()
    except PermissionError:
        raise UserError(f"{run.path} belongs to another user, who can {options.control} it; ask them.") from None

    def finished(status: dict[str, Any]) -> bool:
        saved = options.control == "checkpoint" and status["checkpoint"] != before["checkpoint"]
        return saved or status["state"] == target or not run.is_working(status)

    try:
        after = run.wait(WAIT_S, until=finished)
    except TimeoutError as error:
        phase = run.status()["phase"]
        raise UserError(f"{error} ({phase}); the command stays in force; see `kit runs`.") from None
    saved = f", step {after['checkpoint']['step']:,} is saved" if after["checkpoint"] else ""
    print(f"{run.path}: {after['state']} at step {after['step']:,}{saved}")
    return 0


def _rename(options: argparse.Namespace) -> int:
    from kit.runs.api import rename

    print(f"renamed {options.run} to {rename(kit.Run(options.run), options.name).path}")
    return 0


def _rm(options: argparse.Namespace) -> int:
    from kit.runs.api import remove

    run = kit.Run(options.run)
    if not options.yes:
        if not sys.stdin.isatty():
            raise UserError(f"removing {run.path} needs a confirmation, and this is not a terminal; add --yes.")
        state, step = (run.status()[name] for name in ("state", "step"))
        print(f"{run.path}: {state} at step {step:,}, {run.size_bytes / 1e6:,.1f} MB, {run.copies()}")
        try:
            answer = input("Remove it from this machine? [y/N] ")
        except EOFError:  # Ctrl-D
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            return 1
    remove(run, sure=options.yes)
    print(f"removed {run.path}")
    return 0
