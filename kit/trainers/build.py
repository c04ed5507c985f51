"""From a resolved RunConfig and an env to a trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kit.encoders import policy_name
from kit.trainers.overrides import arguments

if TYPE_CHECKING:
    from kit.config import RunConfig
    from kit.trainers.base import TensorTrainer


def make_trainer(config: RunConfig, env: Any) -> TensorTrainer:
    """See `kit.trainers.make_trainer`."""
    from kit.envs.sb3 import TensorVecEnv

    algorithm = getattr(importlib.import_module(f"kit.trainers.{config.algo.lower()}"), config.algo)
    policy = policy_name(config.encoder, env.observation_space)
    hyperparameters = arguments(config.algo, config.overrides)
    return algorithm(policy, TensorVecEnv(env), seed=config.seed, device=config.device, **hyperparameters)
