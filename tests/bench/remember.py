"""Benchmark of memory: RecurrentPPO and PPO on CartPole-v1 without velocities in the observation. Run by hand:

    python tests/bench/remember.py runs/remember

Both train with the same hyperparameters and number of steps, with three seeds. Prints the mean return (500 at most)
over 100 test episodes of the last policy, with deterministic actions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import gymnasium
import numpy as np

import kit

OVERRIDES: dict[str, Any] = {
    "n_steps": 32, "batch_size": 256, "n_epochs": 10, "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
    "gamma": 0.98, "gae_lambda": 0.8, "normalize": True,
}  # fmt: skip
"""From RL Baselines3 Zoo for CartPole without velocities, with half the epochs; observations and rewards normalised."""
NETWORKS: dict[str, dict[str, Any]] = {
    "RecurrentPPO": {"net_arch": [64], "lstm_hidden_size": 64},
    "PPO": {"net_arch": [64, 64]},
}


class Pole(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Gymnasium's CartPole-v1 with only the cart's position (m) and the pole's angle (rad) as observation."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode))
        space = self.env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs_dir")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("| | return, by seed | median | training, s |\n|---|---|---:|---:|")
    for algo, policy in NETWORKS.items():
        returns, begun = [], time.monotonic()
        for seed in range(args.seeds):
            run = kit.train(
                env="remember:Pole", algo=algo, total_steps=args.steps, n_envs=8, seed=seed, eval_every=0,
                runs_dir=args.runs_dir, device="cpu", overrides={**OVERRIDES, "policy_kwargs": policy},
            )  # fmt: skip
            returns.append(kit.evaluate(run, 100, "latest")["mean_return"])
        each = (time.monotonic() - begun) / args.seeds
        told = " / ".join(f"{value:.0f}" for value in returns)
        print(f"| {algo} | {told} | {statistics.median(returns):.0f} | {each:.0f} |", flush=True)


if __name__ == "__main__":
    main()
