"""Processes of a distributed run (`kit.trainers.distributed`): rank 0 owns the run directory and starts the others.

Each other rank runs `python -m kit.runs.ranks RANK SIZE PORT`.
"""

from __future__ import annotations

import sys

from kit.config import RunConfig
from kit.errors import Interrupted
from kit.runs.opponents import make_env
from kit.runs.status import DONE, INTERRUPTED
from kit.trainers.distributed import group as groups
from kit.trainers.distributed.group import ProcessGroup
from kit.trainers.distributed.rank import run_rank


def start_group(config: RunConfig) -> ProcessGroup:
    """Return torchrun's process group or, without torchrun, start `config.processes` processes. Raises `UserError`."""
    from kit import envs
    from kit.machine import settings

    environment = settings.worker_environment(int(config.threads) // config.processes or 1) | envs.child_environ(config)
    group = groups.from_torchrun() or groups.start(config.processes, config.device, "kit.runs.ranks", environment)
    group.broadcast(config)
    return group


def train_rank(group: ProcessGroup) -> int:
    """Train as a rank above 0; return the exit code, 75 if rank 0 was stopped or a process has died, else 0."""
    try:
        run_rank(group, lambda config: make_env(config, int(config.n_envs), config.seed, int(config.threads)))
    except Interrupted:
        return INTERRUPTED
    return DONE


if __name__ == "__main__":
    rank, size, port = map(int, sys.argv[1:])
    sys.exit(train_rank(groups.connect(rank, size, port)))
