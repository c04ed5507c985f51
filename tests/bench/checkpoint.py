"""Benchmark of checkpoints: how long training pauses, and how long the background write takes. Run by hand:

    python tests/bench/checkpoint.py

PPO on Ant with a small and a large network, and SAC on Reach with a growing replay buffer; each run saves ten
checkpoints. The stall is the time that `Training` spends on a save between two iterations; the writer thread works
during the next iteration.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from kit.config import RunConfig
from kit.measure.auto import resolve
from kit.runs import directory, session
from kit.runs.training import Training
from kit.runs.writer import Writer

CASES = {
    "PPO, Ant, 16 worlds, 64-64": {
        **{"env": "Ant", "algo": "PPO", "n_envs": 16, "total_steps": 40_960},
        "overrides": {"n_steps": 128},
    },
    "PPO, Ant, 256 worlds, 512-512": {
        **{"env": "Ant", "algo": "PPO", "n_envs": 256, "total_steps": 81_920},
        "overrides": {"n_steps": 16, "batch_size": 4096, "n_epochs": 1, "policy_kwargs": {"net_arch": [512, 512]}},
    },
    "SAC, Reach, 8 worlds": {
        **{"env": "Reach", "algo": "SAC", "n_envs": 8, "total_steps": 40_000},
        "overrides": {"gradient_steps": 1, "batch_size": 32},
    },
}


def measure(fields: dict) -> tuple[list[float], list[float], int]:
    """Return (stall of each save in s, duration of each write in s, bytes of all replay segments)."""
    stalls: list[float] = []
    writes: list[float] = []

    class Timed(Training):
        def _save(self, step, state):
            begun = time.perf_counter() - self._copying
            super()._save(step, state)
            stalls.append(time.perf_counter() - begun)

        def _state(self):
            begun = time.perf_counter()
            state = super()._state()
            self._copying = time.perf_counter() - begun
            return state

    write = Writer._write

    def timed(self, *args):
        begun = time.perf_counter()
        write(self, *args)
        writes.append(time.perf_counter() - begun)

    Writer._write, session.Training = timed, Timed
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            eval_every=0, checkpoint_every=fields["total_steps"] // 10, runs_dir=folder, run_name="run", **fields
        )
        path = directory.create(resolve(config))
        session.Session(path)()
        size = sum(p.stat().st_size for p in Path(path / "replay").glob("*")) if (path / "replay").exists() else 0
    Writer._write, session.Training = write, Training
    return stalls, writes, size


if __name__ == "__main__":
    print(
        "| run | checkpoints | stall, median | stall, worst | write, first | write, last |\n|---|---|---|---|---|---|"
    )
    for name, fields in CASES.items():
        stalls, writes, _ = measure(fields)
        ms = [f"{1000 * value:.1f} ms" for value in (statistics.median(stalls), max(stalls), writes[0], writes[-1])]
        print(f"| {name} | {len(stalls)} | " + " | ".join(ms) + " |", flush=True)
