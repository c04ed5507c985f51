"""Main function of the ranks above 0 in a distributed run: they follow rank 0 and have no run directory."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from kit.machine import settings
from kit.trainers.distributed.group import ProcessGroup

if TYPE_CHECKING:
    from kit.config import RunConfig
    from kit.envs.contract import BatchEnv


def run_rank(group: ProcessGroup, make_env: Callable[[RunConfig], BatchEnv]) -> None:
    """Train as a rank above 0 until rank 0 is done. Raises `Interrupted` if rank 0 stops early or a process is lost."""
    from kit.errors import Interrupted
    from kit.trainers import algorithm, make_trainer
    from kit.trainers.distributed.ppo import DistributedPPO
    from kit.trainers.planning import config_of_rank

    # torchrun and terminals send signals to all ranks. Only rank 0 reacts: it saves, then ends the others.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    (run_config,) = group.broadcast()
    config = config_of_rank(algorithm.find(run_config.algo), run_config, group.rank, group.on_this_machine)
    settings.apply(config.device)
    env = make_env(config)
    trainer = make_trainer(config, env, group)
    assert isinstance(trainer, DistributedPPO)
    try:
        trainer.learn(config.total_steps)
        trainer.obey()
    except Interrupted:
        if trainer.num_timesteps < config.total_steps:
            raise
    finally:
        env.close()
        group.close()
