"""Find the largest n_envs that fits into memory: measure it for two values, fit a line, and leave a margin.

Each measurement is a child process (a probe) that builds the env, trains one iteration and reports the memory in use.
Its memory is free afterwards, and running out of memory kills only the child.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from kit import envs
from kit.config import RunConfig
from kit.errors import UserError
from kit.trainers.algorithm import with_n_envs
from kit.trainers.planning import STRIDE, Plan

PROBES = (64, 256)
"""n_envs of the two probes."""
MARGIN = 0.15
"""Fraction of the memory that stays free: for fragmentation, evaluation and other programs."""
MAX_ENVS = 8192
"""Largest n_envs that is chosen; with more, GPUs gain little speed."""

Measure = Callable[[RunConfig, int], tuple[int, int]]
"""(config, n_envs) -> (bytes in use by all processes, bytes of memory in the GPU or machine)."""


def fit(config: RunConfig, measure: Measure | None = None) -> int:
    """Return the largest multiple of `STRIDE` envs with which the resolved `config` leaves `MARGIN` of the memory free.

    For example 7,936 envs of 1.6 MB each on a GPU of 16 GB. Raises `UserError` if not even `STRIDE` envs fit.
    """
    measure = measure or measure_in_child
    few, many = PROBES
    (low, _), (high, memory) = measure(config, few), measure(config, many)
    env_bytes = max((high - low) // (many - few), 1)
    fixed_bytes = max(low - few * env_bytes, 0)  # other programs included
    free_bytes = int((1 - MARGIN) * memory) - fixed_bytes
    n_envs = min(free_bytes // env_bytes // STRIDE * STRIDE, MAX_ENVS)
    if n_envs < STRIDE:
        raise UserError(
            f"n_envs='auto': {STRIDE} envs of {config.env} with this network do not fit into {memory / 1e9:.1f} GB, "
            f"of which {fixed_bytes / 1e9:.1f} GB are taken; close other programs or choose a smaller network."
        )
    return n_envs


def room(plan: Plan, share: int = 1) -> int:
    """Return how many envs of `plan` fit if `share` runs divide the memory equally; at least `STRIDE`."""
    return max(STRIDE, fit(plan.config) // share)


def measure_in_child(config: RunConfig, n_envs: int) -> tuple[int, int]:
    """Train one iteration with `n_envs` envs in a child process; return its memory use as `Measure` says."""
    config = with_n_envs(config, n_envs)  # keeps the minibatch size if the rollout is large enough
    if "n_epochs" in config.overrides:
        config = config.replace(overrides={**config.overrides, "n_epochs": 1})
    command, environment = [sys.executable, "-m", __name__], {**os.environ, **envs.child_environ(config)}
    request = json.dumps(config.to_dict())
    child = subprocess.run(command, input=request, capture_output=True, text=True, check=False, env=environment)
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
        message = f"the memory probe with {n_envs} envs of {config.env} failed ({reason})"
        raise UserError(f"{message}; set n_envs yourself.")
    used, memory = json.loads(child.stdout.splitlines()[-1])
    return int(used), int(memory)


def _train_one_iteration(config: RunConfig) -> tuple[int, int]:
    """Train one iteration and return (bytes in use, bytes of memory).

    Env and trainer must exist until the memory is read, because Warp frees the memory of what no variable refers to.
    """
    import psutil
    import torch

    from kit.trainers import make_trainer

    n_envs = int(config.n_envs)
    options = envs.without_opponents(config.env, config.env_options)
    env = envs.make_vec(config.env, n_envs, config.device, config.seed, env_options=options)
    trainer = make_trainer(config, env)
    trainer.learn(n_envs * int(config.overrides.get("n_steps", 1)))
    if config.device != "cpu":
        free, total = torch.cuda.mem_get_info(config.device)
    else:
        free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    return total - free, total


if __name__ == "__main__":
    print(json.dumps(_train_one_iteration(RunConfig.from_dict(json.load(sys.stdin)))))
