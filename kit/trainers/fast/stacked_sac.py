"""Fast networks for SAC: SB3's default networks as stacked matrices with hand-written gradients.

On one core matrix products take over 80 % of the time; optimizers, target averaging and noise take a sixth. For 256-256
networks and batches of 256, SB3's gradient step costs as much as 20.6 matrix products of 256 × 256 × 256. The
step in this module computes as much as 17: for the actor's loss it needs no gradient w.r.t. the critics' weights, and
on a CPU each row's gradient passes only through the critic with the smaller value.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, FlattenExtractor
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, MultiInputPolicy, SACPolicy
from torch import nn

from kit.envs.obs import Obs
from kit.trainers.fast.perceptrons import Net, Perceptrons, activation, layout, linears
from kit.trainers.fast.stacked import is_float_box
from kit.trainers.flat import FlatOptimizer, FlatVector, can_flatten
from kit.trainers.recorded import Recorded, Tensors
from kit.trainers.replay import Transitions

SQUASH_EPSILON = 1e-6
"""ε₀ in log(1 - a² + ε₀), as in SB3."""


def can_stack(model: SAC) -> bool:
    """Return whether `StackedSAC` supports `model`."""
    policy = model.policy
    optimizers = [model.actor.optimizer, model.critic.optimizer]
    if model.ent_coef_optimizer is not None:
        optimizers.append(model.ent_coef_optimizer)
    if type(policy) not in (SACPolicy, MultiInputPolicy) or model.use_sde or not all(map(can_flatten, optimizers)):
        return False
    space = policy.observation_space
    inner, extractor = [space], cast(type[BaseFeaturesExtractor], FlattenExtractor)
    if isinstance(space, spaces.Dict):
        inner, extractor = list(space.values()), CombinedExtractor  # it concatenates the entries
    if policy.features_extractor_class is not extractor or policy.share_features_extractor:
        return False
    nets = [model.actor.latent_pi, *model.critic.q_networks]
    return activation(*nets) is not None and all(map(is_float_box, inner))


class StackedSAC:
    """The networks of `model` as stacked matrices. They share memory with its modules, which stay usable."""

    def __init__(self, model: SAC) -> None:
        self._model = model
        space = model.policy.observation_space
        self._entries = tuple(space.spaces) if isinstance(space, spaces.Dict) else ()
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
        self._critic_ids = torch.arange(self._critics.k, device=device).unsqueeze(1)
        self._on_cpu = device.type == "cpu"
        self._recorded = self.record() if device.type == "cuda" else None
        # γ and the target entropy, which are constants in the recorded CUDA graph
        self._constants = model.gamma, model.target_entropy

    def _vector(self, obs: Obs) -> torch.Tensor:
        """Return `obs` (B, ...) as vectors (B, width); entries of a dict are concatenated as by `CombinedExtractor`."""
        if isinstance(obs, torch.Tensor):
            return obs.flatten(1)
        return torch.cat([cast(torch.Tensor, obs[name]).flatten(1) for name in self._entries], dim=1)

    def record(self) -> Recorded:
        """Record the update as a CUDA graph."""
        optimizers = [self.actor_optimizer, self.critic_optimizer, self.temperature]
        changes = [tensor for optimizer in optimizers if optimizer is not None for tensor in optimizer.changes]
        return Recorded(self._step, self._target_vector.data.device, changes)

    def attach(self) -> None:
        """Make SB3's parameters views of the flat vectors again."""
        for vector in (self.actor_optimizer, self.critic_optimizer, self._target_vector, self.temperature):
            if vector is not None:
                vector.attach()

    @torch.no_grad()
    def step(self, batch: Transitions, polyak: bool) -> torch.Tensor:
        """Update critics, actor and temperature, and with `polyak` the target critics; return four metrics.

        `kit.trainers.sac.SAC._gradient_step` computes the same with autograd, for networks that are not stacked.
        """
        rows, num_actions = batch.actions.shape
        noise = torch.randn(2 * rows, num_actions, device=batch.actions.device)
        obs, next_obs = self._vector(batch.obs), self._vector(batch.next_obs)
        inputs = (obs, batch.actions, batch.rewards, next_obs, batch.terminated, noise)
        constants = self._model.gamma, self._model.target_entropy
        if self._recorded is not None and constants != self._constants:
            self._recorded, self._constants = self.record(), constants
        (metrics,) = self._step(*inputs) if self._recorded is None else self._recorded(*inputs)
        if polyak:  # θ' ← θ' + τ (θ - θ')
            self._target_vector.data.lerp_(self.critic_optimizer.data, self._model.tau)
        return metrics

    def _step(
        self, obs: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor, next_obs: torch.Tensor,
        terminated: torch.Tensor, noise: torch.Tensor,
    ) -> Tensors:  # fmt: skip
        """Take the gradient step for B transitions and standard normal `noise` (2 B, act); return the four metrics.

        A function of tensors, so that a CUDA graph can capture it.
        """
        (rows, width), num_actions = obs.shape, actions.shape[1]

        # a, a' ~ π(s), π(s'): a = tanh(u), u = μ + σ ε
        out, actor_inputs = self._actor.forward(torch.cat([obs, next_obs]))
        mean, raw_log_std = out[0].split(num_actions, 1)
        log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        std_noise = log_std.exp().mul_(noise)  # σ ε
        sampled = torch.tanh(mean + std_noise)
        da_du = (1 - sampled.square()).clamp_(min=0.0)
        # log π = Σ (-½ ε² - log σ - ½ log 2π - log(1 - a² + ε₀))
        log_prob = (noise.square().mul_(-0.5).sub_(log_std).sub_((da_du + SQUASH_EPSILON).log_())).sum(1)
        log_prob.sub_(0.5 * num_actions * math.log(2 * math.pi))
        alpha, alpha_loss = self._update_temperature(log_prob[:rows])

        # y = r + γ (1 - d) (min_i Q'_i(s', a') - α log π(a' | s'))
        next_q = self._targets.forward(torch.cat([next_obs, sampled[rows:]], 1))[0][:, :, 0].amin(0)
        next_q.sub_(alpha * log_prob[rows:])
        target = torch.addcmul(rewards, next_q, (~terminated).float(), value=self._model.gamma)

        # L_Q = ½ Σ_i E[(Q_i(s, a) - y)²]
        q, critic_inputs = self._critics.forward(torch.cat([obs, actions], 1))
        error = q[:, :, 0] - target
        self._critics.backward((error / rows).unsqueeze(2), critic_inputs)
        self.critic_optimizer.apply()

        # L_π = E[α log π(a | s) - min_i Q_i(s, a)], with the updated critics
        q_pi, critic_inputs = self._critics.forward(torch.cat([obs, sampled[:rows]], 1))
        min_q, argmin_q = q_pi[:, :, 0].min(0)
        action_grad = self._action_grad(argmin_q, critic_inputs, slice(width, width + num_actions))
        # ∂ log π / ∂ u = 2 a (1 - a²) / (1 - a² + ε₀), ∂ log π / ∂ log σ = (∂ log π / ∂ u) σ ε - 1
        a, da_du = sampled[:rows], da_du[:rows]
        mean_grad = (2 * alpha / rows) * a * da_du / (da_du + SQUASH_EPSILON) + action_grad * da_du
        inside = (raw_log_std[:rows] >= LOG_STD_MIN) & (raw_log_std[:rows] <= LOG_STD_MAX)
        log_std_grad = (mean_grad * std_noise[:rows] - alpha / rows) * inside
        head_grad = torch.cat([mean_grad, log_std_grad], 1).unsqueeze(0)
        self._actor.backward(head_grad, [layer[:, :rows] for layer in actor_inputs])
        self.actor_optimizer.apply()

        actor_loss = (alpha * log_prob[:rows] - min_q).mean()
        critic_loss = 0.5 * error.square().sum() / rows
        return (torch.stack([alpha, actor_loss, critic_loss, alpha_loss]),)

    def _action_grad(self, argmin_q: torch.Tensor, inputs: list[torch.Tensor], columns: slice) -> torch.Tensor:
        """Return the gradient (B, act) of -E[min_i Q_i(s, a)] w.r.t. the actions a.

        `argmin_q` (B,): number of the critic with the smallest value per row. `inputs`: inputs of the critics' layers.
        `columns`: columns of the actions in the first layer's input.
        """
        rows = len(argmin_q)
        if not self._on_cpu:  # selecting each critic's rows, as below, would synchronise with a GPU
            output_grad = (argmin_q == self._critic_ids).unsqueeze(2) / -rows
            return self._critics.input_grad_all(output_grad, inputs, columns).sum(0)
        grad = inputs[0].new_empty(rows, columns.stop - columns.start)
        for net in range(self._critics.k):
            net_rows = (argmin_q == net).nonzero()[:, 0]
            output_grad = grad.new_full((len(net_rows), 1), -1 / rows)
            grad.index_copy_(0, net_rows, self._critics.input_grad_rows(net, output_grad, inputs, net_rows, columns))
        return grad

    def _update_temperature(self, log_prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Update α if it is learnt; return its old value and L_α = -log α · E[log π + target entropy]."""
        model = self._model
        if self.temperature is None or model.log_ent_coef is None:
            return model.ent_coef_tensor, torch.zeros_like(model.ent_coef_tensor)
        alpha = self.temperature.data.exp()[0]
        slack = log_prob.mean() + float(model.target_entropy)
        loss = -self.temperature.data[0] * slack
        self.temperature.grad.copy_(-slack)
        self.temperature.apply()
        return alpha, loss
