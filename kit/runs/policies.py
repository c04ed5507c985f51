"""Load a policy from a checkpoint."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from kit.config import RunConfig
from kit.format.checkpoint import Checkpoint

if TYPE_CHECKING:
    from kit.trainers import Trainer


def load_policy(config: RunConfig, saved: Checkpoint | None) -> Trainer:
    """Load the policy of a checkpoint (None: make a new, untrained one) into a trainer on the CPU.

    The trainer is for `predict`, `act` and `save`, not for training.
    """
    from kit import envs
    from kit.trainers import make_trainer

    config = config.replace(device="cpu", n_envs=1, threads="auto")  # "auto": leave this process's threads unchanged
    with warnings.catch_warnings():  # SB3 warns of batches larger than one env's rollout, irrelevant without training
        warnings.filterwarnings("ignore", "You have specified a mini-batch size", UserWarning)
        options = envs.without_opponents(config.env, config.env_options)
        trainer = make_trainer(config, envs.make_vec(config.env, 1, "cpu", config.seed, 1, options))
    state = saved.read() if saved is not None else {}
    if state:
        trainer.load_policy(state)
    return trainer
