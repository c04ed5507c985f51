"""Everything to measure on a GPU, in one command of ten minutes on a bare machine. Run by hand:

    python tests/bench/gpu.py --output gpu.md                # tests, then one row after another; paste gpu.md somewhere
    python tests/bench/gpu.py --only Ant --worlds 1024 8192  # one row, other numbers of envs
    python tests/bench/gpu.py --mjlab-python A/bin/python --playground-python B/bin/python
    python tests/bench/gpu.py --pretend                      # without a GPU: only checks that the script runs

First the tests that need a GPU, then Go1Joystick, Ant, Mission, ReachVision, SAC on Reach, CrossQ on Ant and
G1Joystick. A row is printed and written to --output as soon as it is known; after --minutes nothing more is begun.
Columns, in env steps/s:

    bare      MuJoCo Warp alone: the CUDA graph of one control step, launched repeatedly with constant controls
    env       with actions, observations, rewards and resets
    train     with the policy and its updates
    waits     how often the CPU waits for the GPU, per env step of training, to read the metrics included
    launches  kernels that are launched one by one, not from a CUDA graph, per env step of training
    busy      share of the time in which the GPU computes, while training (torch.profiler)
    MB/world  GPU memory per env, before and after training
    repeats   fields that are equal to the bit after the same steps from the same snapshot, twice

Then GPU memory of Ant for 512 to 4,096 envs, and the seconds to the first physics step with an empty and a filled
kernel cache. mjlab and MuJoCo Playground train their own G1 velocity task, each in its own Python environment, through
their documented entry points; these two commands have not been tried yet.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

PPO = {"n_steps": 24, "n_epochs": 5, "policy_kwargs": {"net_arch": [512, 256, 128], "activation_fn": "elu"}}
"""As usual with thousands of envs; a batch is a quarter of a rollout."""
SAC = {"train_freq": 1, "gradient_steps": 2, "learning_starts": 1}
"""Two gradient steps per env step of all envs, from the first on."""


@dataclass(frozen=True)
class Case:
    """A row: what to train, with how many envs."""

    env: str
    worlds: int
    algo: str = "PPO"
    overrides: dict[str, Any] | None = None
    """None: those of the preset auto."""

    @property
    def name(self) -> str:
        """As --only and --row take it: the task, with the algorithm if it is not PPO."""
        return self.env if self.algo == "PPO" else f"{self.env}:{self.algo}"


CASES = (
    Case("Go1Joystick", 2048, overrides=PPO),
    Case("Ant", 4096, overrides=PPO),
    Case("Mission", 4096),
    Case("ReachVision", 256),
    Case("Reach", 256, "SAC", SAC),
    Case("Ant", 256, "CrossQ", SAC),
    Case("G1Joystick", 2048, overrides=PPO),
)
COLUMNS = (
    "task", "algo", "worlds", "bare", "env", "train", "env/bare", "train/bare", "waits", "launches", "busy", "MB/world",
    "MB/world, train", "repeats", "prepared, s",
)  # fmt: skip
PARTS = ("tests", "table", "memory", "launch")
TINY = 8
MEMORY_WORLDS = (512, 1024, 2048, 4096)
MJLAB = ["-m", "mjlab.scripts.train", "Mjlab-Velocity-Flat-Unitree-G1", "--env.scene.num-envs", "2048",
         "--agent.max-iterations", "30"]  # fmt: skip
PLAYGROUND = """
import functools, sys
from brax.training.agents.ppo import networks, train
from mujoco_playground import registry, wrapper
from mujoco_playground.config import locomotion_params
name = "G1JoystickFlatTerrain"
given = dict(locomotion_params.brax_ppo_config(name))
factory = functools.partial(networks.make_ppo_networks, **given.pop("network_factory"))
given |= {"num_timesteps": 20_000_000, "num_evals": 3, "num_envs": 2048}
train.train(environment=registry.load(name), wrap_env_fn=wrapper.wrap_for_brax_training, network_factory=factory,
            progress_fn=lambda _, figures: print("steps/s", figures.get("training/sps", "")), **given)
"""


class Report:
    """Prints lines, and writes them to a file, as soon as they are known."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.write_text("")

    def __call__(self, line: str = "") -> None:
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], help="only these rows")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="default: all, with --only no tests and no memory")
    parser.add_argument("--worlds", type=int, nargs="+", help="numbers of envs; default: one number per task")
    parser.add_argument("--seconds", type=float, default=5.0, help="minimum duration of each measurement")
    parser.add_argument("--minutes", type=float, default=9.5, help="begin nothing after this time")
    parser.add_argument("--pretend", action="store_true", help="run on a pretended GPU (tests/card.py), in tiny sizes")
    parser.add_argument("--row", nargs=2, metavar=("TASK", "ENVS"), help="measure one row in this process, no more")
    parser.add_argument("--mjlab-python", help="Python interpreter of an environment with mjlab")
    parser.add_argument("--playground-python", help="Python interpreter of an environment with mujoco_playground")
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    args = parser.parse_args()
    if args.row:
        machine()
        print(row(next(case for case in CASES if case.name == args.row[0]), int(args.row[1]), args.seconds))
        return
    parts = args.parts or (("table", "launch") if args.only else PARTS)
    deadline = time.monotonic() + 60 * args.minutes
    report = Report(args.output)
    if args.pretend:
        from tests import card

        card.install()
        args.seconds = min(args.seconds, 0.05)
    report(machine())
    if "tests" in parts:
        report("\n" + attempt(lambda: tests(args.pretend)))
    report(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for case in CASES if "table" in parts else ():
        for worlds in args.worlds or [case.worlds]:
            if time.monotonic() > deadline:
                report(f"\n{case.name}: not measured, {args.minutes:g} minutes are over")
            elif not args.only or case.name in args.only:
                measure, n = (row, TINY) if args.pretend else (alone, worlds)
                report(attempt(lambda case=case, n=n, measure=measure: measure(case, n, args.seconds)))
    report("")
    for line in further(args, parts):
        if time.monotonic() > deadline:
            break
        report(attempt(line))


def machine() -> str:
    """Return GPU and versions in one line."""
    import torch

    from kit.machine import settings
    from kit.sim.kernels import wp

    import mujoco_warp as mjw  # isort: skip  initialises Warp, so after kit.sim

    products = settings.apply("cuda")  # as in a run: with TF32 if the GPU supports it
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, warp {wp.config.version}"
    return f"{torch.cuda.get_device_name()}, {versions}, mujoco_warp {mjw.__version__}, products in {products}"


def attempt(work: Callable[[], str]) -> str:
    """Return what `work` returns, or its error as a line: one row that fails does not cost the others."""
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def tests(pretend: bool) -> str:
    """Run the tests that need a GPU; return pytest's summary."""
    plugin = ["-p", "tests.card", "-k", "graph or chain"] if pretend else []
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", *plugin, "tests/sim/test_cuda.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    failed = "".join(f"\n{line}" for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
    return f"tests: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]}{failed}"


def alone(case: Case, worlds: int, seconds: float) -> str:
    """Measure `case` in a process of its own: after an error in a kernel, its process can use the GPU no more."""
    command = [sys.executable, __file__, "--row", case.name, str(worlds), "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def row(case: Case, worlds: int, seconds: float) -> str:
    """Measure `case`; return its line of the table."""
    import torch

    from kit.config import RunConfig
    from kit.envs import make_vec
    from kit.envs.task import MujocoTask
    from kit.measure.auto import resolve
    from kit.trainers import make_trainer
    from kit.trainers.base import READ_EVERY

    started, empty = time.perf_counter(), used_memory()
    env: Any = make_vec(case.env, worlds, "cuda")
    prepared, env_memory = time.perf_counter() - started, used_memory() - empty
    action = actions(env)
    env.reset(seed=0)
    for _ in range(20):
        env.step(action)
    bare = 0.0
    if isinstance(env.task, MujocoTask):
        sim, substeps = env.task.sim, env.task.substeps
        usual = sim.snapshot()  # bare physics has no resets; restored regularly, its states stay like the env's
        bare = rate(lambda: sim.step(substeps), worlds, seconds, lambda: sim.restore(usual))
    repeated = repeats(env, action, 100 if worlds > TINY else 5)
    stepped = rate(lambda: env.step(action), worlds, seconds)

    overrides = dict(case.overrides or {})
    if worlds == TINY and case.algo == "PPO":
        overrides["n_steps"] = 4
    if overrides.get("n_steps"):
        overrides["batch_size"] = worlds * overrides["n_steps"] // 4
    config = RunConfig(
        env=case.env, algo=case.algo, preset="sb3" if case.overrides else "auto", n_envs=worlds, device="cuda",
        eval_every=0, total_steps=10**9, overrides=overrides,
    )  # fmt: skip
    trainer: Any = make_trainer(resolve(config), env)
    per_iteration = worlds * (getattr(trainer, "n_steps", 0) or trainer.train_freq.frequency)
    trainer.learn(per_iteration)  # warm-up, with all compilation and recording
    # `learn` reads metrics at its end, for which it waits; so turns are not shorter than a run's
    steps = per_iteration if worlds == TINY else READ_EVERY * max(per_iteration, 8 * worlds)
    trained = rate(lambda: trainer.learn(steps, reset_num_timesteps=False), steps, seconds, turns=1)
    waits, launches, busy = profile(lambda n: trainer.learn(n, reset_num_timesteps=False), worlds, steps, per_iteration)
    train_memory = used_memory() - empty
    env.close()
    torch.cuda.empty_cache()
    share = (stepped / bare, trained / bare) if bare else ("", "")
    values = (
        case.env, case.algo, f"{worlds:,}", bare or "", stepped, trained, *share, waits, launches, busy,
        env_memory / worlds / 1e6, train_memory / worlds / 1e6, repeated, prepared,
    )  # fmt: skip
    return "| " + " | ".join(map(cell, values)) + " |"


def cell(value: object) -> str:
    return str(value) if not isinstance(value, float) else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def actions(env: Any) -> Any:
    """Return one random action per env."""
    import numpy as np
    import torch

    env.action_space.seed(0)
    return torch.as_tensor(np.stack([env.action_space.sample() for _ in range(env.num_envs)])).to(env.device)


def rate(work: Callable[[], object], steps: int, seconds: float, before: Callable[[], object] = int,
         turns: int = 20) -> float:  # fmt: skip
    """Return steps/s of `work`, which makes `steps` steps per call; `before` runs untimed every `turns` calls."""
    import torch

    work()
    passed, done = 0.0, 0
    while passed < seconds:
        before()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(turns):
            work()
            done += steps
        torch.cuda.synchronize()
        passed += time.perf_counter() - started
    return done / passed


def repeats(env: Any, action: Any, steps: int) -> str:
    """Step twice from one snapshot; return how many fields are then equal to the bit, "all" or "N of M"."""
    import torch

    begin, ends = env.snapshot(), []
    for _ in range(2):
        env.restore(begin)
        for _ in range(steps):
            env.step(action)
        ends.append(env.snapshot())
    env.restore(begin)
    equal = [name for name in ends[0] if torch.equal(ends[0][name], ends[1][name])]
    return "all" if len(equal) == len(ends[0]) else f"{len(equal)} of {len(ends[0])}"


def profile(work: Callable[[int], object], worlds: int, steps: int, few: int) -> tuple[float, float, float]:
    """Return waits and single kernel launches per env step of training, and the share of time the GPU is busy.

    `work` trains for a number of steps: `steps` of `worlds` envs to count waits, `few` for torch's profiler, which
    takes long to read an iteration's ten thousands of kernels.
    """
    import torch

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = worlds * sum("synchronizing CUDA operation" in str(each.message) for each in caught) / steps
    if torch.version.cuda is None:  # the pretended GPU
        return waits, 0.0, 0.0
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        torch.cuda.synchronize()
        started = time.perf_counter()
        work(few)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started  # reading the profile takes seconds more
    averages = profiler.key_averages()
    launches = sum(event.count for event in averages if event.key.startswith(("cudaLaunchKernel", "cuLaunchKernel")))
    return waits, worlds * launches / few, sum(event.self_device_time_total for event in averages) / 1e6 / seconds


def used_memory() -> int:
    """Return the bytes in use on the GPU by all allocators, because Warp has its own."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def further(args: argparse.Namespace, parts: Sequence[str]) -> Iterator[Callable[[], str]]:
    """Yield what is measured after the table, each as a function that returns a line."""
    if "memory" in parts:
        for worlds in (TINY,) if args.pretend else MEMORY_WORLDS:
            yield lambda n=worlds: memory(n)
    if "launch" in parts and not args.pretend:
        for env in dict.fromkeys(case.env for case in CASES if not args.only or case.name in args.only):
            if env != "Mission":
                yield lambda env=env: first_launch(env)
    for name, python, command in (("mjlab", args.mjlab_python, MJLAB),
                                  ("MuJoCo Playground", args.playground_python, ["-c", PLAYGROUND])):  # fmt: skip
        if python:
            yield lambda name=name, command=[python, *command]: other(name, command)


def memory(worlds: int) -> str:
    """Return the GPU memory of Ant's env."""
    from kit.envs import make_vec

    empty = used_memory()
    env = make_vec("Ant", worlds, "cuda")
    line = f"Ant, {worlds:,} envs: {(used_memory() - empty) / worlds / 1e6:.3f} MB of GPU memory per env"
    env.close()
    return line


def first_launch(env: str) -> str:
    """Return the seconds until the first physics step in a new process, with an empty and a filled kernel cache."""
    script = (
        "import time; from kit.envs import make_task; from kit.sim.warp import WarpSim; "
        f"model = make_task('{env}').model; "
        "begun = time.perf_counter(); sim = WarpSim(model, 8, 'cuda'); sim.step(); sim.qpos.cpu(); "
        "print(time.perf_counter() - begun)"
    )
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "KIT_CACHE": folder, "CUDA_CACHE_PATH": f"{folder}/driver"}
        environment.pop("WARP_CACHE_PATH", None)
        for _ in range(2):
            command = [sys.executable, "-c", script]
            child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            seconds.append(float(child.stdout.split()[-1]))
    return f"{env}: first physics step after {seconds[0]:.1f} s with an empty kernel cache, {seconds[1]:.1f} s with it"


def other(name: str, command: list[str]) -> str:
    """Run another project; return the median of the last half of its printed rates, or its last output if none."""
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    said = child.stdout + child.stderr
    rates = re.findall(r"(?:steps/s|Computation:|Steps per second:)\s*([\d,]+(?:\.\d+)?)", said)
    numbers = sorted(float(rate.replace(",", "")) for rate in rates[len(rates) // 2 :])
    found = f"{numbers[len(numbers) // 2]:,.0f} env steps/s" if numbers else f"no rate found: {said[-300:]!r}"
    return f"{name}, G1, 2,048 envs: {found} (exit code {child.returncode})"


if __name__ == "__main__":
    main()
