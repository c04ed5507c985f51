"""A process that trains beside the one that leads (`kit.trainers.together`). It has no run directory and no commands of
its own, and ends with the leader, which starts it as `python -m kit.runs.following RANK SIZE PORT`."""

from __future__ import annotations

import signal
import sys

from kit.errors import Interrupted
from kit.machine import group as groups
from kit.machine import settings
from kit.machine.group import Group
from kit.runs.opponents import make_worlds
from kit.runs.status import DONE, INTERRUPTED


def follow(group: Group) -> int:
    """Exit code: 0 done, 75 the leader was stopped, or it or another process is gone."""
    from kit.trainers import algorithm, make_trainer
    from kit.trainers.planning import part
    from kit.trainers.together import TogetherPPO

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # torchrun and terminals send them to all; the leader
        signal.signal(name, signal.SIG_IGN)  # saves first, and then says so
    try:
        (whole,) = group.tell()
        config = part(algorithm.find(whole.algo), whole, group.rank, group.on_this_machine)
        settings.apply(config.device)
        env = make_worlds(config, int(config.n_envs), config.seed, int(config.threads))
        trainer = make_trainer(config, env, group)
        assert isinstance(trainer, TogetherPPO)
        try:
            trainer.learn(config.total_steps)
            trainer.obey()
        except Interrupted:
            if trainer.num_timesteps < config.total_steps:
                raise
        finally:
            env.close()
            group.leave()
    except Interrupted:
        return INTERRUPTED
    return DONE


if __name__ == "__main__":
    rank, size, port = map(int, sys.argv[1:])
    sys.exit(follow(groups.follow(rank, size, port)))
