"""Advantage actor-critic (Mnih et al., 2016), synchronous, as in SB3."""

from __future__ import annotations

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from torch.nn import functional as F

from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.rollout import Batch


class A2C(OnPolicyTrainer, sb3.A2C):
    """SB3's A2C on tensors."""

    default_log_interval = 10

    def train(self) -> None:
        """One gradient step over the whole rollout."""
        self._poll()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        loss, stats = self._loss(self.rollout_buffer.batch())
        self.policy.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        self._n_updates += 1
        if self._log_now:
            self._log_update(stats)

    def _loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and policy, value and entropy loss apart."""
        actions = batch.actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else batch.actions
        values, log_prob, entropy = self.policy.evaluate_actions(batch.obs, actions)  # type: ignore[arg-type]
        advantages = batch.advantages
        if self.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        # L = -E[A log π] + c_v E[(R - V)²] - c_e H
        policy_loss = -(advantages * log_prob).mean()
        value_loss = F.mse_loss(batch.returns, values.flatten())
        entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        return loss, torch.stack([policy_loss, value_loss, entropy_loss]).detach()

    def _log_update(self, stats: torch.Tensor) -> None:
        policy_loss, value_loss, entropy_loss = stats.tolist()
        record = self.logger.record
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        record("train/explained_variance", self._explained_variance())
        record("train/entropy_loss", entropy_loss)
        record("train/policy_loss", policy_loss)
        record("train/value_loss", value_loss)
        if hasattr(self.policy, "log_std"):
            record("train/std", self.policy.log_std.exp().mean().item())
