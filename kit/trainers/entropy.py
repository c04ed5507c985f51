"""Base class of maximum-entropy trainers (SAC and CrossQ) with a fixed or learnt entropy coefficient α."""

from __future__ import annotations

from typing import cast

import torch

from kit.envs.obs import Obs
from kit.trainers.off_policy import OffPolicyTrainer, min_q
from kit.trainers.replay import Transitions
from kit.trainers.saving import State, Values


class EntropyTrainer(OffPolicyTrainer):
    """Off-policy trainer with a stochastic policy and an entropy coefficient; base class of SAC and CrossQ.

    :param target_entropy: entropy that a learnt ent_coef aims at; auto: minus the number of action dimensions
    :param use_sde_at_warmup: act by the policy, with the noise of use_sde, before learning starts; else at random
    """

    metric_names: tuple[str, ...] = ("ent_coef", "actor_loss", "critic_loss", "ent_coef_loss")
    log_ent_coef: torch.Tensor | None
    ent_coef_optimizer: torch.optim.Adam | None
    ent_coef_tensor: torch.Tensor
    target_entropy: str | float

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.log_ent_coef is not None:
            self.attach("temperature", Temperature(self.log_ent_coef))
        else:
            self.metric_names = self.metric_names[:-1]
            self._metric_sums = self._metric_sums[:-1]

    def explore(self, obs: Obs) -> torch.Tensor:
        """a ~ π(s)"""
        return self.actor(as_tensor(obs))

    def ent_coef_now(self) -> torch.Tensor:
        """Return α, a scalar without gradient."""
        return self.ent_coef_tensor if self.log_ent_coef is None else self.log_ent_coef.detach().exp().squeeze(0)

    def actor_loss(
        self, batch: Transitions, actions: torch.Tensor, log_prob: torch.Tensor, ent_coef: torch.Tensor
    ) -> torch.Tensor:
        """L_π = E[α log π(a|s) - min_i Q_i(s, a)],   a ~ π(s)"""
        return (ent_coef * log_prob - min_q(self.critic(as_tensor(batch.obs), actions))).mean()

    def ent_coef_loss(self, log_prob: torch.Tensor) -> torch.Tensor:
        """L_α = -log α · E[log π(a|s) + target entropy]"""
        assert self.log_ent_coef is not None
        return -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()

    # -- state -----------------------------------------------------------------------------------------------------

    def load_state(self, state: State) -> bool:
        return super().load_state(_with_temperature(state))

    def warm_start(self, state: State) -> None:
        super().warm_start(state)
        state = _with_temperature(state)
        if "temperature" in self._attached and "temperature" in state:
            self._attached["temperature"].load_state(state["temperature"])

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        optimizers = super()._optimizers()
        if self.ent_coef_optimizer is not None and self.log_ent_coef is not None:
            optimizers["ent_coef"] = (self.ent_coef_optimizer, {"log_ent_coef": self.log_ent_coef})
        return optimizers

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "metric_names"]


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


def as_tensor(obs: Obs) -> torch.Tensor:
    """Return `obs` unchanged, for the type checker: SB3 annotates network inputs as tensors but takes dicts too."""
    return cast(torch.Tensor, obs)
