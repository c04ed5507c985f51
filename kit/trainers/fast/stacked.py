"""Fast networks for PPO and A2C: SB3's default actor-critic as stacked matrices with a hand-written gradient.

Actor and critic are two perceptrons of the same shape on the same input. Gradients are written directly into the
optimizer's flat vector. tests/bench/README.md breaks down the time of a minibatch.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor

from kit.envs.obs import Obs
from kit.trainers.fast.actions import KINDS
from kit.trainers.fast.derivatives import differentiate
from kit.trainers.fast.perceptrons import Perceptrons, activation, layout, linears, widths
from kit.trainers.flat import FlatOptimizer, can_flatten
from kit.trainers.networks import Evaluated, Loss, Networks
from kit.trainers.recorded import Recorded, Tensors
from kit.trainers.rollout import Batch, Rollout

VALUE_ROWS = 65_536
"""Most observations in one forward pass of the critic, to bound the memory of its hidden layers."""


def is_float_box(space: spaces.Space) -> bool:
    """Return whether SB3 passes observations of `space` to networks unchanged: floats, not images or integers."""
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and not is_image_space(space)


def can_stack(policy: ActorCriticPolicy) -> bool:
    """Return whether `StackedActorCritic` supports `policy`."""
    if type(policy) is not ActorCriticPolicy or policy.use_sde or not can_flatten(policy.optimizer):
        return False
    if type(policy.features_extractor) is not FlattenExtractor or not policy.share_features_extractor:
        return False
    if type(policy.action_dist) not in KINDS or not is_float_box(policy.observation_space):
        return False
    actor, critic = policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net
    return activation(actor, critic) is not None and widths(actor) == widths(critic)


class StackedActorCritic(Networks):
    """The actor and critic of `policy` as stacked matrices. They share memory with `policy`, which stays usable."""

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.policy = policy
        actor, critic = policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net
        head, value, kind = policy.action_net, policy.value_net, activation(actor)
        assert isinstance(head, torch.nn.Linear) and kind is not None
        nets = [[[linear] for linear in (*linears(actor), head)], [[linear] for linear in (*linears(critic), value)]]
        self._actions = KINDS[type(policy.action_dist)](policy)
        # The distribution's parameters (log_std) come last: if, for example, 29 of them came before the weights, the
        # weights would lose the 16-byte alignment that tensor cores need.
        others = [getattr(policy, name) for name in self._actions.parameters]
        self.optimizer = FlatOptimizer(policy.optimizer, [*layout(nets), *others])
        self._actions.bind(self.optimizer)
        self._nets = Perceptrons(self.optimizer, nets, kind)
        # batch size B -> gradient w.r.t. the networks' outputs (2, B, outputs), and its views for actor and critic
        self._grads: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._recordings: dict[Any, Recorded] = {}
        # loss -> vf_coef and ent_coef in its recording, where they are constants
        self._coefficients: dict[Any, tuple[float, float]] = {}
        self._device = self.optimizer.data.device
        self._graphs = self._device.type == "cuda"

    # -- rollouts --------------------------------------------------------------------------------------------------

    def begin(self, rollout: Rollout) -> None:
        self.attach()
        self._actions.draw_noise(rollout)

    def sample(self, rollout: Rollout, step: int, obs: Obs) -> torch.Tensor:
        actions, *log_prob = self._run("act", self._act, cast(torch.Tensor, obs), *self._actions.noise(step))
        if log_prob:
            rollout.log_probs[step] = log_prob[0]
        return rollout.store_actions(step, actions)

    def finish(self, rollout: Rollout) -> None:
        obs = cast(torch.Tensor, rollout.obs).flatten(0, 1)
        rollout.values = self.values(obs).view(rollout.n_steps, rollout.n_envs)
        if (log_probs := self._actions.log_probs()) is not None:
            rollout.log_probs = log_probs.view(rollout.n_steps, rollout.n_envs)

    def values(self, obs: Obs) -> torch.Tensor:
        chunks = cast(torch.Tensor, obs).split(VALUE_ROWS)
        return torch.cat([self._nets.forward_one(1, chunk.flatten(1))[:, 0] for chunk in chunks])

    def _act(self, obs: torch.Tensor, *noise: torch.Tensor) -> Tensors:
        """Sample actions with the actor alone; `finish` computes the values."""
        return self._actions.sample(self._nets.forward_one(0, obs.flatten(1)), *noise)

    # -- updates ---------------------------------------------------------------------------------------------------

    def gradient(self, loss: Loss, batch: Batch, *numbers: float) -> Evaluated:
        width = len(fields(Batch))

        def gradient(*inputs: Any) -> Tensors:
            return self._gradient(loss, Batch(*inputs[:width]), *inputs[width:])

        inputs, function = (*vars(batch).values(), *numbers), getattr(loss, "__func__", loss)
        with torch.no_grad():
            if not hasattr(loss, "derivatives"):  # a user's loss may read numbers that change; a CUDA graph keeps them
                return Evaluated(*gradient(*inputs))
            trainer: Any = loss.__self__  # type: ignore[attr-defined]
            if self._coefficients.get(function) != (coefficients := (trainer.vf_coef, trainer.ent_coef)):
                self._coefficients[function] = coefficients
                self._recordings.pop(function, None)
            return Evaluated(*self._run(function, gradient, *inputs))

    def _gradient(self, loss: Loss, batch: Batch, *numbers: Any) -> Tensors:
        out, inputs = self._nets.forward(cast(torch.Tensor, batch.obs).flatten(1))  # (2, B, outputs)
        log_prob, entropy = self._actions.evaluate(out[0], batch.actions)
        evaluated = Evaluated(log_prob, out[1, :, 0], entropy)
        derivatives = differentiate(loss, evaluated, batch, *numbers)
        rows = len(batch)
        if rows not in self._grads:
            grad = torch.zeros_like(out)
            self._grads[rows] = grad, grad[0], grad[1, :, 0]
        grad, actor_grad, value_grad = self._grads[rows]
        self._actions.backward(derivatives.log_prob, derivatives.entropy, actor_grad)
        value_grad.copy_(derivatives.values)
        self._nets.backward(grad, inputs)
        return evaluated.log_prob, evaluated.values, evaluated.entropy

    def _run(self, name: Any, function: Any, *inputs: Any) -> Tensors:
        """Call `function`, on a GPU as a CUDA graph recorded once per `name`.

        On a GPU, the next call with the name "act" overwrites the outputs of this one; other outputs are copies.
        """
        if not self._graphs:
            return tuple(function(*inputs))
        if name not in self._recordings:
            self._recordings[name] = Recorded(function, self._device, [self.optimizer.grad])
        outputs = self._recordings[name](*inputs)
        return outputs if name == "act" else tuple(output.clone() for output in outputs)
