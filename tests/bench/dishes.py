"""Benchmark of Dishwashing: env steps/s, scores of the scripted policies and of trained runs. Run by hand:

    python tests/bench/dishes.py                         # sink and wiper, about five minutes on two idle cores
    python tests/bench/dishes.py --only sink             # env steps/s, from numbers and from clips
    python tests/bench/dishes.py --only wiper            # scripted wiper at every force and speed, 32 shifts each
    python tests/bench/dishes.py RUN ...                 # trained policies and both scripted ones, 100 shifts each
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import kit
from kit.runs.evaluation import evaluate
from kit.runs.run import Run
from kit.tasks.dishwashing.task import WIPER

SHIFTS = 100
PRESSES_N, SPEEDS_MPS = (20.0, 30.0, 40.0, 44.0, 48.0, 50.0), (0.2, 0.3, 0.4)
FIGURES = ("profit_per_hour", "plates_per_hour", "breakage_rate", "error_rate", "value_to_wage")
HEADS = "| | profit, USD/h | clean plates/h | broken | broken or not clean | value / wage |\n|---|" + 5 * "---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("sink", "wiper"))
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.runs:
        return learnt([Run(path) for path in args.runs])
    if args.only in (None, "sink"):
        sink(args.threads)
    if args.only in (None, "wiper"):
        wiper(args.threads)


def sink(threads: int | None) -> None:
    """Print env steps/s with random actions: the best of five rounds, after a warm-up round."""
    print("| random actions, env steps/s | 16 worlds | 64 worlds |\n|---|---:|---:|")
    for name in ("Dishwashing", "DishwashingVideo"):
        found = []
        for worlds in (16, 64):
            env = kit.make_vec(name, worlds, "cpu", 0, threads)
            actions = [2 * torch.rand(worlds, 3) - 1 for _ in range(20)]
            rates = []
            for _ in range(6):
                begun = time.perf_counter()
                for action in actions:
                    env.step(action)
                rates.append(worlds * len(actions) / (time.perf_counter() - begun))
            found.append(f"{max(rates[1:]):,.0f}")
            env.close()
        print(f"| {name} | {' | '.join(found)} |", flush=True)


def wiper(threads: int | None) -> None:
    """Print scores of the scripted wiper for each force and speed, one shift in each of 32 envs."""
    print(f"\n{HEADS}")
    env: Any = kit.make_vec("Dishwashing", 32, "cpu", 0, threads)
    for press in PRESSES_N:
        for speed in SPEEDS_MPS:
            env.reset(seed=1_000_003)
            for _ in range(env.episode_steps):
                info = env.step(env.task.wipe(press, speed))[4]
            mine = " (the task's)" if (press, speed) == WIPER else ""
            row(f"{press:.0f} N, {speed} m/s{mine}", {name: info[f"shift/{name}"].mean().item() for name in FIGURES})


def row(who: str, found: dict[str, float]) -> None:
    profit, plates, broken, wrong, value = (found[name] for name in FIGURES)
    print(f"| {who} | {profit:.1f} | {plates:.0f} | {broken:.1%} | {wrong:.1%} | {value:.2f} |", flush=True)


def learnt(runs: list[Run]) -> None:
    """Print scores of both scripted policies and of each run's best policy."""
    print(HEADS)
    for script in ("wiper", "seeker"):
        plan = evaluate(runs[0], SHIFTS, scripted=script)
        row(f"the scripted {script}", {name: plan[f"shift/{name}"] for name in FIGURES})
    for run in runs:
        found = evaluate(run, SHIFTS)
        row(f"{run.name}, step {run.find().step:,}", {name: found[f"shift/{name}"] for name in FIGURES})


if __name__ == "__main__":
    main()
