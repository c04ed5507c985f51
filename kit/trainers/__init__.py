"""Trainers: PPO, A2C, SAC, TD3 and RecurrentPPO with SB3's interface, on tensors and exactly resumable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.config import ALGOS
from kit.errors import Interrupted

if TYPE_CHECKING:
    from kit.config import RunConfig
    from kit.envs.contract import BatchEnv
    from kit.trainers.a2c import A2C as A2C
    from kit.trainers.base import TensorTrainer as Trainer
    from kit.trainers.distributed.group import ProcessGroup
    from kit.trainers.ppo import PPO as PPO
    from kit.trainers.recurrent_ppo import RecurrentPPO as RecurrentPPO
    from kit.trainers.sac import SAC as SAC
    from kit.trainers.td3 import TD3 as TD3

__all__ = ["A2C", "PPO", "SAC", "TD3", "Interrupted", "RecurrentPPO", "Trainer", "make_trainer"]


def make_trainer(config: RunConfig, env: BatchEnv, group: ProcessGroup | None = None) -> Trainer:
    """Build the trainer for `env` (from `kit.make_vec`). `config` is resolved: it holds no "auto".

    `group` is given in a distributed run only: the process group (`kit.trainers.distributed`). `config` and `env` are
    then this process's share.
    """
    from kit.trainers.build import make_trainer

    return make_trainer(config, env, group)


def __getattr__(name: str) -> Any:
    """Import the algorithms lazily, so that importing this package stays fast."""
    import importlib

    if name in ALGOS:
        return getattr(importlib.import_module(ALGOS[name]), name)
    if name == "Trainer":
        return importlib.import_module("kit.trainers.base").TensorTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
