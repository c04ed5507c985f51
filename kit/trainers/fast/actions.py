"""What an actor's outputs say of actions: drawing them, their log-probability, its gradient by hand."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy

from kit.trainers.flat import FlatVector
from kit.trainers.recorded import Tensors
from kit.trainers.rollout import Rollout

LOG_2PI = math.log(2 * math.pi)


class Actions(ABC):
    """Of `policy`. In an update: `evaluate`, then `backward` on what that has kept."""

    parameters: ClassVar[tuple[str, ...]] = ()
    """Names of the policy's parameters that are no network's; they lie at the end of `vector`."""

    def bind(self, vector: FlatVector) -> None:
        """Find them there."""
        return None

    @abstractmethod
    def begin(self, rollout: Rollout) -> None:
        """The policy stands still, so all of a rollout's noise can be drawn at once."""

    @abstractmethod
    def given(self, step: int) -> Tensors:
        """What `sample` needs besides outputs at `step`."""

    @abstractmethod
    def sample(self, out: torch.Tensor, *given: torch.Tensor) -> Tensors:
        """Actions for `out` (n, outputs), and their log-probabilities (n,) unless they follow from the noise alone."""

    def log_probs(self) -> torch.Tensor | None:
        """Of all that was sampled (T · n,), where `sample` did not say."""
        return None

    @abstractmethod
    def evaluate(self, out: torch.Tensor, actions: torch.Tensor) -> Tensors:
        """log π (B,) of `actions` for `out` (B, outputs), and the mean entropy, a scalar."""

    @abstractmethod
    def backward(self, log_prob_grad: torch.Tensor, entropy_grad: torch.Tensor | float, grad: torch.Tensor) -> None:
        """Fill `grad` (B, outputs), and that of `parameters`, given the loss's gradients by each row's log-probability
        (B,) and by the mean entropy. May be called once after `evaluate`."""


class Gaussian(Actions):
    """Means, and one standard deviation for all rows."""

    parameters = ("log_std",)

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self._log_std = policy.log_std
        width = self._width = len(policy.log_std)
        # Constants as tensors: a number in their place would be made into one at every use.
        self._half_actions = policy.log_std.new_tensor(0.5 * width)
        self._unit_entropy = policy.log_std.new_tensor(0.5 * width * (1.0 + LOG_2PI))
        self._minus_half = policy.log_std.new_full((width,), -0.5)

    def bind(self, vector: FlatVector) -> None:
        self.log_std, self._log_std_grad = vector.span(self._log_std, self._width)

    def begin(self, rollout: Rollout) -> None:
        shape = (rollout.n_steps, rollout.n_envs, self._width)
        self._noise, self._std = torch.randn(shape, device=self.log_std.device), self.log_std.exp()

    def given(self, step: int) -> Tensors:
        return self._std, self._noise[step]

    def sample(self, out: torch.Tensor, *given: torch.Tensor) -> Tensors:
        return (torch.addcmul(out, *given),)

    def log_probs(self) -> torch.Tensor:
        return self._log_prob(self._noise.square().flatten(0, 1), self._entropy())

    def evaluate(self, out: torch.Tensor, actions: torch.Tensor) -> Tensors:
        self._inverse_std = torch.exp(-self.log_std)
        self._z = (actions - out).mul_(self._inverse_std)
        self._zz, entropy = self._z * self._z, self._entropy()
        return self._log_prob(self._zz, entropy), entropy

    def _log_prob(self, zz: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """Of actions mean + std · z, given `zz` = z² (B, act): -½ Σ z² - Σ log σ - ½ act log 2π."""
        return torch.addmv(self._half_actions - entropy, zz, self._minus_half)

    def _entropy(self) -> torch.Tensor:
        """Σ (log σ + ½ + ½ log 2π)."""
        return self.log_std.sum().add_(self._unit_entropy)

    def backward(self, log_prob_grad: torch.Tensor, entropy_grad: torch.Tensor | float, grad: torch.Tensor) -> None:
        # ∂ log π / ∂ log σ = z² - 1, ∂ log π / ∂ mean = z / σ, ∂ H / ∂ log σ = 1
        torch.mv(self._zz.t(), log_prob_grad, out=self._log_std_grad)
        self._log_std_grad.sub_(log_prob_grad.sum())
        if isinstance(entropy_grad, torch.Tensor) or entropy_grad:
            self._log_std_grad.add_(entropy_grad)
        torch.mul(self._z.mul_(self._inverse_std), log_prob_grad.unsqueeze(1), out=grad)


NOWHERE = -1e9
"""The logit of a choice that is not there."""


class Categorical(Actions):
    """Logits of one choice or of several (G), independent of one another. Where these have different numbers of
    possibilities, all are given the largest number K."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        space, device = policy.action_space, policy.device
        counts = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()  # type: ignore[attr-defined]
        self._shape, self._choices, self._most = space.shape or (), len(counts), max(counts)
        self._last = torch.tensor(counts, device=device) - 1
        there = torch.arange(self._most, device=device) <= self._last.unsqueeze(1)
        self._columns = None if bool(there.all()) else there.flatten().nonzero().flatten()

    def begin(self, rollout: Rollout) -> None:
        self._noise = torch.rand(rollout.n_steps, rollout.n_envs, self._choices, 1, device=self._last.device)

    def given(self, step: int) -> Tensors:
        return (self._noise[step],)

    def sample(self, out: torch.Tensor, *given: torch.Tensor) -> Tensors:
        log_p = self._log_p(out)
        below = log_p.exp().cumsum_(-1)  # the first possibility whose sum reaches the uniform number
        actions = torch.minimum((below < given[0]).sum(-1), self._last)
        return actions.view(-1, *self._shape), self._of(log_p, actions)

    def evaluate(self, out: torch.Tensor, actions: torch.Tensor) -> Tensors:
        self._actions = actions.long().view(-1, self._choices)
        self._logs = self._log_p(out)
        self._p = self._logs.exp()
        entropy = torch.dot(self._p.flatten(), self._logs.flatten()).div_(-len(out))  # H = -Σ p log p
        return self._of(self._logs, self._actions), entropy

    def backward(self, log_prob_grad: torch.Tensor, entropy_grad: torch.Tensor | float, grad: torch.Tensor) -> None:
        # ∂ log π / ∂ logit = [chosen] - p, ∂ H / ∂ logit = -p (log p + H)
        down = log_prob_grad.view(-1, 1, 1)
        found = self._p * -down
        found.scatter_add_(2, self._actions.unsqueeze(2), down.expand(-1, self._choices, 1))
        if isinstance(entropy_grad, torch.Tensor) or entropy_grad:
            weighted = self._p * self._logs
            weighted.addcmul_(self._p, weighted.sum(2, keepdim=True), value=-1)
            found.sub_(weighted.mul_(entropy_grad / len(grad)))
        flat = found.flatten(1)
        grad.copy_(flat if self._columns is None else flat.index_select(1, self._columns))

    def _log_p(self, out: torch.Tensor) -> torch.Tensor:
        """(B, G, K) of logits (B, outputs)."""
        if self._columns is not None:
            wide = out.new_full((len(out), self._choices * self._most), NOWHERE)
            out = wide.index_copy_(1, self._columns, out)
        logits = out.reshape(-1, self._choices, self._most)
        logits = logits - logits.amax(-1, keepdim=True)  # torch's log_softmax takes five times as long for nine numbers
        return logits.sub_(logits.exp().sum(-1, keepdim=True).log_())

    def _of(self, log_p: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return log_p.gather(2, actions.unsqueeze(2)).sum((1, 2))


KINDS: dict[type[Distribution], type[Gaussian] | type[Categorical]] = {
    DiagGaussianDistribution: Gaussian,
    CategoricalDistribution: Categorical,
    MultiCategoricalDistribution: Categorical,
}
