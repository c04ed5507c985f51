"""What a GPU does with thousands of robots: bare physics, env, PPO end to end, and what they are of each other.

    python tests/bench/gpu.py                       # Ant at 4096 worlds, Go1 and G1 at 2048, on the CUDA device
    python tests/bench/gpu.py --task Ant --worlds 1024 8192 --seconds 10
    python tests/bench/gpu.py --json

"bare" is MuJoCo Warp alone: its captured graph of one control step launched again and again, same worlds, same random
controls, nothing read. "env" adds actions, observations, rewards and resets; "PPO" adds the policy and its updates.
All three count environment steps; physics steps are environment steps times substeps. Without a GPU it says so and
runs a few worlds on Warp's CPU device, which shows that the command works and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from unittest import mock

import torch

from kit.config import RunConfig
from kit.envs import make_task
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from kit.sim.kernels import mjw, wp
from kit.sim.warp import WarpSim
from kit.trainers import make_trainer

WORLDS = {"Ant": 4096, "Go1Joystick": 2048, "G1Joystick": 2048}
TINY = 8
ROLLOUT = 24  # control steps per PPO iteration, as is usual with thousands of worlds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=WORLDS, nargs="+", default=list(WORLDS))
    parser.add_argument("--worlds", type=int, nargs="+", help="instead of each task's own number")
    parser.add_argument("--seconds", type=float, default=5.0, help="per figure")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    seconds = args.seconds if cuda else min(args.seconds, 1.0)
    machine = {
        "device": torch.cuda.get_device_name() if cuda else f"no CUDA GPU; Warp's CPU device on {platform.processor()}",
        "cuda": torch.version.cuda, "torch": torch.__version__, "warp": wp.config.version,
        "mujoco_warp": mjw.__version__,
    }  # fmt: skip
    rows = []
    for task in args.task:
        for worlds in (args.worlds or [WORLDS[task]]) if cuda else [TINY]:
            try:
                rows.append(measure(task, worlds, device, seconds))
            except UserError as error:  # a robot whose model cannot be fetched
                print(f"{task}: skipped, {error}")
    print(json.dumps({"machine": machine, "rows": rows}) if args.json else table(machine, rows))


def measure(name: str, worlds: int, device: torch.device, seconds: float) -> dict[str, float | str]:
    """Environment steps per second of the three layers, each warmed up first."""
    started = time.perf_counter()
    with mock.patch("kit.envs.vec.make_sim", lambda model, n, *_: WarpSim(model, n, device)):  # on the CPU as well
        env = TensorEnv(make_task(name), worlds, device)
    prepared = time.perf_counter() - started
    low, high = (torch.as_tensor(bound, device=device) for bound in (env.action_space.low, env.action_space.high))
    action = low + (high - low) * torch.rand(worlds, len(low), device=device)

    env.reset(seed=0)
    for _ in range(20):
        env.step(action)
    usual = env.sim.snapshot()  # bare worlds never begin anew; put back here, they are no worse off than the env's
    bare = rate(lambda: env.sim.step(env.task.substeps), worlds, device, seconds, lambda: env.sim.restore(usual))
    stepped = rate(lambda: env.step(action), worlds, device, seconds)

    n_steps = ROLLOUT if device.type == "cuda" else 8
    config = RunConfig(
        env=name, algo="PPO", preset="sb3", n_envs=worlds, device=str(device), eval_every=0, total_steps=10**9,
        overrides={"n_steps": n_steps, "batch_size": worlds * n_steps // 4, "n_epochs": 5,
                   "policy_kwargs": {"net_arch": [512, 256, 128]}},
    ).resolve()  # fmt: skip
    trainer = make_trainer(config, env)
    trainer.learn(worlds * n_steps)  # compiles what it compiles

    def iteration() -> None:
        trainer.learn(worlds * n_steps, reset_num_timesteps=False)

    ppo = rate(iteration, worlds * n_steps, device, seconds)
    return {
        "task": name, "worlds": worlds, "prepared_s": prepared, "bare": bare, "env": stepped, "ppo": ppo,
        "env/bare": stepped / bare, "ppo/bare": ppo / bare, "physics_steps": bare * env.task.substeps,
        "memory_gb": used_memory() / 1e9 if device.type == "cuda" else 0.0,
    }  # fmt: skip


def rate(
    work: Callable[[], object], steps: int, device: torch.device, seconds: float, before: Callable[[], object] = int
) -> float:
    """Steps per second of `work`, which takes `steps` of them each time; `before` every 20 times, not counted."""
    work()
    passed, done = 0.0, 0
    while passed < seconds:
        before()
        wait(device)
        started = time.perf_counter()
        for _ in range(20):
            work()
            done += steps
            if device.type == "cpu" and time.perf_counter() - started > seconds:
                break
        wait(device)
        passed += time.perf_counter() - started
    return done / passed


def used_memory() -> int:
    """Bytes in use on the card, by whomever: Warp's are not torch's."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(machine: dict[str, str | None], rows: list[dict[str, float | str]]) -> str:
    columns = [
        "task",
        "worlds",
        "prepared_s",
        "physics_steps",
        "bare",
        "env",
        "ppo",
        "env/bare",
        "ppo/bare",
        "memory_gb",
    ]
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = [f"{v:,.0f}" if isinstance(v, float) and v >= 100 else f"{v:.2f}" if isinstance(v, float) else str(v)
                 for v in (row[column] for column in columns)]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
