"""Dishwashing measured: the sink alone, the scripted wiper, and what is learnt. By hand:

    python tests/bench/dishes.py                         # the first two, about five minutes on two quiet cores
    python tests/bench/dishes.py --only sink             # env steps a second, from numbers and from clips
    python tests/bench/dishes.py --only wiper            # the plain machine at every pressure and speed, 32 shifts each
    python tests/bench/dishes.py --only learn            # whatever seeds are missing in runs/dishes, table and curve
    python tests/bench/dishes.py --only learn --plot     # table and .github/dishes.png of what is there

A seed's training is `kit train notebooks/configs/dishwashing_state.yaml --seed SEED`; its shifts are those of its
evaluations, 20 of a minute each, without exploration. An interrupted command goes on where it was.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kit
from kit.config import RunConfig
from kit.envs.dishwashing import WIPER
from kit.runs.rollouts import evaluate
from kit.runs.run import Run

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / ".github" / "dishes.png"
PRESSES_N, SPEEDS_MPS = (20.0, 30.0, 40.0, 44.0, 48.0, 50.0), (0.2, 0.3, 0.4)
FIGURES = ("profit_per_hour", "plates_per_hour", "breakage_rate", "error_rate", "value_to_wage")
HEADS = "| | profit, USD/h | clean plates/h | broken | broken or not clean | value, in wages |\n|---|" + 5 * "---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("sink", "wiper", "learn"))
    parser.add_argument("--runs-dir", default="runs/dishes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--plot", action="store_true")
    args = parser.parse_args()
    if args.only in (None, "sink"):
        sink(args.threads)
    if args.only in (None, "wiper"):
        wiper(args.threads)
    if args.only == "learn":
        learn(Path(args.runs_dir), args.seeds, args.threads, args.plot)


def sink(threads: int | None) -> None:
    """Random actions; the best of five turns."""
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
    """A shift in each of 32 worlds."""
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


def learn(folder: Path, seeds: list[int], threads: int | None, plot: bool) -> None:
    """Train what is missing; then each seed's best policy in 32 shifts beside the wiper, and the curves."""
    config = RunConfig.load(ROOT / "notebooks" / "configs" / "dishwashing_state.yaml")
    runs = []
    for seed in seeds:
        path = folder / f"s{seed}"
        if not plot and not path.exists():
            kit.train(config.replace(seed=seed, runs_dir=str(folder), run_name=path.name, threads=threads or "auto"))
        elif not plot and Run(path).status()["state"] != "finished":
            kit.resume(path)
        if path.exists():
            runs.append(Run(path))
    if not runs:
        return print(f"{folder} holds no runs of these seeds yet.")
    print(f"\n{HEADS}")
    plan = {name: evaluate(runs[0], 32, scripted=True)[f"shift/{name}"] for name in FIGURES}
    row("the scripted wiper", plan)
    for run in runs:
        found = evaluate(run, 32)
        step = run.find().step
        row(f"seed {run.config.seed}, step {step:,}", {name: found[f"shift/{name}"] for name in FIGURES})
    draw(runs, plan)


def draw(runs: list[Run], plan: dict[str, float]) -> None:
    """Profit, plates and breakage of each evaluation over steps."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    titles = {"profit_per_hour": "profit, USD per hour", "plates_per_hour": "clean plates per hour",
              "breakage_rate": "broken, % of plates"}  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        scale = 100 if name == "breakage_rate" else 1
        for run in runs:
            rows = [r for r in run.rows() if f"eval/shift/{name}" in r]
            steps = np.array([r["step"] for r in rows]) / 1000
            values = scale * np.array([r[f"eval/shift/{name}"] for r in rows])
            axis.plot(steps, values, "-o", markersize=3, linewidth=1.5, label=f"seed {run.config.seed}")
        axis.axhline(scale * plan[name], color="black", linestyle="--", linewidth=1.2, label="scripted wiper")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("thousand steps")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0].set_ylim(bottom=min(-20.0, 1.2 * plan["profit_per_hour"] - 60))
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(PICTURE, dpi=110, facecolor="white")
    print(f"Drawn to {PICTURE}.")


if __name__ == "__main__":
    main()
