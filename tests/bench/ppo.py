"""Benchmark of training speed: kit, Stable-Baselines3, SBX, single-file PPO like CleanRL's (single_file.py). By hand:

    python tests/bench/ppo.py                                # PPO on Ant, SB3's defaults with 16 × 128 steps
    python tests/bench/ppo.py --env Reach
    python tests/bench/ppo.py --net 512,512 --batch 2048     # larger networks
    python tests/bench/ppo.py --net 64/64,64                 # actor and critic of different shapes
    python tests/bench/ppo.py --algo SAC                     # gradient steps per second at batch 256
    python tests/bench/ppo.py --algo RecurrentPPO            # kit and sb3-contrib, LSTMs of 256
    python tests/bench/ppo.py --sbx-python ENV/bin/python    # also SBX, from another Python environment

Each contender runs in its own process. They take turns, so that other load on the machine slows all of them equally.
The table shows medians over the turns, and ratios of medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

CONTENDERS = {
    "kit": "this library",
    "sb3-dummy": "SB3, DummyVecEnv",
    "sb3-subproc": "SB3, SubprocVecEnv",
    "sb3-kit": "SB3 on this library's env",
    "single-file": "single-file PPO, SyncVectorEnv",
    "sbx": "SBX, DummyVecEnv",
}
ITERATIONS = {"PPO": 2, "RecurrentPPO": 1, "A2C": 64, "SAC": 0}
"""Algorithm -> iterations per turn. 0 for SAC, which makes a number of gradient steps (--steps) per turn instead."""
GYMNASIUM = {"Ant": "Ant-v5"}
"""kit's env -> the same env as a Gymnasium id, for the other libraries; otherwise they use kit/<name>-v0."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Ant")
    parser.add_argument("--algo", default="PPO", choices=("PPO", "RecurrentPPO", "A2C", "SAC"))
    parser.add_argument("--n-envs", type=int, default=16)
    parser.add_argument("--n-steps", type=int, help="steps per env and iteration; default: 128, A2C 5, SAC 1")
    parser.add_argument("--batch", type=int, help="minibatch size; default: 64, RecurrentPPO 128")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--net", type=_net, help="layer widths such as 64,64, or actor/critic such as 64/64,64; default: SB3's"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, help="env steps (SAC: gradient steps) in each turn")
    parser.add_argument("--stock-threads", type=int, default=1, help="torch threads of the others; 1 suits small nets")
    parser.add_argument("--sbx-python", help="Python interpreter of an environment with sbx-rl and gymnasium[mujoco]")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="run only these contenders")
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.n_steps = args.n_steps or {"A2C": 5, "SAC": 1}.get(args.algo, 128)
    args.batch = args.batch or {"RecurrentPPO": 128}.get(args.algo, 64)
    args.steps = args.steps or ITERATIONS[args.algo] * args.n_envs * args.n_steps or 100
    if args.worker:
        _work(args)
    else:
        _compare(args)


def _net(text: str) -> list[int] | dict[str, list[int]]:
    nets = [[int(width) for width in part.split(",")] for part in text.split("/")]
    return nets[0] if len(nets) == 1 else dict(zip(("pi", "vf"), nets, strict=True))


# -- one contender -----------------------------------------------------------------------------------------------------


def _work(args: argparse.Namespace) -> None:
    """Build a contender, run a warm-up turn, then for every line on stdin run a turn and print its seconds."""
    turn, versions = {"kit": _kit, "single-file": _single_file}.get(args.worker, _stock)(args)
    turn()
    print(json.dumps(versions), flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        turn()
        print(json.dumps(time.perf_counter() - begun), flush=True)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    if args.algo == "SAC":
        return {"learning_starts": 1000, "buffer_size": 100_000}
    return {
        "n_steps": args.n_steps,
        **({"batch_size": args.batch, "n_epochs": args.epochs} if "PPO" in args.algo else {}),
    }


def _turn(model: Any, args: argparse.Namespace) -> Any:
    if args.algo != "SAC":
        return lambda: model.learn(args.steps, reset_num_timesteps=False)
    model.learn(1100)
    return lambda: model.train(args.steps, 256)


def _kit(args: argparse.Namespace) -> Any:
    import torch

    import kit
    from kit.config import RunConfig
    from kit.machine import usable_cores
    from kit.trainers import make_trainer

    policy = {"policy_kwargs": {"net_arch": args.net}} if args.net else {}
    config = RunConfig(
        env=args.env, algo=args.algo, n_envs=args.n_envs, device="cpu", threads=usable_cores(),
        overrides={**_settings(args), **policy},
    )  # fmt: skip
    env = kit.make_vec(args.env, args.n_envs, "cpu", 0)
    return _turn(make_trainer(config, env), args), {"torch": torch.__version__}


def _single_file(args: argparse.Namespace) -> Any:
    import gymnasium
    import single_file
    import torch

    torch.set_num_threads(args.stock_threads)
    model = single_file.PPO(
        _gymnasium_id(args.env), args.n_envs, args.n_steps, args.batch, args.epochs, args.net or [64, 64]
    )
    return lambda: model.learn(args.steps), {"gymnasium": gymnasium.__version__}


def _gymnasium_id(env: str) -> str:
    from gymnasium import registry

    return GYMNASIUM.get(env, env if env in registry else f"kit.envs:kit/{env}-v0")


def _stock(args: argparse.Namespace) -> Any:
    import gymnasium
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(args.stock_threads)
    if args.worker == "sb3-kit":
        import kit
        from kit.envs.sb3 import TensorVecEnv

        venv: Any = TensorVecEnv(kit.make_vec(args.env, args.n_envs, "cpu", 0))
    else:
        processes = args.worker == "sb3-subproc"
        maker: Any = SubprocVecEnv if processes else DummyVecEnv
        kwargs = {"start_method": "forkserver"} if processes else {}
        venv = make_vec_env(_gymnasium_id(args.env), args.n_envs, vec_env_cls=maker, vec_env_kwargs=kwargs)
    policy = {"policy_kwargs": {"net_arch": args.net}} if args.net else {}
    if args.worker == "sbx":
        import jax
        import sbx

        model = getattr(sbx, args.algo)("MlpPolicy", venv, seed=0, **_settings(args), **policy)
        return _turn(model, args), {"sbx": sbx.__version__, "jax": jax.__version__}
    home, kind = sb3, "MlpPolicy"
    if args.algo == "RecurrentPPO":
        import sb3_contrib

        home, kind = sb3_contrib, "MlpLstmPolicy"
    model = getattr(home, args.algo)(kind, venv, seed=0, device="cpu", **_settings(args), **policy)
    return _turn(model, args), {home.__name__: home.__version__, "gymnasium": gymnasium.__version__}


# -- comparison --------------------------------------------------------------------------------------------------------


def _compare(args: argparse.Namespace) -> None:
    names = args.only or [name for name in CONTENDERS if name != "sbx" or args.sbx_python]
    if args.algo == "SAC":
        names = [name for name in names if name in ("kit", "sb3-dummy")]
    if args.algo != "PPO" or isinstance(args.net, dict):
        names = [name for name in names if name != "single-file"]
    if args.algo == "RecurrentPPO":
        names = [name for name in names if name != "sbx"]
    workers = {name: _start(name, args) for name in names}
    versions: dict[str, str] = {}
    for name, worker in list(workers.items()):
        answer = _answer(worker)
        if answer is None:
            print(f"{name} failed to start and is left out", file=sys.stderr)
            del workers[name]
        else:
            versions |= answer
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(args.turns):
        for name, worker in workers.items():
            worker.stdin.write("go\n")
            worker.stdin.flush()
            rates[name].append(args.steps / _answer(worker))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    _print(args, rates, versions)


def _start(name: str, args: argparse.Namespace) -> Any:
    python = args.sbx_python if name == "sbx" else sys.executable
    command = [python, __file__, "--worker", name, *sys.argv[1:]]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(worker: Any) -> Any:
    """Return the worker's next line of JSON, parsed; None if the worker has ended."""
    for line in worker.stdout:
        try:
            return json.loads(line)
        except json.JSONDecodeError:  # printed by an imported package
            continue
    return None


def _print(args: argparse.Namespace, rates: dict[str, list[float]], versions: dict[str, str]) -> None:
    median = {name: statistics.median(values) for name, values in rates.items()}
    net = f"network {args.net}" if args.net else "SB3's network"
    batch = f", batch {args.batch}, {args.epochs} epochs" if "PPO" in args.algo else ""
    unit = "gradient steps/s" if args.algo == "SAC" else "env steps/s"
    print(f"\n{args.algo} on {args.env}: {args.n_envs} × {args.n_steps} steps{batch}, {net}; {args.turns} turns\n")
    print(f"| | {unit} | lowest – highest | kit is faster by |\n|---|---:|---:|---:|")
    for name, values in rates.items():
        ratio = f"{median['kit'] / median[name]:.2f} ×" if name != "kit" and "kit" in median else ""
        print(f"| {CONTENDERS[name]} | {median[name]:,.0f} | {min(values):,.0f} – {max(values):,.0f} | {ratio} |")
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"\n{platform.machine()}, Python {platform.python_version()}, {told}")


if __name__ == "__main__":
    main()
