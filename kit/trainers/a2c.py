"""Advantage actor-critic (Mnih et al., 2016), synchronous, as in SB3."""

from __future__ import annotations

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric import AsymmetricActorCritic
from kit.trainers.algorithm import Algorithm
from kit.trainers.networks import Evaluated
from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.recorded import Tensors
from kit.trainers.rollout import Batch


class A2C(OnPolicyTrainer, sb3.A2C):
    """SB3's A2C on tensors."""

    policy_aliases = {**sb3.A2C.policy_aliases, ASYMMETRIC: AsymmetricActorCritic}  # noqa: RUF012

    default_log_interval = 10

    def train(self) -> None:
        """One gradient step over the whole rollout."""
        self._poll()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        self.networks.attach()
        batch = self.rollout_buffer.batch()
        if self.normalize_advantage:
            batch.advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        (losses,) = self.networks.gradient(self._slopes, batch, self.ent_coef)
        self.networks.step(self.max_grad_norm)
        self._n_updates += 1
        if self._log_now:
            self._log_update(losses)

    def _slopes(self, found: Evaluated, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """∂ L / ∂ log π and ∂ L / ∂ V for each row, and policy, value and entropy loss (3,).

        L = -E[A log π] + c_v E[(R - V)²] - c_e H
        """
        error = found.values - batch.returns
        policy_loss = -(batch.advantages * found.log_prob).mean()
        losses = torch.stack([policy_loss, error.square().mean(), -found.entropy])
        return batch.advantages / -len(batch), error * (2 * self.vf_coef / len(batch)), (losses,)

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


ALGORITHM = Algorithm(
    "A2C", A2C, sb3.A2C, ActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    row={"n_envs": 16},
    stock_row={"n_envs": 1},
    columns=("n_steps", "net_arch"),
    imported=("n_steps", "gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm"),
)  # fmt: skip
