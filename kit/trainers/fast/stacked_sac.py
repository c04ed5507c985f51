"""SB3's default SAC networks as stacked matrices, with every gradient written out: the fast path of SAC.

What bounds it: the products themselves. With 256-256 networks and batches of 256 a gradient step of SB3 is 20.6
products of 256 × 256 × 256 (33 Mflop each); this one needs 17, since the actor's loss asks nothing of the critics'
weights, and each row's gradient only of the critic that gave the smaller value. On one core the products take over
80 % of the time; the rest (three optimizers, averaging the targets, noise) is a sixth of what it was.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, SACPolicy
from torch import nn

from kit.trainers.fast.perceptrons import Net, Perceptrons, activation, layout, linears
from kit.trainers.fast.stacked import plain_numbers
from kit.trainers.flat import FlatOptimizer, FlatVector, can_flatten
from kit.trainers.recorded import Recorded, Tensors
from kit.trainers.replay import Transitions

SQUASH_EPSILON = 1e-6
"""SB3's, inside log(1 - a² + ε)."""


def can_stack(model: SAC) -> bool:
    """Whether `StackedSAC` can do `model`'s gradient steps."""
    policy = model.policy
    optimizers = [model.actor.optimizer, model.critic.optimizer]
    if model.ent_coef_optimizer is not None:
        optimizers.append(model.ent_coef_optimizer)
    if type(policy) is not SACPolicy or model.use_sde or not all(map(can_flatten, optimizers)):
        return False
    if policy.features_extractor_class is not FlattenExtractor or policy.share_features_extractor:
        return False
    nets = [model.actor.latent_pi, *model.critic.q_networks]
    return activation(*nets) is not None and plain_numbers(policy.observation_space)


class StackedSAC:
    """`model`'s weights as stacked matrices; its modules go on working on the same memory."""

    def __init__(self, model: SAC) -> None:
        self._model = model
        mean, log_std = cast(nn.Linear, model.actor.mu), cast(nn.Linear, model.actor.log_std)
        kind = activation(model.actor.latent_pi)
        assert kind is not None
        actor: list[Net] = [[*([linear] for linear in linears(model.actor.latent_pi)), [mean, log_std]]]
        critics: list[Net] = [[[linear] for linear in linears(net)] for net in model.critic.q_networks]
        targets: list[Net] = [[[linear] for linear in linears(net)] for net in model.critic_target.q_networks]
        self.actor_optimizer = FlatOptimizer(model.actor.optimizer, layout(actor))
        self.critic_optimizer = FlatOptimizer(model.critic.optimizer, layout(critics))
        self.temperature = None if model.ent_coef_optimizer is None else FlatOptimizer(model.ent_coef_optimizer)
        self._target_vector = FlatVector(layout(targets))
        self._actor = Perceptrons(self.actor_optimizer, actor, kind)
        self._critics = Perceptrons(self.critic_optimizer, critics, kind)
        self._targets = Perceptrons(self._target_vector, targets, kind)
        device = self._target_vector.data.device
        self._numbers = torch.arange(self._critics.k, device=device).unsqueeze(1)
        self._on_cpu = device.type == "cpu"
        self._recorded = self.record() if device.type == "cuda" else None

    def record(self) -> Recorded:
        """The gradient step as a CUDA graph."""
        optimizers = [self.actor_optimizer, self.critic_optimizer, self.temperature]
        changes = [tensor for optimizer in optimizers if optimizer is not None for tensor in optimizer.changes]
        return Recorded(self._step, self._target_vector.data.device, changes)

    def attach(self) -> None:
        """Before a run of steps: take the memory back from whatever has replaced it."""
        for vector in (self.actor_optimizer, self.critic_optimizer, self._target_vector, self.temperature):
            if vector is not None:
                vector.attach()

    @torch.no_grad()
    def step(self, batch: Transitions, polyak: bool) -> torch.Tensor:
        """One gradient step of everything, as `SAC._gradient_step`."""
        assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
        rows, num_actions = batch.actions.shape
        noise = torch.randn(2 * rows, num_actions, device=batch.actions.device)
        given = (batch.obs, batch.actions, batch.rewards, batch.next_obs, batch.terminated, noise)
        (figures,) = self._step(*given) if self._recorded is None else self._recorded(*given)
        if polyak:  # θ' ← θ' + τ (θ - θ')
            self._target_vector.data.lerp_(self.critic_optimizer.data, self._model.tau)
        return figures

    def _step(
        self, obs: torch.Tensor, did: torch.Tensor, rewards: torch.Tensor, next_obs: torch.Tensor,
        terminated: torch.Tensor, noise: torch.Tensor,
    ) -> Tensors:  # fmt: skip
        """All but the targets' move, as a function of tensors: a batch of B and standard normal `noise` (2 B, act)."""
        obs, next_obs = obs.flatten(1), next_obs.flatten(1)
        (rows, width), num_actions = obs.shape, did.shape[1]

        # a, a' ~ π(s), π(s'): a = tanh(μ + σ ε)
        out, seen = self._actor.forward(torch.cat([obs, next_obs]))
        mean, raw_log_std = out[0].split(num_actions, 1)
        log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        spread = log_std.exp().mul_(noise)
        actions = torch.tanh(mean + spread)
        open_ = (1 - actions.square()).clamp_(min=0.0)  # da / du
        # log π = Σ (-½ ε² - log σ - ½ log 2π - log(1 - a² + ε₀))
        log_prob = (noise.square().mul_(-0.5).sub_(log_std).sub_((open_ + SQUASH_EPSILON).log_())).sum(1)
        log_prob.sub_(0.5 * num_actions * math.log(2 * math.pi))
        alpha, alpha_loss = self._move_temperature(log_prob[:rows])

        # y = r + γ (1 - d) (min_i Q'_i(s', a') - α log π(a' | s'))
        next_q = self._targets.forward(torch.cat([next_obs, actions[rows:]], 1))[0][:, :, 0].amin(0)
        next_q.sub_(alpha * log_prob[rows:])
        target = torch.addcmul(rewards, next_q, (~terminated).float(), value=self._model.gamma)

        # L_Q = ½ Σ_i E[(Q_i(s, a) - y)²]
        q, seen_q = self._critics.forward(torch.cat([obs, did], 1))
        error = q[:, :, 0] - target
        self._critics.backward((error / rows).unsqueeze(2), seen_q)
        self.critic_optimizer.apply()

        # L_π = E[α log π(a | s) - min_i Q_i(s, a)], with the critics as they are now
        q_pi, seen_q = self._critics.forward(torch.cat([obs, actions[:rows]], 1))
        smallest, which = q_pi[:, :, 0].min(0)
        action_grad = self._action_grad(which, seen_q, slice(width, width + num_actions))
        # ∂ log π / ∂ u = 2 a (1 - a²) / (1 - a² + ε₀), ∂ log π / ∂ log σ = that · σ ε - 1
        here, slope = actions[:rows], open_[:rows]
        mean_grad = (2 * alpha / rows) * here * slope / (slope + SQUASH_EPSILON) + action_grad * slope
        inside = (raw_log_std[:rows] >= LOG_STD_MIN) & (raw_log_std[:rows] <= LOG_STD_MAX)
        log_std_grad = (mean_grad * spread[:rows] - alpha / rows) * inside
        head_grad = torch.cat([mean_grad, log_std_grad], 1).unsqueeze(0)
        self._actor.backward(head_grad, [layer[:, :rows] for layer in seen])
        self.actor_optimizer.apply()

        actor_loss = (alpha * log_prob[:rows] - smallest).mean()
        critic_loss = 0.5 * error.square().sum() / rows
        return (torch.stack([alpha, actor_loss, critic_loss, alpha_loss]),)

    def _action_grad(self, which: torch.Tensor, seen: list[torch.Tensor], columns: slice) -> torch.Tensor:
        """The gradient of -E[min_i Q_i(s, a)] by the actions (B, act), which are `columns` of the critics' input, given
        `which` critic's value is the least (B,) and what they have `seen`."""
        rows = len(which)
        if not self._on_cpu:  # the shorter way below asks which rows those are, and a GPU is not asked
            return self._critics.input_grads((which == self._numbers).unsqueeze(2) / -rows, seen, columns).sum(0)
        grad = seen[0].new_empty(rows, columns.stop - columns.start)
        for net in range(self._critics.k):
            mine = (which == net).nonzero()[:, 0]
            down = grad.new_full((len(mine), 1), -1 / rows)
            grad.index_copy_(0, mine, self._critics.input_grad(net, down, seen, mine, columns))
        return grad

    def _move_temperature(self, log_prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """α for this step, and its loss -log α · E[log π + target]; moves it if it is learnt."""
        model = self._model
        if self.temperature is None or model.log_ent_coef is None:
            return model.ent_coef_tensor, torch.zeros_like(model.ent_coef_tensor)
        alpha = self.temperature.data.exp()[0]
        slack = log_prob.mean() + float(model.target_entropy)
        loss = -self.temperature.data[0] * slack
        self.temperature.grad.copy_(-slack)
        self.temperature.apply()
        return alpha, loss
