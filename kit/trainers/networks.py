"""What a rollout and an update ask of an actor and a critic, by autograd. `kit.trainers.fast` has a quicker one for the
networks that SB3 makes by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy

from kit.envs.obs import Obs
from kit.trainers.flat import flatten
from kit.trainers.rollout import Batch, Rollout


@dataclass
class Evaluated:
    """What the networks make of a minibatch: rows (B,), (B,) and a scalar."""

    log_prob: torch.Tensor
    values: torch.Tensor
    entropy: torch.Tensor


Slopes = Callable[..., tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]]
"""(evaluated, batch, *numbers) -> the loss's derivatives by each row's log-probability and value (B,), and whatever
else is to be known. The loss also holds -`ent_coef` times the entropy. A function of tensors alone."""


class Networks:
    """An SB3 actor-critic policy and its optimizer."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.policy = policy
        self.optimizer: Any = flatten(policy.optimizer)

    def attach(self) -> None:
        """Before a rollout and before an update: take note of what others did to weights and learning rate."""
        self.optimizer.attach()

    # -- rollouts --------------------------------------------------------------------------------------------------

    def begin(self, rollout: Rollout) -> None:
        """Before the first step of `rollout`; the weights stand still until `finish`."""
        self.attach()

    def sample(self, rollout: Rollout, step: int, obs: Obs) -> torch.Tensor:
        """Actions (n, act) for `obs` as the policy sees them, stored in `rollout`; so are, here or in `finish`, their
        values and log-probabilities."""
        actions, values, log_probs = self.policy(obs)
        rollout.values[step] = values.flatten()
        rollout.log_probs[step] = log_probs
        rollout.act(step, actions)
        return actions

    def finish(self, rollout: Rollout) -> None:
        """After its last step."""

    def with_memory(self, obs: Obs) -> Obs:
        """`obs`, which follow the step just taken, with whatever else their values depend on."""
        return obs

    def values(self, known: Obs) -> torch.Tensor:
        """(n,) values of observations as the policy sees them, from what `with_memory` gave."""
        return self.policy.predict_values(known).flatten()  # type: ignore[arg-type]

    # -- updates ---------------------------------------------------------------------------------------------------

    def gradient(self, slopes: Slopes, batch: Batch, ent_coef: float, *numbers: float) -> tuple[torch.Tensor, ...]:
        """Put the gradient of a loss over `batch` where the optimizer looks for it; what `slopes` wanted to know."""
        discrete = isinstance(self.policy.action_space, spaces.Discrete)
        actions = batch.actions.long().flatten() if discrete else batch.actions
        values, log_prob, entropy = self._evaluate(batch.assembled(), actions)
        values, mean_entropy = values.flatten(), -log_prob.mean() if entropy is None else entropy.mean()
        with torch.no_grad():
            evaluated = Evaluated(log_prob.detach(), values.detach(), mean_entropy.detach())
            by_log_prob, by_value, known = slopes(evaluated, batch, *numbers)
        self.optimizer.zero_grad()
        outputs, grads = [log_prob, values], [by_log_prob, by_value]
        if ent_coef:
            outputs, grads = [*outputs, mean_entropy], [*grads, torch.full_like(mean_entropy, -ent_coef)]
        torch.autograd.backward(outputs, grads)
        return known

    def _evaluate(self, batch: Batch, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Values, log-probabilities of `actions` and, where it has a formula, entropy, of each row."""
        return self.policy.evaluate_actions(batch.obs, actions)

    def step(self, max_norm: float) -> None:
        """One step of the optimizer along the gradient, clipped."""
        self.optimizer.step(max_norm)
