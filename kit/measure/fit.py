"""How many worlds fit into memory: two small probes, a straight line through them, and a margin.

Each probe is a child process that builds the env, trains one iteration and says how much memory is in use, so that a
probe leaves nothing behind and running out kills nobody else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from kit import envs
from kit.config import RunConfig
from kit.errors import UserError
from kit.trainers.algorithm import with_n_envs
from kit.trainers.planning import STRIDE, Plan

PROBES = (64, 256)
MARGIN = 0.15
"""Part of the memory that stays free: for fragments, evaluation, and whatever else comes along."""
MOST = 8192
"""Answers are multiples of `STRIDE` and no more than this, beyond which cards gain little speed."""

Measure = Callable[[RunConfig, int], tuple[int, int]]
"""Bytes in use with that many worlds, by all processes, and bytes there are."""


class Fit(NamedTuple):
    """What fits, and why."""

    n_envs: int
    world_bytes: int
    fixed_bytes: int
    """Whatever does not depend on the number of worlds, other programs included."""
    memory_bytes: int


def fit(config: RunConfig, measure: Measure | None = None) -> Fit:
    """The largest number of worlds that trains `config` (resolved) with a safe margin of memory left, such as 7,936
    with 1.6 MB each on a card of 16 GB. Raises `UserError` if there is room for none."""
    measure = measure or in_a_child
    few, many = PROBES
    (low, _), (high, memory) = measure(config, few), measure(config, many)
    world = max((high - low) // (many - few), 1)
    fixed = max(low - few * world, 0)
    room = int((1 - MARGIN) * memory) - fixed
    n_envs = min(room // world // STRIDE * STRIDE, MOST)
    if n_envs < STRIDE:
        raise UserError(
            f"n_envs='auto': {STRIDE} worlds of {config.env} with this network do not fit into {memory / 1e9:.1f} GB, "
            f"of which {fixed / 1e9:.1f} GB are taken; close other programs or choose a smaller network."
        )
    return Fit(n_envs, world, fixed, memory)


def room(plan: Plan, share: int = 1) -> int:
    """How many envs of `plan` to take, if it gets one of `share` parts of the memory."""
    return max(STRIDE, fit(plan.config).n_envs // share)


def in_a_child(config: RunConfig, n_envs: int) -> tuple[int, int]:
    """Train one iteration with `n_envs` worlds in a process of its own, and read the memory."""
    config = with_n_envs(config, n_envs)  # the real run's minibatches, as far as the smaller rollout has enough
    if "n_epochs" in config.overrides:
        config = config.replace(overrides={**config.overrides, "n_epochs": 1})
    command, environment = [sys.executable, "-m", __name__], {**os.environ, **envs.child_environ(config)}
    asked = json.dumps(config.to_dict())
    child = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, env=environment)
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
        said = f"the memory probe with {n_envs} worlds of {config.env} failed ({reason})"
        raise UserError(f"{said}; set n_envs yourself.")
    used, memory = json.loads(child.stdout.splitlines()[-1])
    return int(used), int(memory)


def _train_one_iteration(config: RunConfig) -> tuple[int, int]:
    """Bytes in use afterwards, with worlds and trainer still there (Warp gives back what nobody holds any more), and
    bytes there are."""
    import psutil
    import torch

    from kit.trainers import make_trainer

    n_envs = int(config.n_envs)
    env = envs.make_vec(
        config.env,
        n_envs,
        config.device,
        config.seed,
        env_options=envs.without_opponents(config.env, config.env_options),
    )
    trainer = make_trainer(config, env)
    trainer.learn(n_envs * int(config.overrides.get("n_steps", 1)))
    if config.device != "cpu":
        free, total = torch.cuda.mem_get_info(config.device)
    else:
        free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    return total - free, total


if __name__ == "__main__":
    print(json.dumps(_train_one_iteration(RunConfig.from_dict(json.load(sys.stdin)))))
