"""Benchmark of peak resident memory: a large PPO and a large SAC training. Run by hand:

    python tests/bench/memory.py             # both; --case ppo or --case sac for one

Each case runs in a new process. ppo: PPO on Ant with 1,024 envs, two iterations, then a checkpoint. sac: SAC on Reach
with 8 envs; a replay buffer that `add` fills with a million transitions (20,000 transitions of random actions,
repeated), 50 gradient steps, and the largest checkpoint: the first, which writes all the transitions.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kit
from kit.format.segments import OffPolicy, Segment
from kit.measure.auto import resolve
from kit.measure.speed import random_actions
from kit.runs.writer import Writer
from kit.trainers import make_trainer

CASES = {"ppo": "PPO, 1,024 Ant worlds, two iterations, a checkpoint", "sac": "SAC, a million Reach transitions"}
MILLION = 1_000_000


def ppo(run_path: Path) -> str:
    trainer = _trainer(env="Ant", algo="PPO", n_envs=1024, overrides={"n_steps": 128, "batch_size": 4096})
    trainer.learn(2 * 1024 * 128)
    return _checkpoint(trainer, Writer(run_path, None, lambda written: None))


def sac(run_path: Path) -> str:
    trainer = _trainer(env="Reach", algo="SAC", n_envs=8, overrides={"buffer_size": MILLION, "batch_size": 256})
    replay, writer = trainer.replay_buffer, Writer(run_path, None, lambda written: None)
    seen = _play(trainer.tensor_env, 2_500)
    while replay.written < replay.capacity:
        replay.add(*seen[replay.written % len(seen)])
    assert len(replay) * replay.n_envs == MILLION
    trainer.learn(0)
    trainer.train(50, 256)
    return _checkpoint(trainer, writer)


def _play(env: Any, rows: int) -> list[tuple[Any, ...]]:
    """Return `rows` replay rows of random actions: (obs, action, reward, next obs, terminated), each for all envs."""
    actions, obs, played = random_actions(env, 64), env.reset(seed=0), []
    for row in range(rows):
        before, action = obs.clone(), actions[row % len(actions)].float()
        obs, reward, terminated, _, info = env.step(action)
        played.append((before, action, reward, info["final_obs"].clone(), terminated))
    return played


def _trainer(**fields: Any) -> Any:
    config = resolve(kit.RunConfig(device="cpu", **fields))
    env = kit.make_vec(config.env, int(config.n_envs), "cpu", 0, threads=int(config.threads))
    return make_trainer(config, env)


def _checkpoint(trainer: Any, writer: Writer) -> str:
    """Write a checkpoint as `kit.runs.training` does; return the text "on disk ... MB"."""
    segment = None
    if isinstance(trainer, OffPolicy):
        new = trainer.replay_rows(writer.replay_stop, trainer.replay_written)
        segment = Segment(writer.replay_stop, new)
        trainer.num_timesteps += len(new["rewards"]) * trainer.n_envs
    writer.submit(trainer.num_timesteps, trainer.state(), segment)
    writer.wait()
    if writer.error is not None:
        raise writer.error
    return f"on disk {sum(path.stat().st_size for path in writer.run_path.rglob('*') if path.is_file()) / 1e6:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        with tempfile.TemporaryDirectory() as folder:
            note = {"ppo": ppo, "sac": sac}[args.case](Path(folder))
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
        print(f"| {CASES[args.case]} | {peak / 1e9:.2f} GB | {note} |")
        return
    print("| | peak resident memory | |\n|---|---:|---|", flush=True)
    for case in [args.case] if args.case else CASES:
        subprocess.run([sys.executable, __file__, "--case", case, "--work"], check=True)


if __name__ == "__main__":
    main()
