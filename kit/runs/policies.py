"""Load a policy from a checkpoint."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from kit.config import RunConfig
from kit.format.checkpoint import Checkpoint

if TYPE_CHECKING:
    from kit.trainers import Trainer


def load_policy(config: RunConfig, saved: Checkpoint | None) -> Trainer:
    """Load the model of a checkpoint on the CPU, for `predict`, `act` and `save`; None: a new, untrained model."""
    from kit import envs
    from kit.trainers import make_trainer

    config = config.replace(device="cpu", n_envs=1, threads="auto")  # this process keeps its number of threads
    with warnings.catch_warnings():  # SB3 warns of batches larger than one env's rollout, but nothing is trained
        warnings.filterwarnings("ignore", "You have specified a mini-batch size", UserWarning)
        options = envs.without_opponents(config.env, config.env_options)
        trainer = make_trainer(config, envs.make_vec(config.env, 1, "cpu", config.seed, 1, options))
    state = saved.read() if saved is not None else {}
    if state:
        trainer.load_policy(state)
    return trainer
