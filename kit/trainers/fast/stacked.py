"""SB3's default actor-critic as stacked matrices, with its gradient written out: the fast path of PPO and A2C.

Actor and critic are two perceptrons of the same shape on the same input. The loss is simple enough to differentiate by
hand, and gradients land in the optimizer's one vector. tests/bench/README.md says where the time of a minibatch goes.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor

from kit.envs.obs import Obs
from kit.trainers.fast.perceptrons import Perceptrons, activation, layout, linears, widths
from kit.trainers.flat import FlatOptimizer, can_flatten
from kit.trainers.networks import Evaluated, Networks, Slopes
from kit.trainers.recorded import Recorded, Tensors
from kit.trainers.rollout import Batch, Rollout

LOG_2PI = math.log(2 * math.pi)
VALUE_ROWS = 65_536
"""Observations valued at once after a rollout: bounds the memory of hidden layers."""


def plain_numbers(space: spaces.Space) -> bool:
    """Whether networks see the numbers of `space` as they are: neither pictures nor whole numbers."""
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and not is_image_space(space)


def can_stack(policy: ActorCriticPolicy) -> bool:
    """Whether `StackedActorCritic` can take `policy`'s place."""
    if type(policy) is not ActorCriticPolicy or policy.use_sde or not can_flatten(policy.optimizer):
        return False
    if type(policy.features_extractor) is not FlattenExtractor or not policy.share_features_extractor:
        return False
    if type(policy.action_dist) is not DiagGaussianDistribution or not plain_numbers(policy.observation_space):
        return False
    actor, critic = policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net
    return activation(actor, critic) is not None and widths(actor) == widths(critic)


class StackedActorCritic(Networks):
    """`policy`'s weights as stacked matrices; `policy` itself goes on working on the same memory."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.policy = policy
        actor, critic = policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net
        mean, value, log_std, kind = policy.action_net, policy.value_net, policy.log_std, activation(actor)
        assert isinstance(mean, torch.nn.Linear) and isinstance(log_std, torch.nn.Parameter) and kind is not None
        nets = [[[linear] for linear in (*linears(actor), mean)], [[linear] for linear in (*linears(critic), value)]]
        self.num_actions = mean.out_features
        # log_std last: 29 numbers before the weights would leave no weight where tensor cores like it, at 16 bytes
        self.optimizer = FlatOptimizer(policy.optimizer, [*layout(nets), log_std])
        self.log_std, self._log_std_grad = self.optimizer.span(log_std, self.num_actions)
        self._nets = Perceptrons(self.optimizer, nets, kind)
        self._grads: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}  # whole, actor's, critic's
        # Constants as tensors: a number in their place would be made into one at every use.
        self._half_actions = self.log_std.new_tensor(0.5 * self.num_actions)
        self._unit_entropy = self.log_std.new_tensor(0.5 * self.num_actions * (1.0 + LOG_2PI))
        self._minus_half = self.log_std.new_full((self.num_actions,), -0.5)

        self._recordings: dict[Any, Recorded] = {}
        self._graphs = self.log_std.device.type == "cuda"

    # -- rollouts --------------------------------------------------------------------------------------------------

    def begin(self, rollout: Rollout) -> None:
        """The policy stands still, so all of a rollout's noise can be drawn at once."""
        self.attach()
        shape = (rollout.n_steps, rollout.n_envs, self.num_actions)
        self._noise, self._std = torch.randn(shape, device=self.log_std.device), self.log_std.exp()

    def sample(self, rollout: Rollout, step: int, obs: Obs) -> torch.Tensor:
        given = cast(torch.Tensor, obs), self._std, self._noise[step]
        actions = self._run("act", self._act, *given)[0]
        rollout.act(step, actions)
        return actions

    def finish(self, rollout: Rollout) -> None:
        obs = cast(torch.Tensor, rollout.obs).flatten(0, 1)
        rollout.values = self.values(obs).view(rollout.n_steps, rollout.n_envs)
        log_probs = self.log_prob(self._noise.square().flatten(0, 1), self.entropy())
        rollout.log_probs = log_probs.view(rollout.n_steps, rollout.n_envs)

    def values(self, obs: Obs) -> torch.Tensor:
        pieces = cast(torch.Tensor, obs).split(VALUE_ROWS)
        return torch.cat([self._nets.one(1, piece.flatten(1))[:, 0] for piece in pieces])

    def _act(self, obs: torch.Tensor, std: torch.Tensor, noise: torch.Tensor) -> Tensors:
        """The actor alone, with noise."""
        return (torch.addcmul(self._nets.one(0, obs.flatten(1)), std, noise),)

    # -- updates ---------------------------------------------------------------------------------------------------

    def gradient(self, slopes: Slopes, batch: Batch, ent_coef: float, *numbers: float) -> Tensors:
        width = len(fields(Batch))

        def whole(*given: Any) -> Tensors:
            return self._gradient(slopes, Batch(*given[:width]), ent_coef, *given[width:])

        with torch.no_grad():
            return self._run((getattr(slopes, "__func__", slopes), ent_coef), whole, *vars(batch).values(), *numbers)

    def _gradient(self, slopes: Slopes, batch: Batch, ent_coef: float, *numbers: Any) -> Tensors:
        mean, values = self.forward(cast(torch.Tensor, batch.obs))
        z, zz = self.gaussian(batch.actions, mean)
        entropy = self.entropy()
        by_log_prob, by_value, known = slopes(Evaluated(self.log_prob(zz, entropy), values, entropy), batch, *numbers)
        self.backward(z, zz, by_log_prob, by_value, ent_coef)
        return known

    def _run(self, name: Any, function: Any, *given: Any) -> Tensors:
        """`function` of tensors, on a GPU as a recorded graph. What a gradient finds outlasts the next one."""
        if not self._graphs:
            return tuple(function(*given))
        if name not in self._recordings:
            self._recordings[name] = Recorded(function, self.log_std.device, [self.optimizer.grad])
        found = self._recordings[name](*given)
        return found if name == "act" else tuple(kept.clone() for kept in found)

    # -- by hand ---------------------------------------------------------------------------------------------------

    def log_prob(self, zz: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        """log π (B,) of actions mean + std · z, given `zz` = z² (B, act): -½ Σ z² - Σ log σ - ½ act log 2π."""
        return torch.addmv(self._half_actions - entropy, zz, self._minus_half)

    def entropy(self) -> torch.Tensor:
        """Of the policy, a scalar: Σ (log σ + ½ + ½ log 2π)."""
        return self.log_std.sum().add_(self._unit_entropy)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means (B, act) and values (B,) for `obs` (B, ...); keeps what `backward` needs."""
        out, self._inputs = self._nets.forward(obs.flatten(1))
        return out[0], out[1, :, 0]

    def gaussian(self, actions: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """z = (action - mean) / std (B, act) and its square."""
        self._inverse_std = torch.exp(-self.log_std)
        z = (actions - mean).mul_(self._inverse_std)
        return z, z * z

    def backward(
        self, z: torch.Tensor, zz: torch.Tensor, log_prob_grad: torch.Tensor, value_grad: torch.Tensor, ent_coef: float
    ) -> None:
        """Fill the optimizer's gradient, given the loss's derivatives by each row's log-probability and value (B,);
        the loss also holds -`ent_coef` · entropy. `z` and `zz` come from `gaussian`; `z` is destroyed."""
        # ∂ log π / ∂ log σ = z² - 1, ∂ log π / ∂ mean = z / σ, ∂ H / ∂ log σ = 1
        torch.mv(zz.t(), log_prob_grad, out=self._log_std_grad)
        self._log_std_grad.sub_(log_prob_grad.sum())
        if ent_coef:
            self._log_std_grad.sub_(ent_coef)
        rows = len(log_prob_grad)
        if rows not in self._grads:
            grad = z.new_zeros(2, rows, self.num_actions)
            self._grads[rows] = grad, grad[0], grad[1, :, 0]
        grad, of_mean, of_value = self._grads[rows]
        torch.mul(z.mul_(self._inverse_std), log_prob_grad.unsqueeze(1), out=of_mean)
        of_value.copy_(value_grad)
        self._nets.backward(grad, self._inputs)
