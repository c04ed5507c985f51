"""Ranks above 0 of a distributed run: no run directory and no commands of their own; they end with rank 0."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from kit.machine import settings
from kit.trainers.distributed.group import ProcessGroup

if TYPE_CHECKING:
    from kit.config import RunConfig
    from kit.envs.contract import BatchEnv


def follow(group: ProcessGroup, make_env: Callable[[RunConfig], BatchEnv]) -> None:
    """Train beside rank 0 to the end. Raises `Interrupted` if rank 0 was stopped, or a process is gone."""
    from kit.errors import Interrupted
    from kit.trainers import algorithm, make_trainer
    from kit.trainers.distributed.ppo import DistributedPPO
    from kit.trainers.planning import part

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # torchrun and terminals signal all; rank 0 saves
        signal.signal(name, signal.SIG_IGN)  # first, and then ends the others
    (whole,) = group.broadcast()
    config = part(algorithm.find(whole.algo), whole, group.rank, group.on_this_machine)
    settings.apply(config.device)
    env = make_env(config)
    trainer = make_trainer(config, env, group)
    assert isinstance(trainer, DistributedPPO)
    try:
        trainer.learn(config.total_steps)
        trainer.follow()
    except Interrupted:
        if trainer.num_timesteps < config.total_steps:
            raise
    finally:
        env.close()
        group.close()
