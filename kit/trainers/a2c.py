"""Advantage actor-critic (Mnih et al., 2016), synchronous, as in SB3."""

from __future__ import annotations

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric import AsymmetricActorCritic
from kit.trainers.algorithm import Algorithm
from kit.trainers.fast import derivatives
from kit.trainers.fast.derivatives import closed_form
from kit.trainers.networks import Evaluated
from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.rollout import Batch


class A2C(OnPolicyTrainer, sb3.A2C):
    """SB3's A2C with tensor rollouts.

    :param use_rms_prop: use the optimizer RMSprop instead of Adam
    :param rms_prop_eps: number that keeps RMSprop from dividing by almost 0; usual: 0.00001 to 0.001
    """

    policy_aliases = {**sb3.A2C.policy_aliases, ASYMMETRIC: AsymmetricActorCritic}  # noqa: RUF012

    default_log_interval = 10

    def train(self) -> None:
        """Take one gradient step over the whole rollout."""
        self._poll()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        self.networks.attach()
        batch = self.rollout_buffer.batch()
        if self.normalize_advantage:
            batch.advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        new = self.networks.gradient(self.loss, batch)
        self.networks.step(self.max_grad_norm)
        self._n_updates += 1
        if self._log_now:
            self._log_update(new, batch)

    @closed_form(derivatives.a2c)
    def loss(self, new: Evaluated, batch: Batch) -> torch.Tensor:
        """L = -E[A log π] + c_v E[(R - V)²] - c_e H, with c_v = `vf_coef` and c_e = `ent_coef`."""
        policy_loss, value_loss = self._losses(new, batch)
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * new.entropy

    def _losses(self, new: Evaluated, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return -(batch.advantages * new.log_prob).mean(), (batch.returns - new.values).square().mean()

    def _log_update(self, new: Evaluated, batch: Batch) -> None:
        policy_loss, value_loss, entropy_loss = torch.stack([*self._losses(new, batch), -new.entropy]).tolist()
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
)  # fmt: skip
