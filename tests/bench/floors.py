"""Benchmark of domain randomisation: a dog trained with it beside one without, on floors, loads and delays of neither.

    python tests/bench/floors.py runs/floors                # train missing runs, print the table, draw the plot
    python tests/bench/floors.py runs/floors --report       # only table and plot
    python tests/bench/floors.py runs/floors --other        # the same in MuJoCo Warp, on the CPU, 32 episodes each

"plain" is `kit train --env Go1Joystick --total-steps 4000000`, with one thread; "randomised" has the options below and
8 million steps; "longer" is the plain one with all of that except for randomisation. The values that are tried are
outside of the ranges that they were trained with, but for a delay of one step. Interrupted, run it again to continue.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kit
from kit.machine.settings import one_thread
from kit.runs.evaluation import TEST_SEED, Evaluator

ROOT = Path(__file__).parents[2]
SEEDS = (350, 351)
"""Seeds for tests only; tune with other seeds."""
TRAINED = {
    "friction": [0.3, 1.2], "payload": [-1, 3], "mass": True, "motor_gains": [0.8, 1.2], "delay": [0, 1],
    "joint_friction": True,
}  # fmt: skip
CRITIC = {"obs_groups": ["critic"]}
"""The value function sees friction, masses and contacts, which the policy does not."""
LONG = ("--total-steps", "8000000", "--overrides", '{"learning_rate": "lin_0.0005", "gamma": 0.99}', "--env-options")
KINDS = {
    "plain": ("--total-steps", "4000000"),
    "longer": (*LONG, json.dumps(CRITIC)),
    "randomised": (*LONG, json.dumps({**CRITIC, "randomize": TRAINED})),
}
ALONE = {
    "friction": (0.2, 0.25, 1.3), "payload": (-1.5, 3.5, 4.5), "motor_gains": (0.75, 1.25), "delay": (1, 2),
}  # fmt: skip
"""Term -> values to try one at a time. None was trained with, but for the randomised dogs' delay of 1 step, 20 ms."""
GRID = {"friction": (0.25, 1.3), "payload": (-1.5, 3.5), "delay": (1, 2)}
"""Terms and values that are changed together."""
EPISODES = 64
COLOURS = {"plain": "#9aa5b1", "longer": "#2f7fb8", "randomised": "#e8743b"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--other", action="store_true", help="evaluate in MuJoCo Warp; trains nothing")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="kinds to train")
    args = parser.parse_args()
    if not args.report and not args.other:
        for seed, kind in itertools.product(args.seeds, args.only):
            train(args.folder, kind, seed)
    found = {
        kind: {seed: scores(path_of(args.folder, kind, seed), args.other) for seed in args.seeds
               if finished(path_of(args.folder, kind, seed))}
        for kind in KINDS
    }  # fmt: skip
    table(found)
    if not args.other:
        draw(found)


def path_of(folder: Path, kind: str, seed: int) -> Path:
    return folder / f"{kind}-{seed}"


def finished(path: Path) -> bool:
    return path.exists() and kit.Run(path).status()["state"] == "finished"


def train(folder: Path, kind: str, seed: int) -> None:
    """Train a run, or resume it; do nothing if it is finished."""
    path = path_of(folder, kind, seed)
    if finished(path):
        return
    options = ["--env", "Go1Joystick", "--seed", str(seed), "--run-name", path.name, "--runs-dir", str(folder)]
    options += ["--threads", "1", *KINDS[kind]]
    command = ["resume", str(path)] if path.exists() else ["train", *options]
    subprocess.run([sys.executable, "-m", "kit", *command], cwd=ROOT, check=True)


def conditions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and randomisation of each evaluation: as usual, one term changed, then the grid."""
    yield "as usual", {}
    for term, values in ALONE.items():
        for value in values:
            yield f"{term} {value:g}", {term: [value, value]}
    for values in itertools.product(*GRID.values()):
        name = ", ".join(f"{value:g}" for value in values)
        yield f"{', '.join(GRID)} {name}", {term: [value, value] for term, value in zip(GRID, values, strict=True)}


def scores(path: Path, other: bool) -> dict[str, float]:
    """Return condition -> success rate of a run's best policy; keep them in a file beside the run."""
    file = path.with_name(f"{path.name}{'-warp' if other else ''}.json")
    known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    run = kit.Run(path)
    for name, terms in conditions():
        if name in known or (other and "," in name):
            continue
        options = {**run.config.env_options, "randomize": terms}
        config, episodes = run.config.replace(device="cpu", env_options=options), 32 if other else EPISODES
        evaluator = Evaluator(config, episodes, TEST_SEED)
        if other:
            into_warp(evaluator)
        with one_thread():
            result = evaluator(run.policy("best").as_actor())
        evaluator.close()
        assert result is not None
        known[name] = result["success_rate"]
        file.write_text(json.dumps(known, indent=1))
        print(path.name, name, f"{known[name]:.0%}", file=sys.stderr, flush=True)
    return known


def into_warp(evaluator: Evaluator) -> None:
    """Replace the evaluator's env by one that MuJoCo Warp simulates on the CPU."""
    from kit.envs.vec import TensorEnv
    from kit.sim.warp import WarpSim

    old: Any = evaluator.env
    task = type(old.task)()
    task.curriculum, task.randomized, task.groups = old.task.curriculum, old.task.randomized, old.task.groups
    task.build = lambda n, *_: task.bind(WarpSim(task.model, n, "cpu"))  # type: ignore[method-assign]
    evaluator.env = TensorEnv(task, old.num_envs, "cpu", evaluator.seed)
    old.close()


def table(found: dict[str, dict[int, dict[str, float]]]) -> None:
    """Print the median over seeds of each condition, and of the mean over the grid, worst to best."""
    found = {kind: runs for kind, runs in found.items() if runs}
    print("| | " + " | ".join(found) + " |\n|---" + "|---:" * len(found) + "|")
    for name in [name for name, _ in conditions() if "," not in name]:
        cells = [spread([rates[name] for rates in runs.values() if name in rates]) for runs in found.values()]
        print("| " + " | ".join([name, *cells]) + " |")
    grid = [spread([mean_of_grid(rates) for rates in runs.values()]) for runs in found.values()]
    print("| mean of the grid | " + " | ".join(grid) + " |")


def mean_of_grid(known: dict[str, float]) -> float:
    rows = [rate for name, rate in known.items() if "," in name]
    return statistics.mean(rows) if rows else float("nan")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0%} ({min(values):.0%} to {max(values):.0%})" if values else "–"


def draw(found: dict[str, dict[int, dict[str, float]]]) -> None:
    """Plot the success rates of each kind of dog on every condition."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    names = [name for name, _ in conditions() if "," not in name]
    figure, axis = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    shown = {kind: list(runs.values()) for kind, runs in found.items() if runs}
    width = 0.8 / max(1, len(shown))
    for offset, (kind, runs) in enumerate(shown.items()):
        means = [statistics.median(run[name] for run in runs) for name in names]
        means.append(statistics.median(mean_of_grid(run) for run in runs))
        places = [i + width * (offset + 0.5) for i in range(len(means))]
        axis.bar(places, [100 * mean for mean in means], 0.95 * width, color=COLOURS[kind], label=kind)
        for place, name in zip(places, names, strict=False):
            axis.plot([place] * len(runs), [100 * run[name] for run in runs], ".", color="black", markersize=3)
    ticks = [i + 0.4 for i in range(len(names) + 1)]
    axis.set_xticks(ticks, [*names, "together (mean)"], rotation=40, ha="right", fontsize=8)
    axis.set(ylabel="success, %", ylim=(0, 118))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=3)
    figure.savefig(ROOT / ".github" / "floors.png", dpi=110, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    main()
