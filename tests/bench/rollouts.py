"""Benchmark of env steps per second: bare MuJoCo, kit's TensorEnv, SB3's vector envs, EnvPool. Run by hand:

    python tests/bench/rollouts.py                                      # Ant: 16, 32, 64 envs, one thread per core
    python tests/bench/rollouts.py --envpool-python ENV/bin/python      # also EnvPool, from another Python environment

Contenders take many short turns, so that other load on the machine slows all of them equally. Compare ratios, above all
those of the upper deciles, which show the speed without other load. Bare MuJoCo, kit and EnvPool have the same number
of threads. All have the same substeps, and actions sampled beforehand in the dtype that they take.

Bare MuJoCo is measured twice: as an upper limit, with threads that synchronise every 20 env steps, and in lockstep,
with threads that synchronise at every env step, as they must if one policy acts in all envs. The difference is the cost
of waking and waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import platform
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch

from kit.envs import make_task, make_vec
from kit.machine.limits import usable_cores
from kit.sim.helpers import Helpers

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
AT_ONCE = 20
BARE, LOCKSTEP = "bare mj_step", "bare mj_step in lockstep"
Step = Callable[[], object]


def bare(task: str, n: int, threads: int, rng: np.random.Generator, at_once: int = AT_ONCE) -> Step:
    """Return a function that runs only mj_step for `at_once` env steps of all envs, then synchronises the threads.

    Every `AT_ONCE` steps all simulations are set to states of an env with resets, because steps of fallen robots have
    another cost."""
    made = make_task(task)
    model, substeps, size = made.model, made.substeps, made.action_space.shape[0]
    states = _states(task, n, rng)
    datas = [mujoco.MjData(model) for _ in range(n)]
    ctrl = rng.uniform(-1, 1, (64, n, size))
    helpers = Helpers(threads - 1)
    clock = itertools.count(step=at_once)

    def share(worlds: range, now: int) -> None:
        for at in range(now, now + at_once):
            if at % AT_ONCE == 0:
                for world in worlds:
                    mujoco.mj_setState(model, datas[world], states[at // AT_ONCE % len(states), world], _STATE)
            for world in worlds:
                datas[world].ctrl[:size] = ctrl[at % 64, world]
                mujoco.mj_step(model, datas[world], substeps)

    def step() -> None:
        now = next(clock)
        helpers.run(*[partial(share, range(i, n, threads), now) for i in range(threads)])

    return step


def _states(task: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return states (40, n, size) of `n` simulations under random actions, one every `AT_ONCE` steps."""
    env = make_vec(task, n, seed=1)
    states = []
    for step in range(40 * AT_ONCE):
        env.step(torch.as_tensor(rng.uniform(-1, 1, (n, *env.action_space.shape)), dtype=torch.float32))
        if step % AT_ONCE == 0:
            states.append(env.snapshot()["sim.state"].numpy())
    env.close()
    return np.stack(states)


def tensors(task: str, n: int, threads: int, rng: np.random.Generator, stack: contextlib.ExitStack) -> Step:
    env = make_vec(task, n, seed=0, threads=threads)
    stack.callback(env.close)
    actions = [
        torch.as_tensor(rng.uniform(-1, 1, (n, *env.action_space.shape)), dtype=torch.float32) for _ in range(64)
    ]
    clock = itertools.count()
    return lambda: env.step(actions[next(clock) % 64])


def sb3(env_id: str, n: int, processes: bool, rng: np.random.Generator, stack: contextlib.ExitStack) -> Step:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if processes:
        kwargs = {"start_method": "forkserver"}
        env = make_vec_env(env_id, n, seed=0, vec_env_cls=SubprocVecEnv, vec_env_kwargs=kwargs)
    else:
        env = make_vec_env(env_id, n, seed=0, vec_env_cls=DummyVecEnv)
    stack.callback(env.close)
    env.reset()
    actions = rng.uniform(-1, 1, (64, n, *env.action_space.shape)).astype(np.float32)
    clock = itertools.count()
    return lambda: env.step(actions[next(clock) % 64])


class EnvPool:
    """EnvPool in a subprocess (envpool_turns.py), which sleeps between its turns."""

    def __init__(self, python: str, env_id: str, n: int, threads: int) -> None:
        file = Path(__file__).with_name("envpool_turns.py")
        self._process = subprocess.Popen(
            [python, str(file), env_id, str(n), str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version = self._answer()

    def measure(self, seconds: float) -> float:
        """Return the calls of `step` per second, measured for `seconds`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # EnvPool may print other lines
                return json.loads(line)
        raise SystemExit("EnvPool's process has ended; does its environment have envpool and numpy?")


def measure(step: Step, seconds: float) -> float:
    """Return the calls of `step` per second, measured for `seconds`."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        step()
        calls += 1
    return calls / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Ant", help="name of a task of kit")
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.1, help="duration of each contender's turn in a round")
    parser.add_argument("--envpool-python", help="Python interpreter of an environment with envpool")
    args = parser.parse_args()

    torch.set_num_threads(1)
    versions = f"Python {platform.python_version()}, MuJoCo {mujoco.__version__}, torch {torch.__version__}"
    print(f"{platform.machine()}, {versions}")
    for n in args.envs:
        print(f"\n{args.task}, {n} envs, {args.threads} threads, {args.rounds} rounds of {args.seconds:g} s\n")
        show(take_turns(args, n))


def take_turns(args: argparse.Namespace, n: int) -> dict[str, list[float]]:
    """Return contender -> env steps per second in each round, with `n` envs."""
    rng = np.random.default_rng(0)
    theirs = f"{args.task}-v5" if f"{args.task}-v5" in gymnasium.registry else f"kit/{args.task}-v0"
    with contextlib.ExitStack() as stack:
        steps = {
            BARE: bare(args.task, n, args.threads, rng),
            LOCKSTEP: bare(args.task, n, args.threads, rng, at_once=1),
            "kit TensorEnv": tensors(args.task, n, args.threads, rng, stack),
            "SB3 DummyVecEnv": sb3(theirs, n, False, rng, stack),
            "SB3 SubprocVecEnv (forkserver)": sb3(theirs, n, True, rng, stack),
        }
        turns: dict[str, Callable[[float], float]] = {name: partial(measure, step) for name, step in steps.items()}
        if args.envpool_python:
            pool = stack.enter_context(EnvPool(args.envpool_python, theirs, n, args.threads))
            turns[f"EnvPool {pool.version}"] = pool.measure
        speeds: dict[str, list[float]] = {name: [] for name in turns}
        for _, (name, turn) in itertools.product(range(args.rounds), turns.items()):
            speeds[name].append(turn(args.seconds) * n * (AT_ONCE if name == BARE else 1))
    return speeds


def show(speeds: dict[str, list[float]]) -> None:
    print("| | env steps/s, median | upper decile | of bare physics, median | upper decile |")
    print("|---|---:|---:|---:|---:|")
    for name, values in speeds.items():
        columns = [np.percentile(values, q) for q in (50, 90)]
        ratios = [column / np.percentile(speeds[BARE], q) for column, q in zip(columns, (50, 90), strict=True)]
        print(f"| {name} | {columns[0]:,.0f} | {columns[1]:,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
