"""From a checkpoint to a policy that acts."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from kit.config import RunConfig
from kit.format.checkpoint import Checkpoint

if TYPE_CHECKING:
    from kit.trainers import Trainer


def load_policy(config: RunConfig, found: Checkpoint | None) -> Trainer:
    """The model of a checkpoint on the CPU, ready for `predict`, `act` and `save`; of None, as training begins."""
    from kit import envs
    from kit.trainers import make_trainer

    config = config.replace(device="cpu", n_envs=1, threads="auto")  # this process keeps its number of threads
    with warnings.catch_warnings():  # SB3 advises on batches larger than one world's rollout, but nothing trains here
        warnings.filterwarnings("ignore", "You have specified a mini-batch size", UserWarning)
        alone = envs.without_opponents(config.env, config.env_options)
        trainer = make_trainer(config, envs.make_vec(config.env, 1, "cpu", config.seed, 1, alone))
    state = found.read() if found is not None else {}
    if state:
        trainer.load_policy(state)
    return trainer
