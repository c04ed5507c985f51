"""Trainers: PPO, A2C, SAC, TD3, CrossQ and RecurrentPPO with SB3's interface, on tensors and exactly resumable."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kit.config import ALGOS
from kit.errors import Interrupted

if TYPE_CHECKING:
    from kit.trainers.a2c import A2C as A2C
    from kit.trainers.base import TensorTrainer as Trainer
    from kit.trainers.build import make_trainer as make_trainer
    from kit.trainers.crossq import CrossQ as CrossQ
    from kit.trainers.ppo import PPO as PPO
    from kit.trainers.recurrent_ppo import RecurrentPPO as RecurrentPPO
    from kit.trainers.sac import SAC as SAC
    from kit.trainers.td3 import TD3 as TD3

__all__ = ["A2C", "PPO", "SAC", "TD3", "CrossQ", "Interrupted", "RecurrentPPO", "Trainer", "make_trainer"]


def __getattr__(name: str) -> Any:
    """Import the algorithms lazily, so that importing this package stays fast."""
    if name in ALGOS:
        return getattr(importlib.import_module(ALGOS[name]), name)
    if name == "make_trainer":
        return importlib.import_module("kit.trainers.build").make_trainer
    if name == "Trainer":
        return importlib.import_module("kit.trainers.base").TensorTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
