"""Action distributions: sampling, log-probability and entropy, with hand-written gradients."""

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
    """Action distribution of a policy. `backward` uses intermediate results of the last `evaluate` call."""

    parameters: ClassVar[tuple[str, ...]] = ()
    """Names of the distribution's own policy parameters, such as log_std."""

    def bind(self, vector: FlatVector) -> None:
        """Look up `parameters` and their gradients in `vector`."""
        return None

    @abstractmethod
    def draw_noise(self, rollout: Rollout) -> None:
        """Draw the noise for all steps of a rollout at once, with the standard deviations of this moment."""

    @abstractmethod
    def noise(self, step: int) -> Tensors:
        """Return the `noise` arguments of `sample` for `step`."""

    @abstractmethod
    def sample(self, out: torch.Tensor, *noise: torch.Tensor) -> Tensors:
        """Return sampled actions for the network outputs `out` (n, outputs).

        Also returns log-probabilities (n,), unless `log_probs` computes them for the whole rollout.
        """

    def log_probs(self) -> torch.Tensor | None:
        """Return the log-probabilities (T · n,) of all samples of the rollout; None if `sample` returned them."""
        return None

    @abstractmethod
    def evaluate(self, out: torch.Tensor, actions: torch.Tensor) -> Tensors:
        """Return log π (B,) of `actions` for the network outputs `out` (B, outputs), and the mean entropy, a scalar."""

    @abstractmethod
    def backward(self, log_prob_grad: torch.Tensor, entropy_grad: torch.Tensor | float, grad: torch.Tensor) -> None:
        """Write the loss's gradient w.r.t. `out` into `grad` (B, outputs), and w.r.t. `parameters` into the vector.

        `log_prob_grad` (B,) and `entropy_grad` are the loss's gradients w.r.t. the results of `evaluate`. Call this
        once per `evaluate`, since it overwrites intermediate results.
        """


class Gaussian(Actions):
    """Diagonal Gaussian with a state-independent standard deviation; the network outputs are the means."""

    parameters = ("log_std",)

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self._log_std = policy.log_std
        width = self._width = len(policy.log_std)
        # constants are tensors, because torch would convert a Python number to a tensor at every use
        self._half_actions = policy.log_std.new_tensor(0.5 * width)
        self._unit_entropy = policy.log_std.new_tensor(0.5 * width * (1.0 + LOG_2PI))
        self._minus_half = policy.log_std.new_full((width,), -0.5)

    def bind(self, vector: FlatVector) -> None:
        self.log_std, self._log_std_grad = vector.span(self._log_std, self._width)

    def draw_noise(self, rollout: Rollout) -> None:
        shape = (rollout.n_steps, rollout.n_envs, self._width)
        self._noise, self._std = torch.randn(shape, device=self.log_std.device), self.log_std.exp()

    def noise(self, step: int) -> Tensors:
        return self._std, self._noise[step]

    def sample(self, out: torch.Tensor, *noise: torch.Tensor) -> Tensors:
        return (torch.addcmul(out, *noise),)

    def log_probs(self) -> torch.Tensor:
        return self._log_prob(self._noise.square().flatten(0, 1), self._entropy())

    def evaluate(self, out: torch.Tensor, actions: torch.Tensor) -> Tensors:
        self._inverse_std = torch.exp(-self.log_std)
        self._z = (actions - out).mul_(self._inverse_std)
        self._zz, entropy = self._z * self._z, self._entropy()
        return self._log_prob(self._zz, entropy), entropy

    def _log_prob(self, zz: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """Return log π = -½ Σ z² - Σ log σ - ½ act log 2π (B,) of the actions mean + σ z; `zz` = z² (B, act)."""
        return torch.addmv(self._half_actions - entropy, zz, self._minus_half)

    def _entropy(self) -> torch.Tensor:
        """Return H = Σ (log σ + ½ + ½ log 2π)."""
        return self.log_std.sum().add_(self._unit_entropy)

    def backward(self, log_prob_grad: torch.Tensor, entropy_grad: torch.Tensor | float, grad: torch.Tensor) -> None:
        # ∂ log π / ∂ log σ = z² - 1, ∂ log π / ∂ mean = z / σ, ∂ H / ∂ log σ = 1
        torch.mv(self._zz.t(), log_prob_grad, out=self._log_std_grad)
        self._log_std_grad.sub_(log_prob_grad.sum())
        if isinstance(entropy_grad, torch.Tensor) or entropy_grad:
            self._log_std_grad.add_(entropy_grad)
        torch.mul(self._z.mul_(self._inverse_std), log_prob_grad.unsqueeze(1), out=grad)


ABSENT_LOGIT = -1e9
"""Logit of padding categories, which gives them probability 0."""


class Categorical(Actions):
    """One categorical distribution, or G independent ones; the network outputs are the logits.

    K is the largest number of categories; distributions with fewer categories are padded to K.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        space, device = policy.action_space, policy.device
        counts = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()  # type: ignore[attr-defined]
        self._shape, self._groups, self._categories = space.shape or (), len(counts), max(counts)
        self._last = torch.tensor(counts, device=device) - 1
        valid = torch.arange(self._categories, device=device) <= self._last.unsqueeze(1)
        self._columns = None if bool(valid.all()) else valid.flatten().nonzero().flatten()

    def draw_noise(self, rollout: Rollout) -> None:
        self._noise = torch.rand(rollout.n_steps, rollout.n_envs, self._groups, 1, device=self._last.device)

    def noise(self, step: int) -> Tensors:
        return (self._noise[step],)

    def sample(self, out: torch.Tensor, *noise: torch.Tensor) -> Tensors:
        log_p = self._log_p(out)
        cumulative = log_p.exp().cumsum_(-1)  # inverse CDF: the first category with cumulative p >= the noise
        actions = torch.minimum((cumulative < noise[0]).sum(-1), self._last)
        return actions.view(-1, *self._shape), self._log_prob(log_p, actions)

    def evaluate(self, out: torch.Tensor, actions: torch.Tensor) -> Tensors:
        self._actions = actions.long().view(-1, self._groups)
        self._logs = self._log_p(out)
        self._p = self._logs.exp()
        entropy = torch.dot(self._p.flatten(), self._logs.flatten()).div_(-len(out))  # H = -Σ p log p
        return self._log_prob(self._logs, self._actions), entropy

    def backward(self, log_prob_grad: torch.Tensor, entropy_grad: torch.Tensor | float, grad: torch.Tensor) -> None:
        # ∂ log π / ∂ logit = [chosen] - p, ∂ H / ∂ logit = -p (log p + H)
        upstream = log_prob_grad.view(-1, 1, 1)
        logit_grad = self._p * -upstream
        logit_grad.scatter_add_(2, self._actions.unsqueeze(2), upstream.expand(-1, self._groups, 1))
        if isinstance(entropy_grad, torch.Tensor) or entropy_grad:
            weighted = self._p * self._logs
            weighted.addcmul_(self._p, weighted.sum(2, keepdim=True), value=-1)
            logit_grad.sub_(weighted.mul_(entropy_grad / len(grad)))
        flat = logit_grad.flatten(1)
        grad.copy_(flat if self._columns is None else flat.index_select(1, self._columns))

    def _log_p(self, out: torch.Tensor) -> torch.Tensor:
        """Return log p (B, G, K) from the logits `out` (B, outputs)."""
        if self._columns is not None:
            padded = out.new_full((len(out), self._groups * self._categories), ABSENT_LOGIT)
            out = padded.index_copy_(1, self._columns, out)
        logits = out.reshape(-1, self._groups, self._categories)
        logits = logits - logits.amax(-1, keepdim=True)  # torch's log_softmax takes five times as long for 9 numbers
        return logits.sub_(logits.exp().sum(-1, keepdim=True).log_())

    def _log_prob(self, log_p: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return log π (B,) of `actions` (B, G)."""
        return log_p.gather(2, actions.unsqueeze(2)).sum((1, 2))


KINDS: dict[type[Distribution], type[Gaussian] | type[Categorical]] = {
    DiagGaussianDistribution: Gaussian,
    CategoricalDistribution: Categorical,
    MultiCategoricalDistribution: Categorical,
}
