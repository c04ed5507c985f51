"""Env steps per second: bare MuJoCo, kit's TensorEnv, SB3's vector envs, EnvPool. By hand:

    python tests/bench/rollouts.py            # Ant, 16 envs, as many threads as cores

The contestants take many short turns, so that a noisy machine treats them alike; what counts are the ratios. Their
upper deciles tell most: what each does while nothing else runs. EnvPool is included where it is installed.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import mujoco
import numpy as np
import torch

from kit.envs import make_task, make_vec
from kit.machine.limits import usable_cores

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
AT_ONCE = 20
Step = Callable[[], object]


def bare(task: str, n: int, threads: int, rng: np.random.Generator) -> Step:
    """mj_step alone, the limit: every thread steps its share of the worlds, and all meet every `AT_ONCE` env steps.

    So that the worlds are as costly as those of an env that resets the fallen, they are then put into states of such
    an env."""
    made = make_task(task)
    model, substeps, size = made.model, made.substeps, made.action_space.shape[0]
    states = _states(task, n, rng)
    datas = [mujoco.MjData(model) for _ in range(n)]
    ctrl = rng.uniform(-1, 1, (64, n, size))
    pool = ThreadPoolExecutor(threads)
    clock = itertools.count()

    def share(worlds: range, turn: int) -> None:
        for world in worlds:
            mujoco.mj_setState(model, datas[world], states[turn % len(states), world], _STATE)
        for row in range(AT_ONCE):
            for world in worlds:
                datas[world].ctrl[:size] = ctrl[row, world]
                mujoco.mj_step(model, datas[world], substeps)

    def step() -> None:
        turn = next(clock)
        list(pool.map(share, [range(i, n, threads) for i in range(threads)], [turn] * threads))

    return step


def _states(task: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """(40, n, size): where `n` worlds under random actions stand, every `AT_ONCE` steps."""
    env = make_vec(task, n, seed=1)
    states = []
    for step in range(40 * AT_ONCE):
        env.step(torch.as_tensor(rng.uniform(-1, 1, (n, *env.action_space.shape)), dtype=torch.float32))
        if step % AT_ONCE == 0:
            states.append(env.snapshot()["sim.state"].numpy())
    env.close()
    return np.stack(states)


def tensors(task: str, n: int, threads: int, rng: np.random.Generator) -> Step:
    env = make_vec(task, n, seed=0, threads=threads)
    actions = [
        torch.as_tensor(rng.uniform(-1, 1, (n, *env.action_space.shape)), dtype=torch.float32) for _ in range(64)
    ]
    clock = itertools.count()
    return lambda: env.step(actions[next(clock) % 64])


def sb3(env_id: str, n: int, processes: bool, rng: np.random.Generator) -> Step:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if processes:
        kwargs = {"start_method": "forkserver"}
        env = make_vec_env(env_id, n, seed=0, vec_env_cls=SubprocVecEnv, vec_env_kwargs=kwargs)
    else:
        env = make_vec_env(env_id, n, seed=0, vec_env_cls=DummyVecEnv)
    env.reset()
    actions = rng.uniform(-1, 1, (64, n, *env.action_space.shape)).astype(np.float32)
    clock = itertools.count()
    return lambda: env.step(actions[next(clock) % 64])


def envpool(env_id: str, n: int, threads: int, rng: np.random.Generator) -> Step | None:
    try:
        import envpool as pool
    except ImportError:
        return None
    env = pool.make_gymnasium(env_id, num_envs=n, num_threads=threads)
    env.reset()
    actions = rng.uniform(-1, 1, (64, n, *env.action_space.shape)).astype(np.float32)
    clock = itertools.count()
    return lambda: env.step(actions[next(clock) % 64])


def measure(step: Step, seconds: float) -> float:
    """Calls of `step` per second."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        step()
        calls += 1
    return calls / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Ant", help="one of kit's tasks")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.15, help="of each contestant's turn in a round")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    theirs = f"{args.task}-v5" if f"{args.task}-v5" in gymnasium.registry else f"kit/{args.task}-v0"
    contestants: dict[str, Step | None] = {
        "bare mj_step": bare(args.task, args.envs, args.threads, rng),
        "kit TensorEnv": tensors(args.task, args.envs, args.threads, rng),
        "SB3 DummyVecEnv": sb3(theirs, args.envs, False, rng),
        "SB3 SubprocVecEnv (forkserver)": sb3(theirs, args.envs, True, rng),
    }
    if theirs.endswith("-v5"):
        contestants["EnvPool"] = envpool(theirs, args.envs, args.threads, rng)
    speeds: dict[str, list[float]] = {name: [] for name, step in contestants.items() if step is not None}
    for _ in range(args.rounds):
        for name in speeds:
            step = contestants[name]
            assert step is not None
            steps = args.envs * (AT_ONCE if name == "bare mj_step" else 1)
            speeds[name].append(measure(step, args.seconds) * steps)

    base = speeds["bare mj_step"]
    what = f"{args.task}, {args.envs} envs, {args.threads} threads, {args.rounds} rounds of {args.seconds:g} s"
    versions = f"Python {platform.python_version()}, MuJoCo {mujoco.__version__}, torch {torch.__version__}"
    print(f"{what}; {platform.machine()}, {versions}\n")
    print(
        "| | env steps/s, median | upper decile | of bare physics, median | upper decile |\n|---|---:|---:|---:|---:|"
    )
    for name in contestants:
        if name in speeds:
            columns = [np.percentile(speeds[name], q) for q in (50, 90)]
            ratios = [column / np.percentile(base, q) for column, q in zip(columns, (50, 90), strict=True)]
            print(f"| {name} | {columns[0]:,.0f} | {columns[1]:,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
        else:
            print(f"| {name} | not installed | | | |")


if __name__ == "__main__":
    main()
