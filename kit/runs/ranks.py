"""Processes of a distributed run (`kit.trainers.distributed`): rank 0 owns the run directory and starts the others.

Each other rank runs `python -m kit.runs.ranks RANK SIZE PORT`.
"""

from __future__ import annotations

import signal
import sys
from contextlib import closing

from kit.config import RunConfig
from kit.errors import Interrupted
from kit.runs.opponents import make_env
from kit.runs.status import DONE, INTERRUPTED
from kit.trainers.distributed import group as groups
from kit.trainers.distributed.group import ProcessGroup


def start_group(config: RunConfig) -> ProcessGroup:
    """Return torchrun's process group or, without torchrun, start `config.processes` processes. Raises `UserError`."""
    from kit import envs
    from kit.machine import settings

    environment = settings.worker_environment(int(config.threads) // config.processes or 1) | envs.child_environ(config)
    group = groups.from_torchrun() or groups.start(config.processes, config.device, "kit.runs.ranks", environment)
    group.broadcast(config)
    return group


def train_rank(group: ProcessGroup) -> int:
    """Train as a rank above 0; return the exit code: 75 if rank 0 was stopped or a process died, else 0."""
    from kit.machine import settings
    from kit.trainers import make_trainer
    from kit.trainers.distributed.ppo import DistributedPPO
    from kit.trainers.planning import config_of_rank

    # torchrun and terminals send signals to all ranks. Only rank 0 reacts: it saves, then ends the other ranks.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    try:
        (run_config,) = group.broadcast()
        config = config_of_rank(run_config, group.rank, group.on_this_machine)
        settings.apply(config.device)
        with closing(make_env(config, int(config.n_envs), config.seed, int(config.threads))) as env:
            trainer = make_trainer(config, env, group)
            assert isinstance(trainer, DistributedPPO)
            try:
                trainer.learn(config.total_steps)
                trainer.obey()
            except Interrupted:
                if trainer.num_timesteps < config.total_steps:
                    raise
    except Interrupted:
        return INTERRUPTED
    finally:
        group.close()
    return DONE


if __name__ == "__main__":
    rank, size, port = map(int, sys.argv[1:])
    sys.exit(train_rank(groups.connect(rank, size, port)))
