"""Is what `auto` chooses as fast as the best there is? Its probe against an exhaustive sweep, in one run. By hand:

    python tests/bench/auto.py                                     # PPO on Reach, a run of a million steps
    python tests/bench/auto.py --env Ant
    python tests/bench/auto.py --algo SAC --total-steps 100000     # also A2C

The sweep trains every candidate of the grid (`kit.machine.tune`), threads and worlds, end to end through the real
trainer with the real rollouts; candidates take turns, and a rate is the median of its turns. Whoever does less than
`HOPELESS` of the best in the first round leaves. The probe answers as it would for a user who starts for the first
time. For A2C the grid has only the row; threads are swept, and twice and four times its worlds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

from kit.config import RunConfig
from kit.machine import tune
from kit.machine.info import describe
from kit.machine.tune import Candidate

TURN_STEPS = {"PPO": 4096, "A2C": 1024, "SAC": 256}
"""Env steps of a turn, or one whole iteration where that is more."""
HOPELESS = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Reach")
    parser.add_argument("--algo", default="PPO", choices=("PPO", "A2C", "SAC"))
    parser.add_argument("--total-steps", type=int, default=1_000_000, help="of the run that auto is asked for")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=50.0, help="no new round of turns after so long")
    args = parser.parse_args()
    config = RunConfig(env=args.env, algo=args.algo, total_steps=args.total_steps, device="cpu")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["KIT_CACHE"] = empty
        begun = time.perf_counter()
        resolved = config.resolve()
        probe_s = time.perf_counter() - begun
        said = tune.sentence(config, resolved)
    rates = sweep(config, args.turns, args.seconds)
    show(config, Candidate(int(resolved.n_envs), int(resolved.threads), "cpu"), rates)
    print(f"\n{said}\nprobed in {probe_s:.1f} s, the first imports included; {describe().title}")


def candidates(config: RunConfig) -> dict[Candidate, RunConfig]:
    """Everything in the grid, resolved; where that is the row alone, threads and worlds around it."""
    grid = tune.grid(config)
    if len(grid) > 1:
        return {candidate: candidate.of(config) for candidate in grid}
    row = config.resolve()
    found = {}
    for times in (1, 2, 4):
        for threads in range(int(row.threads), 0, -1):
            candidate = Candidate(times * int(row.n_envs), threads, "cpu")
            found[candidate] = row.replace(n_envs=candidate.n_envs, threads=threads)
    return found


def sweep(config: RunConfig, turns: int, seconds: float) -> dict[Candidate, list[float]]:
    """Env steps per second of every candidate, in each of its turns."""
    rigs = {candidate: trainer(resolved) for candidate, resolved in candidates(config).items()}
    rates: dict[Candidate, list[float]] = {candidate: [] for candidate in rigs}
    begun = time.perf_counter()
    for turn in range(turns):
        best = max((values[0] for values in rates.values() if values), default=0.0)
        for candidate, model in rigs.items():
            if turn and rates[candidate][0] < HOPELESS * best:
                continue
            before, start = model.num_timesteps, time.perf_counter()
            model.learn(TURN_STEPS[config.algo], reset_num_timesteps=False)
            rates[candidate].append((model.num_timesteps - before) / (time.perf_counter() - start))
        if turn + 1 < turns and time.perf_counter() - begun > seconds:
            break
    return rates


def trainer(resolved: RunConfig) -> Any:
    import kit
    from kit.trainers import make_trainer

    env = kit.make_vec(resolved.env, int(resolved.n_envs), "cpu", resolved.seed, threads=int(resolved.threads))
    model: Any = make_trainer(resolved, env)
    if resolved.algo == "SAC":  # past the random beginning, which is quicker
        model.learn(int(resolved.overrides.get("learning_starts", 100)) + 1, reset_num_timesteps=False)
    return model


def show(config: RunConfig, chosen: Candidate, rates: dict[Candidate, list[float]]) -> None:
    median = {candidate: statistics.median(values) for candidate, values in rates.items()}
    # A2C's update is its rollout: with more worlds there are fewer updates, which is not the same training.
    other = {c for c in median if config.algo == "A2C" and c.n_envs != chosen.n_envs}
    best = max(rate for candidate, rate in median.items() if candidate not in other)
    turns = max(map(len, rates.values()))
    print(f"{config.algo} on {config.env}, a run of {config.total_steps:,} steps, up to {turns} turns each\n")
    print("| worlds | threads | env steps/s | of the best | |\n|---:|---:|---:|---:|---|")
    for candidate, rate in sorted(median.items(), key=lambda item: (item[0].n_envs, -item[0].threads)):
        mark = "auto" if candidate == chosen else "fewer updates" if candidate in other else ""
        print(f"| {candidate.n_envs} | {candidate.threads} | {rate:,.0f} | {rate / best:.2f} | {mark} |")
    print(f"\nauto / best = {median[chosen] / best:.2f}")


if __name__ == "__main__":
    main()
