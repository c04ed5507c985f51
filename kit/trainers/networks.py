"""Actor-critic networks for rollouts and updates, implemented with autograd for any SB3 policy.

`kit.trainers.fast` has a faster implementation of the same interface for SB3's default networks.
"""

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
    """Log-probabilities, values and entropy of a minibatch under the current weights."""

    log_prob: torch.Tensor
    """log π(a|s), (B,)."""
    values: torch.Tensor
    """V(s), (B,)."""
    entropy: torch.Tensor
    """Mean entropy of π(.|s), a scalar."""


Loss = Callable[..., torch.Tensor]
"""(evaluated, batch, *numbers) -> scalar loss. It must not synchronise with the device. `numbers`, such as the clip
range, are floats, or scalar tensors when the update is captured as a CUDA graph."""


class Networks:
    """An SB3 actor-critic policy with its optimizer."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.policy = policy
        self.optimizer: Any = flatten(policy.optimizer)

    def attach(self) -> None:
        """Take over weights and a learning rate that other code has set. Called before each rollout and update."""
        self.optimizer.attach()

    # -- rollouts --------------------------------------------------------------------------------------------------

    def begin(self, rollout: Rollout) -> None:
        """Prepare for collecting `rollout`. The caller must not change the weights before `finish`."""
        self.attach()

    def sample(self, rollout: Rollout, step: int, obs: Obs) -> torch.Tensor:
        """Sample actions (n, act) for policy inputs `obs`, store them in `rollout` and return them.

        Values and log-probabilities are stored too: in this call, or for all steps at once in `finish`.
        """
        actions, values, log_probs = self.policy(obs)
        rollout.values[step] = values.flatten()
        rollout.log_probs[step] = log_probs
        rollout.store_actions(step, actions)
        return actions

    def finish(self, rollout: Rollout) -> None:
        """Store values and log-probabilities that `sample` has not stored. Called after the rollout's last step."""

    def with_hidden_state(self, obs: Obs) -> Obs:
        """Return the input of `values` for `obs`, the observations after the current step.

        A recurrent policy adds its hidden state; others return `obs`.
        """
        return obs

    def values(self, inputs: Obs) -> torch.Tensor:
        """V(s) (n,) for `inputs` from `with_hidden_state`."""
        return self.policy.predict_values(inputs).flatten()  # type: ignore[arg-type]

    # -- updates ---------------------------------------------------------------------------------------------------

    def gradient(self, loss: Loss, batch: Batch, *numbers: float) -> Evaluated:
        """Compute the gradient of `loss` over `batch` w.r.t. the weights; return the evaluated minibatch, detached."""
        discrete = isinstance(self.policy.action_space, spaces.Discrete)
        actions = batch.actions.long().flatten() if discrete else batch.actions
        values, log_prob, entropy = self._evaluate(batch.materialized(), actions)
        entropy = -log_prob.mean() if entropy is None else entropy.mean()
        evaluated = Evaluated(log_prob, values.flatten(), entropy)
        self.optimizer.zero_grad()
        loss(evaluated, batch, *numbers).backward()
        return Evaluated(*(output.detach() for output in vars(evaluated).values()))

    def _evaluate(self, batch: Batch, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return V(s), log π(a|s) and entropy of each row. The entropy is None if it has no closed form."""
        return self.policy.evaluate_actions(batch.obs, actions)

    def step(self, max_norm: float) -> None:
        """Clip the gradient to `max_norm` and take one optimizer step."""
        self.optimizer.step(max_norm)
