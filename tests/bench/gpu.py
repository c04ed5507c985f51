"""Benchmark on a GPU with thousands of envs: env steps/s of physics, env and PPO. Run by hand:

    python tests/bench/gpu.py                       # Ant with 4096 envs, Go1 and G1 with 2048, on the CUDA device
    python tests/bench/gpu.py --task Ant --worlds 1024 8192 --seconds 10
    python tests/bench/gpu.py --mjlab-python A/bin/python --playground-python B/bin/python --output gpu.md

"bare" is MuJoCo Warp alone: the captured graph of one control step, launched repeatedly, with constant controls from a
random action; no result is read. "env" adds actions, observations, rewards and resets; "ppo" adds the policy and its
updates. All three count env steps; physics steps are env steps times substeps. "compile" is the time to build
the simulator and to make its first step in a new process, "cold" with an empty kernel cache and "warm" with a filled
one. "repeats" steps twice from one snapshot and counts the fields that are equal to the bit.

mjlab and MuJoCo Playground train their own G1 velocity task with the same number of envs, each in its own Python
environment, through their documented entry points; these two commands have not been tried yet.

Without a GPU, or with --device cpu, the script runs 8 envs on Warp's CPU device, only to check that it works: the
figures mean nothing there. "compile" is then skipped unless --compile is given, because it takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kit.config import RunConfig
from kit.envs import make_task
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from kit.machine import settings
from kit.measure.auto import resolve
from kit.sim.kernels import wp
from kit.sim.warp import WarpSim
from kit.trainers import make_trainer
from kit.trainers.base import READ_EVERY

import mujoco_warp as mjw  # isort: skip  initialises Warp, so after kit.machine.warp

WORLDS = {"Ant": 4096, "Go1Joystick": 2048, "G1Joystick": 2048}
TINY = 8
OTHERS_TASK = "G1Joystick"
MJLAB = ["-m", "mjlab.scripts.train", "Mjlab-Velocity-Flat-Unitree-G1", "--env.scene.num-envs", "{worlds}",
         "--agent.max-iterations", "30"]  # fmt: skip
PLAYGROUND = """
import functools, sys
from brax.training.agents.ppo import networks, train
from mujoco_playground import registry, wrapper
from mujoco_playground.config import locomotion_params
name = "G1JoystickFlatTerrain"
given = dict(locomotion_params.brax_ppo_config(name))
factory = functools.partial(networks.make_ppo_networks, **given.pop("network_factory"))
given |= {"num_timesteps": 20_000_000, "num_evals": 3, "num_envs": int(sys.argv[1])}
train.train(environment=registry.load(name), wrap_env_fn=wrapper.wrap_for_brax_training, network_factory=factory,
            progress_fn=lambda _, figures: print("steps/s", figures.get("training/sps", "")), **given)
"""
ROLLOUT = 24  # control steps per PPO iteration, as usual with thousands of envs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=WORLDS, nargs="+", default=list(WORLDS))
    parser.add_argument("--worlds", type=int, nargs="+", help="numbers of envs; default: one number per task")
    parser.add_argument("--seconds", type=float, default=5.0, help="minimum duration of each measurement")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="measure compiling; default: on CUDA")
    parser.add_argument("--mjlab-python", help="Python interpreter of an environment with mjlab")
    parser.add_argument("--playground-python", help="Python interpreter of an environment with mujoco_playground")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path, help="write the table to this file too")
    args = parser.parse_args()

    cuda = args.device == "cuda"
    device = torch.device("cuda" if cuda else "cpu")
    seconds = args.seconds if cuda else min(args.seconds, 1.0)
    products = settings.apply(args.device)  # as in a run: with TF32 if the GPU supports it
    machine = {
        "device": torch.cuda.get_device_name() if cuda else f"Warp's CPU device on {platform.machine()}",
        "cuda": torch.version.cuda, "torch": torch.__version__, "warp": wp.config.version,
        "mujoco_warp": mjw.__version__, "float32 products": products,
    }  # fmt: skip
    rows = []
    for task in args.task:
        for worlds in (args.worlds or [WORLDS[task]]) if cuda else [TINY]:
            try:
                rows.append(measure(task, worlds, device, seconds))
            except UserError as error:  # the robot's model cannot be fetched
                print(f"{task}: skipped, {error}")
    further: dict[str, object] = {}
    for task in args.task if (cuda if args.compile is None else args.compile) else []:
        with tempfile.TemporaryDirectory() as folder:
            further[f"compile {task}, s"] = {kind: first_launch(task, device, folder) for kind in ("cold", "warm")}
    if OTHERS_TASK in args.task:
        worlds = (args.worlds or [WORLDS[OTHERS_TASK]])[-1]
        for name, python, command in (
            ("mjlab", args.mjlab_python, [word.format(worlds=worlds) for word in MJLAB]),
            ("MuJoCo Playground", args.playground_python, ["-c", PLAYGROUND, str(worlds)]),
        ):
            if python:
                further[f"{name} G1, {worlds} worlds, steps/s"] = other(python, command)
    text = table(machine, rows) + "".join(f"\n\n{what}: {found}" for what, found in further.items())
    print(json.dumps({"machine": machine, "rows": rows, "further": further}) if args.json else text)
    if args.output:
        args.output.write_text(text + "\n")


def first_launch(task: str, device: torch.device, folder: str) -> float:
    """Return the seconds until the first physics step of `task`, in a new process with `folder` as kernel cache."""
    script = (
        "import time; from kit.envs import make_task; from kit.sim.warp import WarpSim; model = make_task('{}').model; "
        "begun = time.perf_counter(); sim = WarpSim(model, 8, '{}'); sim.step(); sim.qpos.cpu(); "
        "print(time.perf_counter() - begun)"
    )
    environment = {**os.environ, "KIT_CACHE": folder} | {"CUDA_CACHE_PATH": f"{folder}/driver"}
    environment.pop("WARP_CACHE_PATH", None)
    command = [sys.executable, "-c", script.format(task, device.type)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return round(float(child.stdout.split()[-1]), 1)


def other(python: str, command: list[str]) -> float | str:
    """Run another project; return the median of the last half of its printed rates, or its last output if none."""
    child = subprocess.run([python, *command], capture_output=True, text=True, check=False)
    said = child.stdout + child.stderr
    rates = re.findall(r"(?:steps/s|Computation:|Steps per second:)\s*([\d,]+(?:\.\d+)?)", said)
    numbers = sorted(float(rate.replace(",", "")) for rate in rates[len(rates) // 2 :])
    return numbers[len(numbers) // 2] if numbers else f"no rate found, exit code {child.returncode}: {said[-300:]!r}"


def repeats(env: TensorEnv, action: torch.Tensor, steps: int) -> str:
    """Step twice from one snapshot; return how many fields are then equal to the bit, "all" or "N of M"."""
    begin, ends = env.snapshot(), []
    for _ in range(2):
        env.restore(begin)
        for _ in range(steps):
            env.step(action)
        ends.append(env.snapshot())
    env.restore(begin)
    equal = [name for name in ends[0] if torch.equal(ends[0][name], ends[1][name])]
    return "all" if len(equal) == len(ends[0]) else f"{len(equal)} of {len(ends[0])}"


def measure(name: str, worlds: int, device: torch.device, seconds: float) -> dict[str, float | str]:
    """Return the table row of a task: env steps/s of bare physics, env and PPO after a warm-up, memory, repeats."""
    started, empty = time.perf_counter(), used_memory(device)
    task: Any = make_task(name)
    task.build = lambda n, *_: task.bind(WarpSim(task.model, n, device))  # Warp also on the CPU
    env = TensorEnv(task, worlds, device)
    prepared, per_world = time.perf_counter() - started, (used_memory(device) - empty) / worlds
    low, high = (torch.as_tensor(bound, device=device) for bound in (env.action_space.low, env.action_space.high))
    action = low + (high - low) * torch.rand(worlds, len(low), device=device)

    env.reset(seed=0)
    for _ in range(20):
        env.step(action)
    usual = env.task.sim.snapshot()  # bare physics has no resets; restored regularly, its states stay like the env's
    sim, substeps = env.task.sim, env.task.substeps
    bare = rate(lambda: sim.step(substeps), worlds, device, seconds, lambda: sim.restore(usual))
    repeated = repeats(env, action, 100 if device.type == "cuda" else 5)
    stepped = rate(lambda: env.step(action), worlds, device, seconds)

    n_steps = ROLLOUT if device.type == "cuda" else 8
    config = resolve(RunConfig(
        env=name, algo="PPO", preset="sb3", n_envs=worlds, device=str(device), eval_every=0, total_steps=10**9,
        overrides={"n_steps": n_steps, "batch_size": worlds * n_steps // 4, "n_epochs": 5,
                   "policy_kwargs": {"net_arch": [512, 256, 128], "activation_fn": "elu"}},
    ))  # fmt: skip
    trainer = make_trainer(config, env)
    trainer.learn(worlds * n_steps)  # warm-up, with all compilation

    steps = READ_EVERY * worlds * n_steps  # `learn` reads metrics at its end; a run on a GPU reads them as often

    def iterations() -> None:
        trainer.learn(steps, reset_num_timesteps=False)

    ppo = rate(iterations, steps, device, seconds, turns=1)
    return {
        "task": name, "worlds": worlds, "prepared_s": prepared, "bare": bare, "env": stepped, "ppo": ppo,
        "env/bare": stepped / bare, "ppo/bare": ppo / bare, "physics_steps": bare * env.task.substeps,
        "memory_gb": used_memory(device) / 1e9, "mb/world": per_world / 1e6,
        "mb/world, ppo": (used_memory(device) - empty) / worlds / 1e6, "repeats": repeated,
    }  # fmt: skip


def rate(
    work: Callable[[], object], steps: int, device: torch.device, seconds: float, before: Callable[[], object] = int,
    turns: int = 20,
) -> float:  # fmt: skip
    """Return steps/s of `work`, which makes `steps` steps per call; `before` runs untimed every `turns` calls."""
    work()
    passed, done = 0.0, 0
    while passed < seconds:
        before()
        wait(device)
        started = time.perf_counter()
        for _ in range(turns):
            work()
            done += steps
            if device.type == "cpu" and time.perf_counter() - started > seconds:
                break
        wait(device)
        passed += time.perf_counter() - started
    return done / passed


def used_memory(device: torch.device) -> int:
    """Return the bytes in use on the GPU by all allocators, because Warp has its own; 0 on the CPU."""
    if device.type == "cpu":
        return 0
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
        "mb/world",
        "mb/world, ppo",
        "repeats",
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
