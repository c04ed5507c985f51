"""Build a trainer from a resolved RunConfig and an env."""

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
"""Use several torch threads if the largest layer outputs at least this many numbers per minibatch, else one.

Two threads are 1.4 times (Ant) to 1.7 times (Mission) as fast as one thread. If another program uses one of the two
cores, two threads are half as fast as one.
"""


def make_trainer(config: RunConfig, env: BatchEnv, group: ProcessGroup | None = None) -> TensorTrainer:
    """Build the trainer for `env` (from `kit.make_vec`), and set torch's number of threads in this process.

    `config` is resolved; only `threads` may be "auto", which leaves the number of threads as it is. In a distributed
    run `group` is the process group, and `config` and `env` are those of this process, with its share of the envs.
    """
    plan = Plan.of(config, env)
    hyperparameters, encoder = arguments(plan.algorithm, config.overrides), plan.encoder
    requested = hyperparameters.pop("policy_kwargs", {})
    view = encoder.make_view() if encoder.make_view else None
    if isinstance(view, FrozenView):  # `encoders.choose` has built the frozen encoder with these options
        requested.pop(encoders.OPTIONS, None)
    if policy_kwargs := encoder.policy_kwargs | requested:
        hyperparameters["policy_kwargs"] = policy_kwargs
    if config.device == "cpu" and encoders.sees_images(env.observation_space):
        keep_freed()
    if isinstance(config.threads, int):
        torch.set_num_threads(1)  # the initial weights of large networks would depend on the number of threads
    with warnings.catch_warnings():  # SB3 warns against small networks on GPUs, which is wrong for tensor envs
        warnings.filterwarnings("ignore", "You are trying to run .* on the GPU", UserWarning)
        trainer_class: Callable[..., TensorTrainer] = plan.algorithm.trainer
        if group is not None:
            from kit.trainers.distributed.ppo import DistributedPPO

            trainer_class = partial(DistributedPPO, group=group)
        vec_env = TensorVecEnv(env, view)
        trainer = trainer_class(encoder.policy, vec_env, seed=config.seed, device=config.device, **hyperparameters)
    if isinstance(config.threads, int) and largest_layer(trainer) >= WORTH_SHARING:
        torch.set_num_threads(config.threads)
    return trainer


def largest_layer(trainer: TensorTrainer) -> int:
    """Estimate how many numbers the largest layer outputs for a minibatch.

    A convolution counts as 100 outputs per channel. LSTMs are left out, since they process few rows at a time.
    """
    rows = getattr(trainer, "batch_size", 0) or trainer.n_steps * trainer.n_envs  # type: ignore[attr-defined]
    shapes = [p.shape for name, p in trainer.policy.named_parameters() if "lstm" not in name]
    return rows * max(shape[0] * (100 if len(shape) > 2 else 1) for shape in shapes if len(shape) > 1)
