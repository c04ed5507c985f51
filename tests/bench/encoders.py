"""Benchmark of clip encoders: behaviour cloning of the scripted seeker, for the same time each. Run by hand:

    python tests/bench/encoders.py                       # all encoders, 10 minutes of one core each
    python tests/bench/encoders.py clip_cnn --minutes 5

Columns: clips/s of a forward pass (8 frames of 64×64, batches of 32), seconds per 1,000 updates with batch size 128,
and profit and share of broken plates of the cloned policy over 40 test shifts. An encoder is not trained if 1,000
updates would take longer than the given time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import kit
from kit.config import RunConfig
from kit.runs import demonstrations
from kit.trainers import make_trainer
from kit.trainers.planning import plan

ENV, SHIFTS, BATCH = "DishwashingVideo", 40, 128
ENCODERS = ("clip_cnn", "nature_cnn", "multi_camera", "simple2dcnn", "simple3dcnn", "r3d18", "timesformer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*", default=ENCODERS, help="default: all")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--dataset", type=Path, help="recorded shifts; default: record them first")
    parser.add_argument("--runs-dir", default=tempfile.mkdtemp())
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = args.dataset or Path(args.runs_dir) / "shifts"
    if not dataset.exists():
        kit.record("scripted:seeker", dataset, env=ENV, episodes=SHIFTS)
    print(f"| encoder | clips/s | s per 1,000 updates | profit after {args.minutes:g} minutes, USD/h | broken |")
    print("|---|" + 4 * "---:|")
    for name in args.encoders:
        print(f"| `{name}` | {' | '.join(row(name, str(dataset), args.minutes, args.runs_dir))} |", flush=True)


def row(name: str, dataset: str, minutes: float, runs_dir: str) -> list[str]:
    config = RunConfig(
        env=ENV, algo="BC", encoder=name, dataset=dataset, threads=1, eval_every=0, runs_dir=runs_dir, run_name=name,
        overrides={"batch_size": BATCH},
    )  # fmt: skip
    clips, update_s = speed(config)
    figures = [f"{clips:,.0f}", f"{1000 * update_s:,.0f}"]
    if 1000 * update_s > 60 * minutes:
        return [*figures, "not trained", ""]
    run = kit.train(config.replace(total_steps=int(60 * minutes / update_s) * BATCH))
    scores = kit.evaluate(run, SHIFTS, "latest")
    return [*figures, f"{scores['shift/profit_per_hour']:.1f}", f"{scores['shift/breakage_rate']:.1%}"]


def speed(config: RunConfig) -> tuple[float, float]:
    """Return the clips per second of a forward pass, and the seconds per update."""
    planned = plan(config).config
    env = kit.make_vec(ENV, 1, "cpu", 0, 1)
    trainer: Any = make_trainer(planned, env)
    trainer.set_dataset(demonstrations.read(planned, env)[:2], {})
    batch = trainer.replay_buffer.sample(32, with_next=False).obs
    with torch.no_grad():
        clips = 32 * rate(lambda: trainer.policy.extract_features(batch, trainer.policy.pi_features_extractor))
    trainer.gradient_steps = 1
    trainer._current_progress_remaining = 1.0
    trainer._logger = kit_logger()
    return clips, 1 / rate(trainer.train)


def kit_logger() -> Any:
    from stable_baselines3.common.logger import Logger

    return Logger(None, [])


def rate(work: Any, seconds: float = 5.0) -> float:
    """Return calls per second, after one call that is not timed."""
    work()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds or not count:
        work()
        count += 1
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
