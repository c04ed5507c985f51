"""Soft actor-critic (Haarnoja et al., 2018), as in SB3."""

from __future__ import annotations

from typing import Any

import stable_baselines3 as sb3
import torch
from stable_baselines3.sac.policies import SACPolicy
from torch.nn import functional as F

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric import AsymmetricSAC
from kit.envs.obs import Obs
from kit.trainers.algorithm import Algorithm
from kit.trainers.entropy import EntropyTrainer, as_tensor
from kit.trainers.fast.stacked_sac import StackedSAC, can_stack
from kit.trainers.off_policy import RECORD, descend, min_q, polyak_update
from kit.trainers.replay import Transitions
from kit.trainers.saving import State, held

LOG_STD = -2.0
"""Initial log standard deviation (before tanh) of a pretrained policy's noise if `critic_warmup` > 0 and log_std_init
is not set."""

LOSSES = ("critic_loss", "actor_loss", "ent_coef_loss")
"""Methods that `StackedSAC` computes by formulas of its own; a subclass that overrides one of them uses autograd."""


class SAC(EntropyTrainer, sb3.SAC):
    """SB3's SAC with a tensor replay buffer.

    :param target_update_interval: gradient steps between two moves of the target networks; each update (gradient_steps)
        starts with a move, as in SB3; usual: 1 to 8
    :param critic_warmup: env steps at the start during which only the critics learn; for runs that start from a
        pretrained policy (`kit.branch`, `start_from`). If it is not 0, learning_starts adds no random actions, and
        the action noise starts from log_std_init. Usual: 0, or 1,000 to 20,000
    """

    policy_aliases = {**sb3.SAC.policy_aliases, ASYMMETRIC: AsymmetricSAC}  # noqa: RUF012

    def __init__(self, *args: Any, critic_warmup: int = 0, **kwargs: Any) -> None:
        self.critic_warmup = critic_warmup
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        overridden = any(getattr(type(self), loss) is not getattr(SAC, loss) for loss in LOSSES)
        self._stacked = StackedSAC(self) if can_stack(self) and not overridden else None

    # -- the losses ------------------------------------------------------------------------------------------------

    def critic_loss(self, batch: Transitions, ent_coef: torch.Tensor) -> torch.Tensor:
        """L_Q = ½ Σ_i E[(Q_i(s, a) - y)²],   y = r + γ (1 - d) (min_i Q'_i(s', a') - α log π(a'|s')),   a' ~ π(s')"""
        with torch.no_grad():
            next_actions, next_log_prob = self.actor.action_log_prob(as_tensor(batch.next_obs))
            next_q = min_q(self.critic_target(as_tensor(batch.next_obs), next_actions))
            target = batch.rewards + self.gamma * (~batch.terminated) * (next_q - ent_coef * next_log_prob)
        values = self.critic(as_tensor(batch.obs), batch.actions)
        return 0.5 * torch.stack([F.mse_loss(q.squeeze(1), target) for q in values]).sum()

    # -- the update ------------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        if self._stacked is not None:
            self._stacked.attach()

    def gradient_step(self, batch: Transitions, step: int) -> torch.Tensor:
        if self.num_timesteps > self.critic_warmup:
            return self._gradient_step(batch, step)
        with held([*self.actor.parameters(), *([] if self.log_ent_coef is None else [self.log_ent_coef])]):
            return self._gradient_step(batch, step)

    def _gradient_step(self, batch: Transitions, step: int) -> torch.Tensor:
        polyak = step % self.target_update_interval == 0
        if self._stacked is not None:
            return self._stacked.step(batch, polyak)[: len(self.metric_names)]
        if self.use_sde:
            self.actor.reset_noise()
        actions, log_prob = self.actor.action_log_prob(as_tensor(batch.obs))
        ent_coef, ent_coef_loss = self.ent_coef_now(), []
        if self.ent_coef_optimizer is not None:
            ent_coef_loss = [descend(self.ent_coef_optimizer, self.ent_coef_loss(log_prob))]
        critic_loss = descend(self.critic.optimizer, self.critic_loss(batch, ent_coef))
        actor_loss = descend(self.actor.optimizer, self.actor_loss(batch, actions, log_prob, ent_coef))
        if polyak:
            polyak_update(self.critic, self.critic_target, self.tau)
        return torch.stack([ent_coef, actor_loss, critic_loss, *ent_coef_loss])

    # -- state -----------------------------------------------------------------------------------------------------

    def _next_action(self, obs: Obs) -> torch.Tensor:
        if not self.critic_warmup:
            return super()._next_action(obs)
        return self._policy_actions(obs)

    def warm_start(self, state: State) -> None:
        super().warm_start(state)
        if self.critic_warmup and not self.use_sde:
            log_std: Any = self.actor.log_std
            log_std.weight.data.zero_()
            log_std.bias.data.fill_((self.policy_kwargs or {}).get("log_std_init", LOG_STD))

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_stacked"]


ALGORITHM = Algorithm(
    "SAC", SAC, sb3.SAC, SACPolicy,
    own={"random_shift": int, "n_sampled_goal": int, "random_share": float, "critic_warmup": int},
    **RECORD,
)  # fmt: skip
