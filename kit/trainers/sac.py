"""Soft actor-critic (Haarnoja et al., 2018), as in SB3."""

from __future__ import annotations

from typing import Any, cast

import stable_baselines3 as sb3
import torch
from stable_baselines3.sac.policies import SACPolicy
from torch.nn import functional as F

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric import AsymmetricSAC
from kit.envs.obs import Obs
from kit.trainers.algorithm import Algorithm
from kit.trainers.fast.stacked_sac import StackedSAC, can_stack
from kit.trainers.off_policy import RECORD, OffPolicyTrainer, descend, min_q, polyak_update
from kit.trainers.replay import Transitions
from kit.trainers.saving import State, Values, held

LOG_STD = -2.0
"""Log standard deviation, before tanh, of a pretrained policy's noise if `critic_warmup` > 0 without log_std_init."""


class SAC(OffPolicyTrainer, sb3.SAC):
    """SB3's SAC with a tensor replay buffer.

    :param target_update_interval: gradient steps between two moves of the target networks
    :param target_entropy: entropy that a learnt ent_coef aims at; auto: minus the number of action dimensions
    :param use_sde_at_warmup: act by the policy, with the noise of use_sde, before learning starts; else at random
    :param critic_warmup: env steps at the start during which only the critics learn; for policies from `start_from`.
        If it is not 0, the run takes no uniformly random actions, and the action noise starts from log_std_init
    """

    policy_aliases = {**sb3.SAC.policy_aliases, ASYMMETRIC: AsymmetricSAC}  # noqa: RUF012
    metric_names: tuple[str, ...] = ("ent_coef", "actor_loss", "critic_loss", "ent_coef_loss")

    def __init__(self, *args: Any, critic_warmup: int = 0, **kwargs: Any) -> None:
        self.critic_warmup = critic_warmup
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        self._stacked = StackedSAC(self) if can_stack(self) else None
        if self.log_ent_coef is not None:
            self.attach("temperature", Temperature(self.log_ent_coef))
        else:
            self.metric_names = self.metric_names[:-1]
            self._metric_sums = self._metric_sums[:-1]

    def explore(self, obs: Obs) -> torch.Tensor:
        """a ~ π(s)"""
        return self.actor(_tensor(obs))

    # -- the losses ------------------------------------------------------------------------------------------------

    def critic_loss(self, batch: Transitions, ent_coef: torch.Tensor) -> torch.Tensor:
        """L_Q = ½ Σ_i E[(Q_i(s, a) - y)²],   y = r + γ (1 - d) (min_i Q'_i(s', a') - α log π(a'|s')),   a' ~ π(s')"""
        with torch.no_grad():
            next_actions, next_log_prob = self.actor.action_log_prob(_tensor(batch.next_obs))
            next_q = min_q(self.critic_target(_tensor(batch.next_obs), next_actions))
            target = batch.rewards + self.gamma * (~batch.terminated) * (next_q - ent_coef * next_log_prob)
        values = self.critic(_tensor(batch.obs), batch.actions)
        return 0.5 * torch.stack([F.mse_loss(q.squeeze(1), target) for q in values]).sum()

    def actor_loss(
        self, batch: Transitions, actions: torch.Tensor, log_prob: torch.Tensor, ent_coef: torch.Tensor
    ) -> torch.Tensor:
        """L_π = E[α log π(a|s) - min_i Q_i(s, a)],   a ~ π(s)"""
        return (ent_coef * log_prob - min_q(self.critic(_tensor(batch.obs), actions))).mean()

    def ent_coef_loss(self, log_prob: torch.Tensor) -> torch.Tensor:
        """L_α = -log α · E[log π(a|s) + target entropy]"""
        assert self.log_ent_coef is not None
        return -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()

    # -- the update ------------------------------------------------------------------------------------------------

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        if self._stacked is not None:
            self._stacked.attach()
        super().train(gradient_steps, batch_size)

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
        actions, log_prob = self.actor.action_log_prob(_tensor(batch.obs))
        if self.ent_coef_optimizer is not None and self.log_ent_coef is not None:
            ent_coef = self.log_ent_coef.detach().exp().squeeze(0)
            ent_coef_loss = [descend(self.ent_coef_optimizer, self.ent_coef_loss(log_prob))]
        else:
            ent_coef, ent_coef_loss = self.ent_coef_tensor, []
        critic_loss = descend(self.critic.optimizer, self.critic_loss(batch, ent_coef))
        actor_loss = descend(self.actor.optimizer, self.actor_loss(batch, actions, log_prob, ent_coef))
        if polyak:
            polyak_update(self.critic, self.critic_target, self.tau)
        return torch.stack([ent_coef, actor_loss, critic_loss, *ent_coef_loss])

    # -- state -----------------------------------------------------------------------------------------------------

    def load_state(self, state: State) -> bool:
        return super().load_state(_with_temperature(state))

    def _next_action(self, obs: Obs) -> torch.Tensor:
        if not self.critic_warmup:
            return super()._next_action(obs)
        return self._policy_actions(obs)

    def warm_start(self, state: State) -> None:
        super().warm_start(state)
        if self.critic_warmup and not self.use_sde:
            noise: Any = self.actor.log_std
            noise.weight.data.zero_()
            noise.bias.data.fill_((self.policy_kwargs or {}).get("log_std_init", LOG_STD))
        state = _with_temperature(state)
        if "temperature" in self._attached and "temperature" in state:
            self._attached["temperature"].load_state(state["temperature"])

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        optimizers = super()._optimizers()
        if self.ent_coef_optimizer is not None and self.log_ent_coef is not None:
            optimizers["ent_coef"] = (self.ent_coef_optimizer, {"log_ent_coef": self.log_ent_coef})
        return optimizers

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_stacked", "metric_names"]


class Temperature:
    """Checkpoint component for log α, used if the entropy coefficient α is learnt."""

    def __init__(self, log_ent_coef: torch.Tensor) -> None:
        self.log_ent_coef = log_ent_coef

    def state(self) -> Values:
        return {"log_ent_coef": self.log_ent_coef.detach().cpu().clone()}

    def load_state(self, state: Values) -> None:
        self.log_ent_coef.data.copy_(state["log_ent_coef"])


def _with_temperature(state: State) -> State:
    """Return `state` with log α in its own component; checkpoints before 0.2 have it in "trainer"."""
    if "temperature" in state or "log_ent_coef" not in state.get("trainer", {}):
        return state
    return {**state, "temperature": {"log_ent_coef": state["trainer"]["log_ent_coef"]}}


def _tensor(obs: Obs) -> torch.Tensor:
    """Return `obs` unchanged, for the type checker: SB3 annotates network inputs as tensors but takes dicts too."""
    return cast(torch.Tensor, obs)


ALGORITHM = Algorithm(
    "SAC", SAC, sb3.SAC, SACPolicy,
    own={"random_shift": int, "n_sampled_goal": int, "random_share": float, "critic_warmup": int},
    **RECORD,
)  # fmt: skip
