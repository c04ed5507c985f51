"""Benchmark of learning: curves of kit and Stable-Baselines3 over five seeds, side by side. Run by hand:

    python tests/bench/curves.py runs/curves                  # run what is missing (an hour), print table, draw plot
    python tests/bench/curves.py runs/curves --jobs 2         # two runs at a time
    python tests/bench/curves.py runs/curves --env Reach --algo SAC --seeds 0 1
    python tests/bench/curves.py runs/curves --plot           # only table and .github/curves.png, from existing files

PPO, A2C, SAC and TD3 of kit and of SB3, with the same hyperparameters: on Reach those of the preset `auto` (without
TD3), on HalfCheetah-v5 SB3's defaults; TD3 explores with Gaussian noise of standard deviation 0.1. Both libraries train
in the same env: on Reach, SB3 uses kit's env through `TensorVecEnv`; HalfCheetah-v5 is Gymnasium's, for SB3 in
`DummyVecEnv`. Each run is a subprocess with one thread and writes a file with all training episodes. If the command is
interrupted, run it again: finished runs are skipped. A curve is the mean success or return of the latest episodes
(Reach: 100; HalfCheetah-v5: as many as envs).

The criterion was fixed before the first run. The areas under kit's five curves and under SB3's five are compared by the
exact two-sided rank-sum test; p ≤ 0.05 counts as a difference. Two sets of five seeds of one algorithm differ in 3 % of
cases, so at least one of six such pairs differs in 17 % of cases: a difference is a reason to investigate and to add
seeds. The same test is printed for the last fifth of the curves, and also the share of points at which kit's median
lies between SB3's lowest and highest seed; for two equal algorithms this share is 83 % on average.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PICTURE = Path(__file__).parents[2] / ".github" / "curves.png"
ALGORITHMS = ("PPO", "A2C", "SAC", "TD3")
LIBRARIES = ("kit", "sb3")
COLOURS = {"kit": "#0072b2", "sb3": "#d55e00"}
POINTS = 50


@dataclass(frozen=True)
class Setting:
    """Settings of a run, the same for both libraries."""

    preset: str
    n_envs: int
    total_steps: int
    overrides: dict[str, Any]


SETTINGS = {
    ("Reach", "PPO"): Setting("auto", 8, 50_000, {}),
    ("Reach", "A2C"): Setting("auto", 8, 40_000, {}),
    ("Reach", "SAC"): Setting("auto", 8, 10_000, {}),
    ("HalfCheetah-v5", "PPO"): Setting("sb3", 4, 300_000, {"n_steps": 512}),  # 2,048 per iteration, as SB3's default
    ("HalfCheetah-v5", "A2C"): Setting("sb3", 4, 300_000, {}),
    ("HalfCheetah-v5", "SAC"): Setting("sb3", 1, 20_000, {}),
    ("HalfCheetah-v5", "TD3"): Setting("sb3", 1, 30_000, {"learning_starts": 1000}),
}
Job = tuple[str, str, str, int]
"""Env, algorithm, library, seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs' files")
    parser.add_argument("--env", nargs="+", default=["Reach", "HalfCheetah-v5"])
    parser.add_argument("--algo", nargs="+", default=ALGORITHMS, choices=ALGORITHMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--plot", action="store_true", help="train nothing; table and plot from existing files")
    parser.add_argument("--library", choices=LIBRARIES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.library:
        run((args.env[0], args.algo[0], args.library, args.seeds[0]), args.folder)
        return
    if not args.plot:
        jobs = [(e, a, lib, s) for s in args.seeds for e in args.env for a in args.algo if (e, a) in SETTINGS
                for lib in LIBRARIES]
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda job: _start(job, args.folder), jobs))
    report(args.folder)


# -- one run -----------------------------------------------------------------------------------------------------------


def _file(folder: Path, job: Job) -> Path:
    return folder / f"{'-'.join(map(str, job)).lower()}.json"


def _start(job: Job, folder: Path) -> None:
    """Run `job` in a subprocess, unless its file exists."""
    if _file(folder, job).exists():
        return
    env, algo, library, seed = job
    command = [sys.executable, __file__, str(folder), "--env", env, "--algo", algo]
    subprocess.run([*command, "--library", library, "--seeds", str(seed)], check=True)


def run(job: Job, folder: Path) -> None:
    """Train, and write a file with [step, return, success or null] of every training episode."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(1)

    class Episodes(BaseCallback):
        ended: list[tuple[int, float, bool | None]] = []  # noqa: RUF012

        def _on_step(self) -> bool:
            for world in np.flatnonzero(np.asarray(self.locals["dones"])).tolist():
                info = self.locals["infos"][world]
                self.ended.append((self.num_timesteps, info["episode"]["r"], info.get("is_success")))
            return True

    env, algo, _, _ = job
    begun, episodes, model = time.process_time(), Episodes(), _model(job)
    model.learn(SETTINGS[env, algo].total_steps, callback=episodes)
    text = json.dumps({"episodes": episodes.ended, "cpu_s": time.process_time() - begun})
    partial = _file(folder, job).with_suffix(".part")
    partial.write_text(text)
    partial.rename(_file(folder, job))
    print(*job, f"{time.process_time() - begun:.0f} s", flush=True)


def _model(job: Job) -> Any:
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    import kit
    from kit.config import RunConfig
    from kit.envs.sb3 import TensorVecEnv
    from kit.measure.auto import resolve
    from kit.trainers import algorithm, make_trainer
    from kit.trainers.arguments import arguments

    env, algo, library, seed = job
    setting = SETTINGS[env, algo]
    config = resolve(RunConfig(
        env=env, algo=algo, preset=setting.preset, n_envs=setting.n_envs, seed=seed, device="cpu", threads=1,
        total_steps=setting.total_steps, overrides=setting.overrides,
    ))  # fmt: skip
    if library == "kit":
        return make_trainer(config, kit.make_vec(env, setting.n_envs, "cpu", seed, threads=1))
    if env.endswith("-v5"):
        venv: Any = make_vec_env(env, setting.n_envs, seed=seed)
    else:
        venv = TensorVecEnv(kit.make_vec(env, setting.n_envs, "cpu", seed, threads=1))
    hyper = arguments(algorithm.find(algo), config.overrides)
    if algo == "TD3":
        width = venv.action_space.shape[0]
        hyper["action_noise"] = NormalActionNoise(np.zeros(width), np.full(width, 0.1))
    return getattr(sb3, algo)("MlpPolicy", venv, seed=seed, device="cpu", **hyper)


# -- comparison --------------------------------------------------------------------------------------------------------


def curves(folder: Path, env: str, algo: str) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """Return steps (points,), and library -> curves (seeds, points), for the seeds that both libraries have."""
    found = {lib: {path.stem.rpartition("-")[2]: path for path in folder.glob(f"{env}-{algo}-{lib}-*.json".lower())}
             for lib in LIBRARIES}  # fmt: skip
    seeds = sorted(found["kit"].keys() & found["sb3"].keys(), key=int)
    if not seeds:
        return None
    setting = SETTINGS[env, algo]
    steps = np.linspace(setting.total_steps / POINTS, setting.total_steps, POINTS)
    size = setting.n_envs if env.endswith("-v5") else 100
    by_library = {
        lib: np.array([_curve(json.loads(found[lib][seed].read_text())["episodes"], steps, size) for seed in seeds])
        for lib in LIBRARIES
    }
    known = np.all([np.isfinite(rows).all(0) for rows in by_library.values()], axis=0)
    return steps[known], {lib: rows[:, known] for lib, rows in by_library.items()}


def _curve(episodes: list[tuple[int, float, bool | None]], steps: np.ndarray, size: int) -> np.ndarray:
    """Mean over the latest `size` episodes at each of `steps`: success in percent where it is known, else return."""
    ends = np.array([end for end, _, _ in episodes])
    values = np.array([total if success is None else 100.0 * success for _, total, success in episodes])
    counts = np.searchsorted(ends, steps, side="right")
    return np.array([values[max(0, n - size) : n].mean() if n else math.nan for n in counts])


def rank_sum(first: np.ndarray, second: np.ndarray) -> float:
    """Exact two-sided p of the rank-sum test (Mann and Whitney, 1947), by enumeration of all splits of the values."""
    values, n = np.concatenate([first, second]), len(first)
    wins = np.sign(values[:, None] - values)  # (n + m, n + m), ties count half on either side

    def lead(chosen: tuple[int, ...]) -> float:
        others = [i for i in range(len(values)) if i not in chosen]
        return abs(wins[np.ix_(chosen, others)].sum())

    observed = lead(tuple(range(n)))
    return float(np.mean([lead(chosen) >= observed for chosen in itertools.combinations(range(len(values)), n)]))


def report(folder: Path) -> None:
    """Print the table and draw the plot."""
    panels = {}
    print("| | | seeds | kit, at the end | SB3, at the end | area: p | last fifth: p | median within SB3's band |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for env, algo in SETTINGS:
        found = curves(folder, env, algo)
        if found is None:
            continue
        steps, rows = panels[env, algo] = found
        last = {lib: values[:, -max(1, len(steps) // 5) :].mean(1) for lib, values in rows.items()}
        spread = {lib: values.std(ddof=1) if len(values) > 1 else 0.0 for lib, values in last.items()}
        ends = [f"{last[lib].mean():,.0f} ± {spread[lib]:,.0f}" for lib in LIBRARIES]
        tests = [rank_sum(rows["kit"].mean(1), rows["sb3"].mean(1)), rank_sum(*last.values())]
        middle = np.median(rows["kit"], axis=0)
        within = np.mean((middle >= rows["sb3"].min(0)) & (middle <= rows["sb3"].max(0)))
        cells = [env, algo, str(len(rows["kit"])), *ends, *(f"{p:.2f}" for p in tests), f"{within:.0%}"]
        print("| " + " | ".join(cells) + " |")
    print("\nAt the end: mean over the last fifth, ± standard deviation over seeds; success in % (Reach), return.")
    if panels:
        _draw(panels)


def _draw(panels: dict[tuple[str, str], tuple[np.ndarray, dict[str, np.ndarray]]]) -> None:
    """Plot medians, and bands from the lowest to the highest seed; one row of plots per env."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    envs = list(dict.fromkeys(env for env, _ in SETTINGS))
    figure, axes = plt.subplots(len(envs), len(ALGORITHMS), figsize=(10, 5.2), squeeze=False, layout="constrained")
    for (row, env), (column, algo) in itertools.product(enumerate(envs), enumerate(ALGORITHMS)):
        ax = axes[row, column]
        ax.set_title(f"{algo} on {env}", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
        if column == 0:
            ax.set_ylabel("return" if env.endswith("-v5") else "success, %")
        if row == len(envs) - 1:
            ax.set_xlabel("thousand steps")
        steps, rows = panels.get((env, algo), (np.zeros(0), {}))
        for lib, values in rows.items():
            ax.fill_between(steps / 1000, values.min(0), values.max(0), color=COLOURS[lib], alpha=0.2, linewidth=0)
            label = {"kit": "kit", "sb3": "Stable-Baselines3"}[lib]
            ax.plot(steps / 1000, np.median(values, axis=0), color=COLOURS[lib], label=label, linewidth=1.6)
    axes[0, 0].legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(PICTURE, dpi=110, facecolor="white")
    print(f"Drawn to {PICTURE}.")


if __name__ == "__main__":
    main()
