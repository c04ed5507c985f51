"""From a resolved RunConfig and an env to a trainer."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

import torch

from kit.encoders import policy_name
from kit.trainers.overrides import arguments

if TYPE_CHECKING:
    from kit.config import RunConfig
    from kit.trainers.base import TensorTrainer

WORTH_SHARING = 64_000_000
"""Multiply-adds in one matrix product (0.7 ms on one core) from which more threads pay, their start and end included.
Below it a second thread was slower in every size tried, and many times slower while the core was busy elsewhere."""


def make_trainer(config: RunConfig, env: Any) -> TensorTrainer:
    """See `kit.trainers.make_trainer`. Also sets the number of threads that torch uses in this process."""
    from kit.envs.sb3 import TensorVecEnv
    from kit.envs.shared import SharedEnv

    hyperparameters = arguments(config.algo, config.overrides)
    policy = policy_name(config.encoder, env.observation_space)
    algorithm = getattr(importlib.import_module(f"kit.trainers.{config.algo.lower()}"), config.algo)
    if isinstance(env, SharedEnv):
        algorithm = getattr(importlib.import_module("kit.trainers.parallel"), f"Parallel{config.algo}")
    with warnings.catch_warnings():  # SB3 advises against small networks on GPUs, with its own envs in mind
        warnings.filterwarnings("ignore", "You are trying to run .* on the GPU", UserWarning)
        trainer = algorithm(policy, TensorVecEnv(env), seed=config.seed, device=config.device, **hyperparameters)
    if isinstance(config.threads, int):
        torch.set_num_threads(config.threads if largest_product(trainer) >= WORTH_SHARING else 1)
    return trainer


def largest_product(trainer: TensorTrainer) -> int:
    """Multiply-adds of the largest product in an update; convolutions count once for each place of the kernel."""
    rows = getattr(trainer, "batch_size", 0) or trainer.n_steps * trainer.n_envs  # type: ignore[attr-defined]
    shapes = [p.shape for p in trainer.policy.parameters()]
    return rows * max(shape.numel() * (100 if len(shape) > 2 else 1) for shape in shapes)
