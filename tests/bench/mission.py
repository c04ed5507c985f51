"""Benchmark of Mission: env steps/s, PPO of kit and Stable-Baselines3, the large presets, the scripted team. By hand:

    python tests/bench/mission.py                    # all four, about ten minutes on two idle cores
    python tests/bench/mission.py --only game        # env steps/s on one core
    python tests/bench/mission.py --only ppo         # training with a 64-64 network on all cores
    python tests/bench/mission.py --only presets     # fast, heavy and beast, and their matrix products alone
    python tests/bench/mission.py --only teams       # the scripted team against the three levels, 200 maps each

`mission_plain.py` implements the same rules in plain Python (tests/tasks/test_mission.py compares them step by step);
SB3 runs 16 such envs in subprocesses. In `game` and `ppo`, contenders take turns; the tables show medians and ranges
over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kit
from kit.config import RunConfig

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.bench.mission_plain import PlainMission

WORLDS, PROCESSES = 4096, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("game", "ppo", "presets", "teams"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batch-size", type=int, help="batch size of kit's PPO; default: the preset's")
    args = parser.parse_args()
    for name, part in {"game": game, "ppo": ppo, "presets": presets, "teams": teams}.items():
        if args.only in (None, name):
            ppo(args.turns, args.batch_size) if part is ppo else part(args.turns)


def table(title: str, turns: int, contenders: dict[str, tuple[int, Callable[[], Any]]]) -> None:
    """Measure `contenders` and print their env steps/s; name -> (env steps per turn, function that runs a turn)."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, (steps, turn) in contenders.items():
            begun = time.perf_counter()
            turn()
            rates[name].append(steps / (time.perf_counter() - begun))
    last = statistics.median(list(rates.values())[-1])
    print(f"\n| {title} | env steps/s | lowest – highest | relative to the last row |\n|---|---:|---:|---:|")
    for name, found in rates.items():
        middle = statistics.median(found)
        spread = f"{min(found):,.0f} – {max(found):,.0f}"
        print(f"| {name} | {middle:,.0f} | {spread} | {middle / last:,.1f} × |", flush=True)


def game(turns: int) -> None:
    """Measure env steps/s with random commands, including observations, rewards and resets."""
    torch.set_num_threads(1)
    env = kit.make_vec("Mission", WORLDS, "cpu", 0, 1)
    env.start_training(seed=0)  # otherwise no time limit would be reached while measuring
    commands = [torch.randint(9, (WORLDS, 4)) for _ in range(20)]

    def batched() -> None:
        for command in commands * 5:
            env.step(command)

    one = PlainMission()
    one.reset(seed=0)
    alone = [command[0].tolist() for command in commands]

    def plain() -> None:
        for command in alone * 100:
            if any(one.step(command)[2:4]):
                one.reset()

    batched()
    table(
        f"{WORLDS:,} worlds on one core, random commands",
        turns,
        {"kit": (WORLDS * 100, batched), "plain Python, one world": (2000, plain)},
    )


def ppo(turns: int, batch_size: int | None = None) -> None:
    """Compare PPO of kit (preset `auto`, 64-64 network) and of SB3 (16 × 256 steps, batch 1024, as many epochs)."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from kit.trainers import make_trainer

    own = {"policy_kwargs": {"net_arch": [64, 64]}} | ({"batch_size": batch_size} if batch_size else {})
    asked = RunConfig(env="Mission", total_steps=100_000_000, device="cpu", overrides=own)
    config = kit.resolve(asked)
    steps = int(config.n_envs) * config.overrides["n_steps"]
    env = kit.make_vec(config.env, int(config.n_envs), "cpu", 0, int(config.threads))
    model = make_trainer(config, env)
    model.learn(steps)

    threads = torch.get_num_threads()
    stock = sb3.PPO(
        "MlpPolicy", SubprocVecEnv([PlainMission] * PROCESSES, start_method="forkserver"), n_steps=256,
        batch_size=1024, n_epochs=config.overrides["n_epochs"], device="cpu", seed=0,
    )  # fmt: skip

    def ours() -> None:
        torch.set_num_threads(threads)
        model.learn(8 * steps, reset_num_timesteps=False)

    def theirs() -> None:
        torch.set_num_threads(1)
        stock.learn(PROCESSES * 256, reset_num_timesteps=False)

    theirs()
    hyper = config.overrides
    title = f"PPO, 64-64, {hyper['n_epochs']} epochs"
    kits = f"kit, {config.n_envs:,} × {hyper['n_steps']} steps, batch {hyper['batch_size']:,}"
    others = f"SB3, SubprocVecEnv of the plain version, {PROCESSES} × 256 steps, batch 1,024"
    table(title, turns, {kits: (8 * steps, ours), others: (PROCESSES * 256, theirs)})
    stock.env.close()


def presets(turns: int) -> None:
    """Measure one iteration of each preset, after a warm-up iteration, and its matrix products alone."""
    from kit.trainers import make_trainer

    print("\n| preset | env steps/s | share of matrix products | an iteration |\n|---|---:|---:|---:|")
    for name in ("fast", "heavy", "beast"):
        config = kit.resolve(RunConfig(env="Mission", preset=name, total_steps=100_000_000, device="cpu"))
        model = make_trainer(config, kit.make_vec(config.env, int(config.n_envs), "cpu", 0, int(config.threads)))
        rollout, hyper = int(config.n_envs) * config.overrides["n_steps"], config.overrides
        model.learn(rollout)
        begun = time.perf_counter()
        model.learn(rollout, reset_num_timesteps=False)
        seconds = time.perf_counter() - begun
        alone = rollout * hyper["n_epochs"] * _products(model, hyper["batch_size"], turns)
        print(f"| {name} | {rollout / seconds:,.0f} | {alone / seconds:.2f} | {seconds:.0f} s |", flush=True)


def _products(model: Any, rows: int, turns: int) -> float:
    """Return the seconds of matrix products per row of an update, for both networks.

    The products are the forward pass, gradients of the weights and, except in first layers, gradients of the inputs."""
    shapes = [p.shape for p in model.policy.parameters() if p.ndim == 2]
    pairs = [(torch.randn(rows, cols), torch.randn(out, cols), torch.randn(rows, out)) for out, cols in shapes]
    found = []
    for _ in range(turns):
        begun = time.perf_counter()
        for inputs, weight, grad in pairs:
            torch.mm(inputs, weight.t())
            torch.mm(grad.t(), inputs)
            if weight.shape[1] != model.observation_space.shape[0]:
                torch.mm(grad, weight)
        found.append((time.perf_counter() - begun) / rows)
    return min(found)


def teams(turns: int) -> None:
    """Print captures and losses of the scripted team, whose units move straight to the zone, on 200 maps per level."""
    print("\n| the scripted team against | captures in 200 episodes | units lost in an episode |\n|---|---:|---:|")
    for level in ("easy", "standard", "hard"):
        env: Any = kit.make_vec("Mission", 200, "cpu", 1_000_003, env_options={"level": level})
        obs, over, won = env.reset(), torch.zeros(200, dtype=torch.bool), torch.zeros(200, dtype=torch.bool)
        lost = torch.zeros(200)
        while not over.all():
            obs, _, terminated, truncated, info = env.step(env.task.straight(obs))
            won |= terminated & ~over
            lost += (info["reward/losses"] < 0) * ~over
            over |= terminated | truncated
        print(f"| {level} | {won.sum().item()} ({won.float().mean():.0%}) | {lost.mean():.0f} |", flush=True)


if __name__ == "__main__":
    main()
