"""From "auto" to the numbers that are used. A rule and no measurement: the same request gets the same numbers, every
time on the same kind of machine.

    row       of the task and algorithm (`kit.presets`), else the algorithm's own (`kit.trainers`)
    worlds    the row's; of PPO twice as many, and again, while there are no more than `WORLDS_PER_CORE` for each core
              (`GAMES_PER_CORE` of a task without physics) and the run has `ROUNDS` rollouts in it; on a GPU no more
              than its memory has room for
    device    the CPU, unless there is a GPU and the row or the preset is made for it, or pictures are seen
    batch     the largest divisor of the rollout that is no larger than the row's
    threads   one for each core
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit import envs
from kit.config import RunConfig, default_name
from kit.encoders import OPTIONS, choose, sees_pictures
from kit.errors import UserError
from kit.machine import limits, settings
from kit.measure.fit import STRIDE, fit
from kit.presets import NAMED, TASKS, TASKS_ON_CUDA, Row, nested
from kit.trainers import algorithm
from kit.trainers.algorithm import Algorithm
from kit.trainers.arguments import arguments

WORLDS_PER_CORE = 16
"""Of the fastest number an exhaustive search found on two cores, so many reached 0.98 with PPO on Reach and 0.91 to
0.99 on Ant."""
GAMES_PER_CORE = 1024
"""Worlds without physics cost little more than the calls that step them all."""
ROUNDS = 20
"""Rollouts that a run has at least, whatever the number of worlds. Reach, 100,000 steps: a return of 4.26 with 48
rollouts, 4.25 with 24, 4.11 with 12, 3.86 with 6."""
COUNTS = ("n_steps", "batch_size", "n_epochs", "buffer_size", "learning_starts", "train_freq", "gradient_steps")


def resolve(config: RunConfig, fits: Callable[[RunConfig], int] | None = None) -> RunConfig:
    """Every "auto" replaced and `overrides` completed. Raises `UserError` for what cannot be trained: env, algorithm,
    encoder and hyperparameters are checked, and nothing is left behind. `fits` says how many worlds of a resolved
    config a GPU has room for; by default it is tried out (`kit.measure.fit`)."""
    found = algorithm.find(config.algo)
    check(found, config.overrides)
    env = envs.describe(config.env, config.env_options)
    if not isinstance(env.action_space, found.actions):
        kinds = " or ".join(kind.__name__ for kind in found.actions)
        raise UserError(f"algo={config.algo!r} acts in {kinds} spaces and env={config.env!r} has {env.action_space}.")
    choose(config.encoder, env.observation_space, config.overrides.get("policy_kwargs", {}).get(OPTIONS))
    device = device_of(config, sees_pictures(env.observation_space))
    row = row_of(found, config, device)
    n_envs = config.n_envs if isinstance(config.n_envs, int) else _worlds(found, config, row, device, env.physics)
    hyper = _merge(row, config.overrides)
    check(found, hyper)
    resolved = config.replace(
        run_name=config.run_name or default_name(config),
        device=device,
        n_envs=n_envs,
        threads=config.threads if isinstance(config.threads, int) else limits.usable_cores(),
        eval_every=max(1, config.total_steps // 10) if config.eval_every == "auto" else config.eval_every,
        overrides=found.rule(hyper, n_envs, row, config.overrides),
    )
    if config.n_envs == "auto" and device != "cpu" and env.batched and n_envs > STRIDE:
        room = (fits or (lambda asked: fit(asked).n_envs))(resolved)
        resolved = algorithm.with_worlds(resolved, min(n_envs, room * config.processes))
    if config.processes > 1:
        from kit.trainers.together import part

        part(resolved)
    return resolved


def sentence(asked: RunConfig, resolved: RunConfig) -> str:
    """Such as "auto: 16 worlds on 2 threads, 256 steps, batch 512"; "" for other presets."""
    if asked.preset != "auto":
        return ""
    n, hyper = int(resolved.n_envs), resolved.overrides
    threads = f"{resolved.threads} thread{'' if resolved.threads == 1 else 's'}"
    said = f"auto: {n:,} world{'' if n == 1 else 's'} on {threads if resolved.device == 'cpu' else resolved.device}"
    said += f", {hyper['n_steps']} steps" if "n_steps" in hyper else ""
    return said + (f", batch {hyper['batch_size']:,}" if "batch_size" in hyper else "")


def row_of(found: Algorithm, config: RunConfig, device: str) -> Row:
    """What the preset says."""
    if config.preset == "sb3":
        return found.stock_row
    if config.preset in NAMED:
        named = NAMED[config.preset]
        return found.row | {"n_envs": named["n_envs"], **{name: named[name] for name in found.columns}}
    rows = TASKS if device == "cpu" else TASKS | TASKS_ON_CUDA
    return rows.get((config.env, config.algo), found.row)


def device_of(config: RunConfig, pictures: bool) -> str:
    """Where networks train and, if it is a task of kit's kind, worlds are simulated."""
    import torch

    if config.device != "auto":
        if config.device != "cpu" and not torch.cuda.is_available():
            raise UserError(
                f"device={config.device!r} needs a CUDA GPU and PyTorch sees none; use cpu or see `kit verify`."
            )
        return config.device
    made_for_it = pictures or config.preset in NAMED or (config.env, config.algo) in TASKS_ON_CUDA
    return "cuda" if made_for_it and settings.gpu_works() else "cpu"


def check(found: Algorithm, overrides: Row) -> None:
    """Raise `UserError` for an override that the algorithm does not have, or that cannot be."""
    arguments(found, overrides)
    for name in COUNTS:
        value = overrides.get(name, 1)
        least = {"learning_starts": 0, "gradient_steps": -1}.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"overrides {name}={value!r} must be a whole number of at least {least}.")


def _worlds(found: Algorithm, config: RunConfig, row: Row, device: str, physics: bool) -> int:
    worlds, per_core = int(row.get("n_envs", 1)), WORLDS_PER_CORE if physics else GAMES_PER_CORE
    if config.preset != "auto" or not found.more_worlds or (device != "cpu" and physics):
        return worlds
    n_steps = int({"n_steps": 2048, **row, **config.overrides}["n_steps"])
    most = min(per_core * limits.usable_cores(), config.total_steps // (ROUNDS * n_steps))
    while 2 * worlds <= most:
        worlds *= 2
    return worlds


def _merge(row: Row, overrides: dict[str, Any]) -> Row:
    """The row with what the user says. A mapping for the policy is completed, not replaced."""
    hyper = nested({name: value for name, value in row.items() if name != "n_envs"})
    policy = hyper.get("policy_kwargs", {}) | overrides.get("policy_kwargs", {})
    return hyper | overrides | ({"policy_kwargs": policy} if policy else {})
