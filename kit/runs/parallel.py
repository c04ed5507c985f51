"""One run in several processes: `torchrun --standalone --nproc_per_node 2 -m kit train ...`, and `kit resume` alike.

Rank 0 has the run: its directory, metrics, checkpoints, what is printed, what is copied. It alone looks at requests,
signals and clocks. The other processes `follow`; they write nothing. A checkpoint holds all worlds, so a run may go
on with any number of processes.
"""

from __future__ import annotations

import contextlib
import signal

from kit.config import RunConfig
from kit.errors import UserError
from kit.machine import group as processes
from kit.machine.group import Group, ProcessLost


def check(config: RunConfig) -> None:
    """Refuse a resolved `config` that the processes torchrun has started cannot share. Raises `UserError`."""
    size = processes.size()
    if size == 1:
        return
    if config.algo == "SAC":
        raise UserError(f"algo='SAC' trains in one process, not {size}; use PPO or A2C, or start it without torchrun.")
    _divides("n_envs", int(config.n_envs), size)
    if config.algo == "PPO":
        _divides("batch_size", int(config.overrides["batch_size"]), size)
    if ":" in config.device:
        raise UserError(f"device={config.device!r} names one GPU for {size} processes; write cuda.")
    if config.device == "cuda":
        import torch

        if (gpus := torch.cuda.device_count()) < processes.local_size():
            raise UserError(
                f"nproc_per_node={processes.local_size()} is more than this machine's GPUs; start {gpus} or fewer."
            )


def _divides(name: str, value: int, size: int) -> None:
    if value % size:
        below = value - value % size
        nearby = " or ".join(str(n) for n in (below, below + size) if n)
        raise UserError(f"{name}={value} cannot be shared evenly by {size} processes; use {nearby}.")


def local(config: RunConfig) -> RunConfig:
    """`config` for this process alone: its own GPU, its part of the machine's cores."""
    config = config.replace(threads=max(1, int(config.threads) // processes.local_size()))
    if config.device == "cuda" and processes.size() > 1:
        import torch

        torch.cuda.set_device(processes.local_rank())
        config = config.replace(device=f"cuda:{processes.local_rank()}")
    return config


def join(config: RunConfig) -> Group | None:
    """The leader's group, once all processes have come and been told the `config`; None if there is just this one."""
    check(config)
    if processes.size() == 1:
        return None
    group = Group()
    group.share(config.to_dict())
    return group


def follow() -> None:
    """Take part in the run that rank 0 leads. Never returns: this process ends with the run, with rank 0's exit code,
    so that what a script does after training is done once."""
    from kit import envs
    from kit.machine import settings
    from kit.presets import network_threads
    from kit.trainers import Interrupted, make_trainer
    from kit.trainers.parallel import Parallel

    group = Group()
    for number in (signal.SIGTERM, signal.SIGINT):  # torchrun and terminals send them to all; the leader decides
        signal.signal(number, signal.SIG_IGN)
    config = local(RunConfig.from_dict(group.share()))
    settings.apply(config.device, network_threads(config))
    env = envs.make_vec(config.env, int(config.n_envs), config.device, config.seed, int(config.threads), group)
    trainer = make_trainer(config, env)
    assert isinstance(trainer, Parallel)
    with contextlib.suppress(Interrupted, ProcessLost):
        trainer.learn(config.total_steps)
    while True:
        with contextlib.suppress(Interrupted, ProcessLost):
            trainer.obey()
