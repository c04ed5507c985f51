"""Actor-critic networks: actions and values in a rollout, the gradient of a loss in an update, by autograd.
`kit.trainers.fast` has a quicker version of the networks that SB3 makes by default."""

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
    """A minibatch under the present weights."""

    log_prob: torch.Tensor
    """log π(a|s), (B,)."""
    values: torch.Tensor
    """V(s), (B,)."""
    entropy: torch.Tensor
    """Mean entropy of π(.|s), a scalar."""


Loss = Callable[..., torch.Tensor]
"""(evaluated, batch, *numbers) -> the scalar to minimise: a function of tensors that never waits for the device. Where
an update is recorded as a CUDA graph, `numbers` are scalar tensors."""


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

    def with_hidden_state(self, obs: Obs) -> Obs:
        """`obs`, which follow the step just taken, with whatever else their values depend on."""
        return obs

    def values(self, known: Obs) -> torch.Tensor:
        """(n,) values of observations as the policy sees them, from what `with_hidden_state` gave."""
        return self.policy.predict_values(known).flatten()  # type: ignore[arg-type]

    # -- updates ---------------------------------------------------------------------------------------------------

    def gradient(self, loss: Loss, batch: Batch, *numbers: float) -> Evaluated:
        """Put the gradient of `loss` over `batch` where the optimizer reads it; returns the loss's input, detached."""
        discrete = isinstance(self.policy.action_space, spaces.Discrete)
        actions = batch.actions.long().flatten() if discrete else batch.actions
        values, log_prob, entropy = self._evaluate(batch.assembled(), actions)
        entropy = -log_prob.mean() if entropy is None else entropy.mean()
        evaluated = Evaluated(log_prob, values.flatten(), entropy)
        self.optimizer.zero_grad()
        loss(evaluated, batch, *numbers).backward()
        return Evaluated(*(output.detach() for output in vars(evaluated).values()))

    def _evaluate(self, batch: Batch, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Values, log-probabilities of `actions` and, where it has a formula, entropy, of each row."""
        return self.policy.evaluate_actions(batch.obs, actions)

    def step(self, max_norm: float) -> None:
        """One step of the optimizer along the gradient, clipped."""
        self.optimizer.step(max_norm)
