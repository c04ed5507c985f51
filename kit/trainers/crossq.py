"""CrossQ (Bhatt et al., 2024), as in sb3-contrib: SAC with batch normalisation, without target networks.

(s, a) and (s', a') pass through the critics as one batch, so that both are normalised by the same statistics.
"""

from __future__ import annotations

from typing import Any

import sb3_contrib
import torch
from sb3_contrib.common.torch_layers import BatchRenorm1d
from sb3_contrib.crossq.policies import CrossQPolicy
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from torch.nn import functional as F

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric import OffPolicyGroups
from kit.envs.obs import tree_map
from kit.trainers.algorithm import Algorithm
from kit.trainers.entropy import EntropyTrainer, as_tensor
from kit.trainers.flat import flatten
from kit.trainers.off_policy import RECORD, descend, min_q
from kit.trainers.replay import Transitions


class CnnPolicy(CrossQPolicy):
    """CrossQ's policy for images; sb3-contrib has one for vectors only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": NatureCNN, **kwargs})


class MultiInputPolicy(CrossQPolicy):
    """CrossQ's policy for Dict observations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": CombinedExtractor, **kwargs})


class AsymmetricCrossQ(OffPolicyGroups, MultiInputPolicy):
    """Policy with observation groups for CrossQ."""


class BatchRenorm(BatchRenorm1d):
    """sb3-contrib's batch renormalisation, computed by torch's batch normalisation: faster, never waits for a GPU.

    Batch renormalisation (Ioffe, 2017) is batch normalisation followed by y ← r y + d, with r and d held constant:

        r = σ_batch / σ_running,   d = (μ_batch - μ_running) / σ_running,   both clipped; 1 and 0 in the first steps
    """

    ra_mean: torch.Tensor
    ra_var: torch.Tensor
    steps: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        running_mean, running_var = self.ra_mean, self.ra_var
        if not self.training:
            return F.batch_norm(x, running_mean, running_var, self.scale, self.bias, eps=self.eps)
        with torch.no_grad():
            mean = x.mean(0)
            var = (x - mean).square_().sum(0) / (len(x) - 1)  # torch.var_mean takes ten times as long
            running_std, warm = (running_var + self.eps).sqrt(), self.steps <= self.warmup_steps
            r = ((var + self.eps).sqrt() / running_std).clamp(1 / self.rmax, self.rmax).where(~warm, 1.0)
            d = ((mean - running_mean) / running_std).clamp(-self.dmax, self.dmax).where(~warm, 0.0)
            running_mean.lerp_(mean, self.momentum)
            running_var.lerp_(var, self.momentum)
            self.steps += 1
        biased = 1 - 1 / len(x)  # torch divides by the biased variance, sb3-contrib by the unbiased one
        scale, bias = self.scale * r * biased**0.5, self.bias + self.scale * d
        return F.batch_norm(x, None, None, scale, bias, training=True, eps=self.eps * biased)


class CrossQ(EntropyTrainer, sb3_contrib.CrossQ):
    """sb3-contrib's CrossQ with a tensor replay buffer.

    :param policy_delay: gradient steps of the critics per gradient step of the policy; usual: 1 to 3
    """

    policy_aliases = {  # noqa: RUF012
        **sb3_contrib.CrossQ.policy_aliases,
        "CnnPolicy": CnnPolicy, "MultiInputPolicy": MultiInputPolicy, ASYMMETRIC: AsymmetricCrossQ,
    }  # fmt: skip

    def _setup_model(self) -> None:
        super()._setup_model()
        for module in self.policy.modules():
            if isinstance(module, BatchRenorm1d):
                module.__class__ = BatchRenorm  # with the same parameters, so that sb3-contrib can load the zip
        self._flat = {net: flatten(net.optimizer) for net in (self.critic, self.actor)}

    def critic_loss(self, batch: Transitions, ent_coef: torch.Tensor) -> torch.Tensor:
        """Return the critics' squared error. The target y comes from the same critics, held constant.

        L_Q = ½ Σ_i E[(Q_i(s, a) - y)²],   y = r + γ (1 - d) (min_i Q_i(s', a') - α log π(a'|s')),   a' ~ π(s')
        """
        self.actor.set_bn_training_mode(False)
        with torch.no_grad():
            next_actions, next_log_prob = self.actor.action_log_prob(as_tensor(batch.next_obs))
        both_obs = tree_map(lambda *parts: torch.cat(parts), batch.obs, batch.next_obs)
        self.critic.set_bn_training_mode(True)
        values = self.critic(as_tensor(both_obs), torch.cat([batch.actions, next_actions]))
        self.critic.set_bn_training_mode(False)
        size = len(batch.rewards)
        with torch.no_grad():
            next_q = min_q(tuple(q[size:] for q in values))
            target = batch.rewards + self.gamma * (~batch.terminated) * (next_q - ent_coef * next_log_prob)
        return 0.5 * torch.stack([F.mse_loss(q[:size].squeeze(1), target) for q in values]).sum()

    def _attach(self) -> None:
        for optimizer in self._flat.values():
            optimizer.attach()

    def gradient_step(self, batch: Transitions, step: int) -> torch.Tensor:
        """Update the critics at every step, the policy and the entropy coefficient at every `policy_delay`-th."""
        if self.use_sde:
            self.actor.reset_noise()
        ent_coef = self.ent_coef_now()
        critic_loss = descend(self._flat[self.critic], self.critic_loss(batch, ent_coef))
        actor_loss = ent_coef_loss = torch.zeros_like(critic_loss)
        if (self._n_updates + step + 1) % self.policy_delay == 0:
            self.actor.set_bn_training_mode(True)
            actions, log_prob = self.actor.action_log_prob(as_tensor(batch.obs))
            # times policy_delay: the log takes the mean over all steps, and those without a policy update add 0
            if self.ent_coef_optimizer is not None:
                ent_coef_loss = self.policy_delay * descend(self.ent_coef_optimizer, self.ent_coef_loss(log_prob))
            loss = self.actor_loss(batch, actions, log_prob, ent_coef)
            learnt = [p for p in self.actor.parameters() if p.requires_grad]
            actor_loss = self.policy_delay * descend(self._flat[self.actor], loss, learnt)
        return torch.stack([ent_coef, actor_loss, critic_loss, ent_coef_loss][: len(self.metric_names)])

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_flat"]


SMALL = {"pi": [256, 256], "qf": [256, 256]}
"""Widths of the hidden layers. With sb3-contrib's critics, [1024, 1024], a gradient step takes 6.5 times as long."""
ALGORITHM = Algorithm(
    "CrossQ", CrossQ, sb3_contrib.CrossQ, CrossQPolicy,
    own={"random_shift": int, "n_sampled_goal": int, "random_share": float},
    **{**RECORD, "row": {**RECORD["row"], "learning_starts": 5000, "net_arch": SMALL}},
)  # fmt: skip
