"""Benchmark of training results: the README's scores, on seeds that were not used for tuning. Run by hand:

    python tests/bench/scores.py runs/scores             # train missing runs (hours), print the table, draw the plots
    python tests/bench/scores.py runs/scores --only Mission --jobs 2
    python tests/bench/scores.py runs/scores --report    # only table and plots, from existing runs

A run is `kit train` with the arguments below and one thread. The score is that of `kit evaluate RUN`: the best policy,
in episodes that were not used to train or to choose it. Runs of other code or on another processor model are refused,
because their results differ by rounding. If the command is interrupted, run it again to continue.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kit import Run, evaluate
from kit.machine.info import cpu_model
from kit.runs import provenance

ROOT = Path(__file__).parents[2]
SEEDS = range(100, 105)
"""Seeds for tests only; tune with other seeds."""


@dataclass(frozen=True)
class Score:
    """A row of the table."""

    arguments: str
    """Arguments of `kit train`."""
    figure: str
    """Name of the metric in the output of `kit evaluate`."""
    form: str = "{:.0%}"
    episodes: int = 100


SCORES = {
    "Reach-PPO": Score("--env Reach --algo PPO", "success_rate"),
    "Reach-A2C": Score("--env Reach --algo A2C", "success_rate"),
    "Reach-SAC": Score("--env Reach --algo SAC", "success_rate"),
    "Dishwashing": Score("notebooks/configs/dishwashing_state.yaml", "shift/profit_per_hour", "{:.0f} $/h"),
    "Mission": Score("--env Mission --total-steps 40000000", "win_rate", episodes=224),
    "Go1Joystick": Score("--env Go1Joystick --total-steps 4000000", "success_rate", episodes=200),
    "ReachVision": Score("--env ReachVision --total-steps 300000", "success_rate"),
    "Push-SAC": Score("--env Push --algo SAC --total-steps 800000", "success_rate"),
}


PICTURES = {
    "Dishwashing": ("dishes.png", "eval/shift/profit_per_hour", 1, "dollars an hour"),
    "Mission": ("mission.png", "eval/win_rate", 100, "games won, %"),
    "Go1Joystick": ("walk.png", "eval/success_rate", 100, "success, %"),
}
"""Plots of evaluations: file name in .github, metric, factor, axis label."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--only", nargs="+", choices=SCORES, default=list(SCORES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, with one thread each")
    parser.add_argument("--report", action="store_true", help="train nothing; table and plots from existing runs")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    if not args.report:
        jobs = [(name, seed) for name in args.only for seed in args.seeds]
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda job: train(args.folder, *job), jobs))
    report(args.folder, args.only, args.seeds)


def path_of(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name.lower()}-{seed}"


def train(folder: Path, name: str, seed: int) -> None:
    """Train a seed unless it is finished; write its CPU time to a JSON file beside its run."""
    run = path_of(folder, name, seed)
    command = ["train", *shlex.split(SCORES[name].arguments), "--run-name", run.name, "--runs-dir", str(folder)]
    command += ["--threads=1", "--seed", str(seed)]
    if run.exists():
        if Run(run).status()["state"] == "finished":
            return
        command = ["resume", str(run)]
    begun = time.monotonic()
    with (folder / f"{run.name}.log").open("a") as log:
        child = subprocess.Popen([sys.executable, "-m", "kit", *command], stdout=log, stderr=log, cwd=ROOT)
        _, code, used = os.wait4(child.pid, 0)
    child.returncode = code
    if code:
        raise SystemExit(f"{run.name} ended with {code}; see {log.name}")
    seconds = folder / f"{run.name}.json"
    before = json.loads(seconds.read_text())["cpu_s"] if seconds.exists() else 0.0
    seconds.write_text(json.dumps({"cpu_s": before + used.ru_utime + used.ru_stime}))
    print(f"{run.name}: {time.monotonic() - begun:.0f} s", flush=True)


def report(folder: Path, names: list[str], seeds: list[int]) -> None:
    """Print the table, draw the plots. Raises `SystemExit` for runs of other code or of several processor models."""
    rows, made = [], set[tuple[str, str]]()
    for name in names:
        score, found, minutes = SCORES[name], [], []
        for seed in seeds:
            path = path_of(folder, name, seed)
            if not path.exists() or Run(path).status()["state"] != "finished":
                continue
            made.add(code_of(Run(path)))
            if len(made) > 1:
                raise SystemExit(f"{path} is of other code or another processor than those before: {made}")
            found.append(evaluate(path, score.episodes)[score.figure])
            minutes.append(json.loads((folder / f"{path.name}.json").read_text())["cpu_s"] / 60)
        if found:
            cells = [name, *(score.form.format(x) for x in (min(found), statistics.median(found)))]
            cells += [", ".join(score.form.format(x) for x in found), f"{statistics.median(minutes):.1f}"]
            rows.append("| " + " | ".join(cells) + " |")
            print(rows[-1], file=sys.stderr, flush=True)
        if name in PICTURES and len(found) == len(seeds):
            draw(folder, name, seeds)
    print("| | worst | median | each seed | minutes of one core |\n|---|---:|---:|---|---:|", *rows, sep="\n")
    for commit, processor in made:
        print(f"\nSeeds {seeds[0]} to {seeds[-1]}; commit {commit}; {processor}.")


def draw(folder: Path, name: str, seeds: list[int]) -> None:
    """Plot the evaluations during training."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    picture, column, scale, title = PICTURES[name]
    figure, axis = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    for seed in seeds:
        rows = Run(path_of(folder, name, seed)).rows()
        points = [(row["step"] / 1e6, scale * row[column]) for row in rows if column in row]
        axis.plot(*zip(*points, strict=True), "-o", markersize=3, linewidth=1.5, label=f"seed {seed}")
    axis.set(xlabel="million steps", ylabel=title, title=name)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(ROOT / ".github" / picture, dpi=110, facecolor="white")
    plt.close(figure)


def code_of(run: Run) -> tuple[str, str]:
    """Return the commit and the processor of a run. Raises `SystemExit` unless they match this checkout and machine."""
    sessions = provenance.read(run.path)
    kinds = {(entry.get("commit"), entry.get("processor")) for entry in sessions if "versions" in entry}
    commit, processor = kinds.pop() if len(kinds) == 1 else (None, None)
    same = commit and subprocess.run(["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", "kit"]).returncode == 0
    if not same or processor != cpu_model():
        had = f"{commit or 'no single commit'}, {processor or 'no single processor'}"
        raise SystemExit(f"{run.path} was made by other code or on another processor ({had}); train it again.")
    return str(commit), str(processor)


if __name__ == "__main__":
    main()
