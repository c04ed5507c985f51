"""Advantage actor-critic (Mnih et al., 2016), synchronous, as in SB3."""

from __future__ import annotations

from typing import cast

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from torch.nn import functional as F

from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.recorded import Tensors
from kit.trainers.rollout import Batch
from kit.trainers.stacked import StackedActorCritic


class A2C(OnPolicyTrainer, sb3.A2C):
    """SB3's A2C on tensors."""

    default_log_interval = 10

    def train(self) -> None:
        """One gradient step over the whole rollout."""
        self._poll()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        self._flat.attach()
        batch = self.rollout_buffer.batch()
        if self.normalize_advantage:
            batch.advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        losses = self._gradient(batch)
        self._flat.step(self.max_grad_norm)
        self._n_updates += 1
        if self._log_now:
            self._log_update(losses)

    def _gradient(self, batch: Batch) -> torch.Tensor:
        """Put the gradient of the loss where the optimizer looks for it; returns policy, value and entropy loss (3,).

        L = -E[A log π] + c_v E[(R - V)²] - c_e H
        """
        if self._recorded is not None:
            return self._recorded(*vars(batch).values())[0].clone()
        if self._stacked is not None:
            with torch.no_grad():
                return self._stacked_gradient(self._stacked, batch)
        actions = batch.actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else batch.actions
        values, log_prob, entropy = self.policy.evaluate_actions(cast(torch.Tensor, batch.obs), actions)
        policy_loss = -(batch.advantages * log_prob).mean()
        value_loss = F.mse_loss(batch.returns, values.flatten())
        entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
        self._flat.zero_grad()
        (policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss).backward()
        return torch.stack([policy_loss, value_loss, entropy_loss]).detach()

    def _gradient_of(self, net: StackedActorCritic, batch: Batch, *numbers: torch.Tensor) -> Tensors:
        return (self._stacked_gradient(net, batch),)

    def _stacked_gradient(self, net: StackedActorCritic, batch: Batch) -> torch.Tensor:
        """The same by hand."""
        mean, values = net.forward(cast(torch.Tensor, batch.obs))
        z, zz = net.gaussian(batch.actions, mean)
        entropy, error = net.entropy(), values - batch.returns
        policy_loss = -(batch.advantages * net.log_prob(zz, entropy)).mean()
        net.backward(z, zz, batch.advantages / -len(batch), error * (2 * self.vf_coef / len(batch)), self.ent_coef)
        return torch.stack([policy_loss, error.square().mean(), -entropy])

    def _log_update(self, losses: torch.Tensor) -> None:
        policy_loss, value_loss, entropy_loss = losses.tolist()
        record = self.logger.record
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        record("train/explained_variance", self._explained_variance())
        record("train/entropy_loss", entropy_loss)
        record("train/policy_loss", policy_loss)
        record("train/value_loss", value_loss)
        if hasattr(self.policy, "log_std"):
            record("train/std", self.policy.log_std.exp().mean().item())
