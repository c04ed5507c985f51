"""REINFORCE with a baseline, as an example of a user-defined algorithm in one file."""

from __future__ import annotations

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy

from kit.trainers.algorithm import Algorithm
from kit.trainers.networks import Evaluated
from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.rollout import Batch


class Reinforce(OnPolicyTrainer, sb3.A2C):
    def train(self) -> None:
        self._poll()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        self.networks.attach()
        self.networks.gradient(self.loss, self.rollout_buffer.batch())
        self.networks.step(self.max_grad_norm)
        self._n_updates += 1
        self.logger.record("train/n_updates", self._n_updates)

    def loss(self, new: Evaluated, batch: Batch) -> torch.Tensor:
        """L = -E[(R - V_old) log π] + ½ E[(R - V)²]"""
        policy_loss = -((batch.returns - batch.values) * new.log_prob).mean()
        return policy_loss + 0.5 * (batch.returns - new.values).square().mean()


REINFORCE = Algorithm(
    "Reinforce", Reinforce, sb3.A2C, ActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete), row={"n_envs": 4, "n_steps": 20}, stock_row={"n_envs": 1},
)  # fmt: skip
