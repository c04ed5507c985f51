"""From a resolved RunConfig and an env to a trainer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from kit import encoders
from kit.encoders.frozen import FrozenView
from kit.envs.contract import BatchEnv
from kit.envs.sb3 import TensorVecEnv
from kit.machine.memory import keep_freed
from kit.trainers.arguments import arguments
from kit.trainers.planning import Plan

if TYPE_CHECKING:
    from kit.config import RunConfig
    from kit.trainers.base import TensorTrainer
    from kit.trainers.distributed.group import ProcessGroup

WORTH_SHARING = 200_000
"""Numbers made by the largest layer for one minibatch, from which more threads pay. Two threads on two cores, quiet or
beside a program that keeps one of them busy, to one thread: 33,000 numbers (Ant's row) 1.4 and 0.5 times as fast,
262,000 (Mission's row) 1.7 and 0.3. Small networks are left to one thread, which takes its time but not others'."""


def make_trainer(config: RunConfig, env: BatchEnv, group: ProcessGroup | None = None) -> TensorTrainer:
    """See `kit.trainers.make_trainer`. Also sets the number of threads that torch uses in this process."""
    plan = Plan.of(config, env)
    hyperparameters, encoder = arguments(plan.algorithm, config.overrides), plan.encoder
    requested = hyperparameters.pop("policy_kwargs", {})
    view = encoder.make_view() if encoder.make_view else None
    if isinstance(view, FrozenView):  # it was built with these
        requested.pop(encoders.OPTIONS, None)
    if policy_kwargs := encoder.policy_kwargs | requested:
        hyperparameters["policy_kwargs"] = policy_kwargs
    if config.device == "cpu" and encoders.sees_images(env.observation_space):
        keep_freed()
    if isinstance(config.threads, int):
        torch.set_num_threads(1)  # first weights of large networks would differ with the number of threads
    with warnings.catch_warnings():  # SB3 advises against small networks on GPUs, with its own envs in mind
        warnings.filterwarnings("ignore", "You are trying to run .* on the GPU", UserWarning)
        made: Callable[..., TensorTrainer] = plan.algorithm.trainer
        if group is not None:
            from kit.trainers.distributed.ppo import DistributedPPO

            made = partial(DistributedPPO, group=group)
        vec_env = TensorVecEnv(env, view)
        trainer = made(encoder.policy, vec_env, seed=config.seed, device=config.device, **hyperparameters)
    if isinstance(config.threads, int) and largest_layer(trainer) >= WORTH_SHARING:
        torch.set_num_threads(config.threads)
    return trainer


def largest_layer(trainer: TensorTrainer) -> int:
    """Numbers that come out of the largest layer in an update; convolutions count once for each place of the kernel.
    An LSTM works on a few rows at a time, one step after another, and does not count."""
    rows = getattr(trainer, "batch_size", 0) or trainer.n_steps * trainer.n_envs  # type: ignore[attr-defined]
    shapes = [p.shape for name, p in trainer.policy.named_parameters() if "lstm" not in name]
    return rows * max(shape[0] * (100 if len(shape) > 2 else 1) for shape in shapes if len(shape) > 1)
