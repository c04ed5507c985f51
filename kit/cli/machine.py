"""Commands about this machine: verify, encoders, check, bench."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from pathlib import Path

import kit
from kit.cli.shared import Add, print_value
from kit.config import RunConfig

COSTS = "costs: multiply-adds for three cameras with 4 frames of 64×64 each, and number of parameters"


def add_commands(add: Add) -> None:
    """Add the commands to the parser."""
    add("verify", "check this machine: what is installed, and what is missing for training", _verify, reports=True)

    add("encoders", "list the encoders for images and clips: cost, and when to use which", _encoders, reports=True)

    check = add("check", "check a task or env of your own with random actions, before you train on it", _check)
    check.add_argument("env", metavar="ENV", help="module:Class of your task or Gymnasium env, or an env's id")
    check.add_argument("--env-options", default="", metavar="JSON", help="options of the env; default: none")
    check.add_argument("--steps", type=int, default=500, metavar="N", help="steps of random actions; default: 500")

    check.add_argument("--video", type=Path, metavar="FILE.mp4", help="record random actions; default: no video")

    bench = add("bench", "measure the speed of physics, env, PPO and images on this machine, in a minute", _bench, True)
    bench.add_argument("--env", default="Ant", help="the task to measure; default: Ant")


def _verify(options: argparse.Namespace) -> int:
    report = kit.verify()
    print_value(options, report.to_dict(), str(report))
    return 0 if report.ok else 1


def _encoders(options: argparse.Namespace) -> int:
    from kit.encoders import ENCODERS

    rows = {n: {"does": info.does, "costs": info.costs, "use_when": info.use_when} for n, info in ENCODERS.items()}
    lines = [f"{n:<14}{r['does']}\n{'':14}costs {r['costs']}; use it when {r['use_when']}" for n, r in rows.items()]
    return print_value(options, rows, "\n".join([*lines, "", COSTS]))


def _check(options: argparse.Namespace) -> int:
    from kit.trust import permit

    env_options = RunConfig.from_text("env_options", options.env_options)
    permit(RunConfig(env=options.env), trust=True)  # the user has typed the module's name: do not ask
    say = partial(print, "ok ", flush=True)
    kit.check_task(options.env, env_options, options.steps, say, options.video)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from kit.measure.speed import bench

    machine, speed = kit.machine.describe().title, bench(options.env)
    value = {"machine": machine, **dataclasses.asdict(speed), "update_share": speed.update_share}
    return print_value(options, value, f"{machine}\n{speed}")
