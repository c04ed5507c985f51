"""Run one iteration of a trainer, rollout and update, without `learn`, which synchronises when it reads metrics."""

from __future__ import annotations

from typing import Any

from kit.trainers.imitation import ImitationTrainer
from kit.trainers.replay_trainer import ReplayTrainer


def one_iteration(model: Any, callback: Any, gradient_steps: int = 2) -> None:
    """Collect one rollout and update once; SAC and TD3 take `gradient_steps` gradient steps."""
    if isinstance(model, ImitationTrainer):
        model._collect(callback)
        model.train()
    elif isinstance(model, ReplayTrainer):
        model._collect(callback, model.train_freq)
        model.train(gradient_steps, model.batch_size)
    else:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model._compute_returns()
        model.train()
