"""Base class of trainers that learn actions from labelled observations, by supervised learning."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from torch.nn import functional as F

from kit.envs.obs import Obs
from kit.errors import UserError
from kit.trainers.flat import flatten
from kit.trainers.off_policy import descend
from kit.trainers.replay import Transitions
from kit.trainers.replay_trainer import ReplayTrainer
from kit.trainers.shifting import random_shift

BETA = 0.1
"""Error beyond which the smooth L1 loss is linear instead of squared. Where a teacher changes direction, similar
observations have contradictory labels. A squared loss learns their mean, which is to stand still; a linear loss learns
the more frequent label. On DishwashingVideo, after 30,000 frames, the policy earns 22 dollars an hour with
0.1, and 9 with 1."""


POLICIES: dict[str, Any] = {"PPO": sb3.PPO, "SAC": sb3.SAC}
"""Value of `policy_of` -> SB3's class of that algorithm."""


class ImitationTrainer(ReplayTrainer, sb3.PPO):
    """Trains a policy on the labelled observations in `replay_buffer`. A subclass implements `_collect`.

    Observations are stored as in off-policy replay, each image once.

    :param n_steps: steps of every env per iteration; usual: 4 to 32
    :param gradient_steps: gradient steps per iteration; usual: 8 to 64
    :param batch_size: labelled observations per gradient step; usual: 64 to 512
    :param buffer_size: maximum number of labelled observations kept; the oldest are overwritten; usual: 50,000
        to 500,000
    :param random_shift: largest random shift of training images in pixels (DrQ augmentation); 0 turns it off; usual:
        0 to 4
    :param policy_of: PPO or SAC: the algorithm that can train the policy further (`kit.branch`, `start_from`)
    """

    metric_names: tuple[str, ...] = ("imitation_loss",)

    def __init__(
        self,
        policy: Any,
        env: Any,
        learning_rate: Any = 1e-3,
        n_steps: int = 8,
        batch_size: int = 128,
        gradient_steps: int = 24,
        buffer_size: int = 200_000,
        random_shift: int = 0,
        policy_of: str = "PPO",
        **kwargs: Any,
    ) -> None:
        if policy_of not in POLICIES:
            raise UserError(f"overrides policy_of={policy_of!r} is unknown; write {' or '.join(POLICIES)}.")
        if policy_of == "SAC" and env is not None and not isinstance(env.action_space, spaces.Box):
            raise UserError(f"overrides policy_of='SAC' needs a Box action space, not {env.action_space}; use PPO.")
        self.policy_of = policy_of
        policy = POLICIES[policy_of].policy_aliases[policy] if isinstance(policy, str) else policy
        self.gradient_steps, self.buffer_size, self.random_shift = gradient_steps, buffer_size, random_shift
        # SB3 would check the batch size against a rollout, which imitation does not have
        super().__init__(policy, env, learning_rate, n_steps, n_steps, normalize_advantage=False, **kwargs)
        self.batch_size = batch_size

    def _setup_model(self) -> None:
        super()._setup_model()
        policy: Any = self.policy
        self._trained = policy.actor if self.policy_of == "SAC" else policy
        """The part of the policy that acts."""
        self._optimizer = flatten(self._trained.optimizer)
        space = self.action_space
        self._scale = torch.ones((), device=self.device)
        if isinstance(space, spaces.Box) and space.is_bounded():
            self._scale = torch.as_tensor(2.0 / (space.high - space.low), device=self.device)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _iterate(self, callback: BaseCallback) -> bool:
        if not self._collect(callback):
            return False
        self.train()
        return True

    def dump_logs(self, iteration: int = 0) -> None:
        super().dump_logs(self.iteration)

    @abstractmethod
    def _collect(self, callback: BaseCallback) -> bool:
        """Get data for the next update and count it in `num_timesteps`; return False if the callback ends training."""

    # -- the update ------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Take `gradient_steps` gradient steps, each on a new batch of stored observations."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([optimizer for optimizer, _ in self._optimizers().values()])
        self._optimizer.attach()
        for _ in range(self.gradient_steps):
            self._poll()
            batch = self.replay_buffer.sample(self.batch_size, with_next=False)
            obs = self.as_actor().preprocess(batch.obs)
            if self.random_shift:
                obs = random_shift(obs, self.random_shift)
            self._metric_sums += self.gradient_step(obs, batch)
        self._metric_steps += self.gradient_steps
        self._n_updates += self.gradient_steps

    def gradient_step(self, obs: Obs, batch: Transitions) -> torch.Tensor:
        """Update the policy on `batch`; return the values of `metric_names`. `obs`: the preprocessed `batch.obs`."""
        return descend(self._optimizer, self.loss(self.features(obs), batch.actions)).unsqueeze(0)

    def features(self, obs: Obs) -> torch.Tensor:
        """Return the features (B, F) of the policy inputs `obs` (B, ...), computed by the policy's encoder."""
        extractor = "features_extractor" if self.policy_of == "SAC" else "pi_features_extractor"
        return self._trained.extract_features(obs, getattr(self._trained, extractor))

    def loss(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """L = E[smooth L1(μ(s), a*)] in units of half the action's range, or -E[log π(a*|s)] for discrete actions, with
        a* the labels (B, ...)."""
        if self.policy_of == "SAC":
            mean = self._trained.mu(self._trained.latent_pi(features)).tanh()
            return F.smooth_l1_loss(mean, self.as_actor().scale(labels), beta=BETA)
        policy: Any = self.policy
        distribution = policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(features))
        if isinstance(self.action_space, spaces.Box):
            return F.smooth_l1_loss(distribution.mode() * self._scale, labels * self._scale, beta=BETA)
        return -distribution.log_prob(labels.float()).mean()

    # -- state -----------------------------------------------------------------------------------------------------

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        parameters: dict[str, torch.Tensor] = dict(self._trained.named_parameters())
        return {"policy": (self._trained.optimizer, parameters)}

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save an SB3 zip of PPO. Raises `UserError` for `policy_of` SAC."""
        if self.policy_of != "PPO":
            other = self.policy_of
            raise UserError(f"a policy for {other} cannot be saved as a zip of PPO; train it with {other} first.")
        super().save(*args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_scale", "_optimizer", "_trained"]
