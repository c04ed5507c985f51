"""How many worlds fit into memory: two small probes, a straight line through them, and a margin.

Each probe is a child process that builds the env, trains one iteration and says how much memory is in use, so that a
probe leaves nothing behind and running out kills nobody else.

    fit(RunConfig(env="G1Joystick", device="cuda").resolve())   # 7,936 worlds: 13.6 of 16.0 GB, 1.6 MB each
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from kit.config import RunConfig
from kit.errors import UserError
from kit.trainers.algorithm import with_worlds

PROBES = (64, 256)
MARGIN = 0.15
"""Part of the memory that stays free: for fragments, evaluation, and whatever else comes along."""
STRIDE, MOST = 64, 8192
"""Answers are multiples of one and no more than the other, beyond which cards gain little speed."""

Measure = Callable[[RunConfig, int], tuple[int, int]]
"""Bytes in use with that many worlds, by all processes, and bytes there are."""


@dataclass(frozen=True)
class Fit:
    """What fits, and why."""

    n_envs: int
    world_bytes: int
    fixed_bytes: int
    """Whatever does not depend on the number of worlds, other programs included."""
    memory_bytes: int

    def __str__(self) -> str:
        used = self.fixed_bytes + self.n_envs * self.world_bytes
        room = f"{used / 1e9:.1f} of {self.memory_bytes / 1e9:.1f} GB"
        return f"{self.n_envs:,} worlds: {room}, {self.world_bytes / 1e6:.1f} MB each"


def fit(config: RunConfig, measure: Measure | None = None) -> Fit:
    """The largest number of worlds that trains `config` (resolved) with a safe margin of memory left."""
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


def in_a_child(config: RunConfig, n_envs: int) -> tuple[int, int]:
    """Train one iteration with `n_envs` worlds in a process of its own, and read the memory."""
    config = with_worlds(config, n_envs)  # the minibatches of the real run, as far as the smaller rollout has enough for one
    if "n_epochs" in config.overrides:
        config = config.replace(overrides={**config.overrides, "n_epochs": 1})
    request = json.dumps(config.to_dict())
    child = subprocess.run([sys.executable, "-m", __name__], input=request, capture_output=True, text=True, check=False)
    if child.returncode:
        reason = child.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise UserError(
            f"the memory probe with {n_envs} worlds of {config.env} failed ({reason[0]}); set n_envs yourself."
        )
    used, memory = json.loads(child.stdout.splitlines()[-1])
    return int(used), int(memory)


def _train_one_iteration(config: RunConfig) -> tuple[int, int]:
    """Bytes in use afterwards, with worlds and trainer still there (Warp gives back what nobody holds any more), and
    bytes there are."""
    from kit.envs import make_vec
    from kit.trainers import make_trainer

    assert isinstance(config.n_envs, int)
    env = make_vec(config.env, config.n_envs, config.device, config.seed, env_options=config.env_options)
    trainer = make_trainer(config, env)
    trainer.learn(config.n_envs * int(config.overrides.get("n_steps", 1)))
    return _memory(config.device)


def _memory(device: str) -> tuple[int, int]:
    """Bytes in use, and bytes there are."""
    import psutil
    import torch

    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    machine = psutil.virtual_memory()
    return machine.total - machine.available, machine.total


if __name__ == "__main__":
    asked = RunConfig.from_dict(json.load(sys.stdin))
    print(json.dumps(_train_one_iteration(asked)))
