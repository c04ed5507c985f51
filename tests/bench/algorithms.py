"""Table of algorithms on Gymnasium's MuJoCo envs, from the runs of tests/bench/algorithms.yaml. Run by hand:

    kit batch tests/bench/algorithms.yaml               # trains what is missing (hours); run it again to continue
    python tests/bench/algorithms.py runs/algorithms    # prints the table, draws .github/algorithms.png

A score is a mean return over seeds, in brackets the lowest and the highest seed: of the last policy in the evaluation
at the end of training, and of the policy that was best in the evaluations, tested in other episodes. Only of
finished runs. Published values are other people's, on v3 or v5 envs, with hyperparameters tuned for each env.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

from kit import Run

ROOT = Path(__file__).parents[2]
PUBLISHED = {
    ("HalfCheetah-v5", "PPO"): "5,819 (zoo, 1 M)", ("HalfCheetah-v5", "SAC"): "9,535 (zoo, 1 M)",
    ("HalfCheetah-v5", "TD3"): "9,656 (zoo, 1 M)", ("Ant-v5", "PPO"): "1,327 (zoo, 1 M); 2,138 (SLM, 10 M)",
    ("Ant-v5", "SAC"): "4,616 (zoo, 1 M)", ("Ant-v5", "TD3"): "5,813 (zoo, 1 M)",
    ("Hopper-v5", "PPO"): "2,410 (zoo, 1 M)", ("Hopper-v5", "SAC"): "2,326 (zoo, 1 M)",
    ("Hopper-v5", "TD3"): "3,606 (zoo, 1 M)", ("Walker2d-v5", "PPO"): "3,479 (zoo, 1 M)",
    ("Walker2d-v5", "SAC"): "3,863 (zoo, 1 M)", ("Walker2d-v5", "TD3"): "4,718 (zoo, 1 M)",
    ("Humanoid-v5", "PPO"): "2,661 (SLM, 10 M)",
}  # fmt: skip
"""zoo: rl-baselines3-zoo, benchmark.md; SLM: SLM-Lab, docs/BENCHMARKS.md."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    args = parser.parse_args()
    groups: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for path in sorted(args.folder.glob("*/config.yaml")):
        run = Run(path.parent)
        if run.status()["state"] == "finished":
            groups[run.config.env, run.config.algo, run.config.total_steps].append(run)
    print("| env | algorithm | steps | seeds | last policy | best policy, tested | published |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for (env, algo, steps), runs in sorted(groups.items()):
        last = spread([curve(run)[-1][1] for run in runs])
        best = spread([row["test/mean_return"] for run in runs for row in run.rows() if "test/mean_return" in row])
        print(f"| {env} | {algo} | {steps:,} | {len(runs)} | {last} | {best} | {PUBLISHED.get((env, algo), '')} |")
    draw(groups)


def spread(scores: list[float]) -> str:
    return f"{statistics.fmean(scores):,.0f} ({min(scores):,.0f}, {max(scores):,.0f})"


def curve(run: Run) -> list[tuple[int, float]]:
    """Return (steps, mean return) of each evaluation during training."""
    return [(row["step"], row["eval/mean_return"]) for row in run.rows() if "eval/mean_return" in row]


def draw(groups: dict[tuple[str, str, int], list[Run]]) -> None:
    """Plot the mean over seeds of each env and algorithm, and a band from the lowest to the highest seed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    envs = sorted({env for env, _, _ in groups})
    figure, axes = plt.subplots(1, len(envs), figsize=(3.0 * len(envs), 2.8), layout="constrained", squeeze=False)
    colours = {"PPO": "#1f77b4", "A2C": "#ff7f0e", "SAC": "#2ca02c", "TD3": "#d62728", "CrossQ": "#9467bd"}
    for (env, algo, _), runs in sorted(groups.items()):
        axis, curves = axes[0][envs.index(env)], [curve(run) for run in runs]
        points = list(zip(*curves, strict=False))
        steps = [at[0][0] / 1e6 for at in points]
        scores = [[score for _, score in at] for at in points]
        axis.plot(steps, [statistics.fmean(at) for at in scores], color=colours[algo], label=algo)
        axis.fill_between(steps, list(map(min, scores)), list(map(max, scores)), color=colours[algo], alpha=0.2, lw=0)
        axis.set(title=env, xlabel="million steps")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("mean return")
    used = {algo for _, algo, _ in groups}
    lines = [Line2D([], [], color=colour, label=algo) for algo, colour in colours.items() if algo in used]
    figure.legend(handles=lines, frameon=False, fontsize=8, loc="outside right upper")
    figure.savefig(ROOT / ".github" / "algorithms.png", dpi=110, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    main()
