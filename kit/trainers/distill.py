"""Distillation: a student learns a teacher's actions from its own observations (DAgger; Ross et al., 2011).

Each iteration steps all envs `n_steps` times. The teacher labels every observation with its action. It also acts in
some of the envs: at first in all, later in none; in the others the student acts. In half of the teacher's envs, noise
is added to its actions, so that the labels also show how to recover from mistakes (DART; Laskey et al., 2017). Then the
student is trained on the stored labels.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from torch.nn import functional as F

from kit.envs.obs import TEACHER, Obs, leaves, pick, tree_map
from kit.envs.sb3 import LazyInfos
from kit.errors import UserError
from kit.trainers.algorithm import Algorithm
from kit.trainers.flat import flatten
from kit.trainers.imitation import ImitationTrainer
from kit.trainers.off_policy import descend
from kit.trainers.replay import Transitions
from kit.trainers.saving import Component, State, Values

CORRELATION = 0.9
"""Correlation of the noise on the teacher's actions from one step to the next."""


class Teacher(Component, Protocol):
    """A policy that labels observations with actions. Its state is saved in every checkpoint."""

    def act(self, obs: Obs) -> torch.Tensor:
        """Return actions (n, ...) for `obs` (n, ...), the observation group "teacher". Called once per env step."""

    def restart(self, done: torch.Tensor) -> None:
        """Reset the hidden state of the envs where `done` (n,) is True. Called after every env step."""


class DriftNoise:
    """Gaussian noise of standard deviation `std`, correlated over some ten steps: x ← ρ x + √(1 - ρ²) σ ε."""

    def __init__(self, shape: tuple[int, ...], std: float, device: torch.device) -> None:
        self.std, self.value = std, torch.zeros(shape, device=device)

    def sample(self) -> torch.Tensor:
        """Return the noise of the next step."""
        self.value = CORRELATION * self.value + (1 - CORRELATION**2) ** 0.5 * self.std * torch.randn_like(self.value)
        return self.value

    def state(self) -> Values:
        return {"value": self.value.cpu().clone()}

    def load_state(self, state: Values) -> None:
        self.value = state["value"].to(self.value.device)


class Distill(ImitationTrainer):
    """Trains a policy (the student) on a teacher's actions, in states that the student or the teacher visits.

    Call `set_teacher` before `learn`.

    :param teacher_until: fraction of the run during which the teacher acts in some envs: first in all, at last in none;
        usual: 0.2 to 0.6
    :param teacher_noise: standard deviation of the noise on the teacher's actions, in units of half the action's range;
        usual: 0.3 to 1
    :param state_coef: weight of a second loss, the prediction of the teacher's observation from the student's features;
        0 turns it off; usual: 0 to 1
    """

    teacher: Teacher | None = None

    def __init__(
        self, *args: Any, teacher_until: float = 0.4, teacher_noise: float = 0.8, state_coef: float = 0.0, **kwargs: Any
    ) -> None:
        self.teacher_until, self.teacher_noise, self.state_coef = teacher_until, teacher_noise, state_coef
        if state_coef:
            self.metric_names = (*self.metric_names, "state_loss")
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        self._noise = DriftNoise((self.n_envs, *(self.action_space.shape or ())), self.teacher_noise, self.device)
        self.attach("noise", self._noise)
        self._state_head: torch.nn.Linear | None = None
        if self.state_coef and self.env is not None:
            width = sum(x[0].numel() for _, x in leaves("", self._teacher_obs(self._last_obs)))
            self._state_head = torch.nn.Linear(self._trained.features_dim, width, device=self.device)
            self._head_optimizer = torch.optim.Adam(self._state_head.parameters(), lr=self.lr_schedule(1))
            self._flat_head = flatten(self._head_optimizer)

    def _reset_envs(self) -> None:
        super()._reset_envs()
        self._restart_teacher()

    def load_state(self, state: State) -> bool:
        same_envs = super().load_state(state)
        if not (same_envs and self.tensor_env.snapshots):
            self._restart_teacher()
        return same_envs

    def _restart_teacher(self) -> None:
        """Reset a recurrent teacher's hidden state, because all envs start new episodes."""
        if self.teacher is not None:
            self.teacher.restart(torch.ones(self.n_envs, dtype=torch.bool, device=self.device))

    def set_teacher(self, teacher: Teacher) -> None:
        """Set the teacher; checkpoints include it."""
        self.teacher = teacher
        self.attach("teacher", teacher)

    # -- the loop --------------------------------------------------------------------------------------------------

    def learn(self, total_timesteps: int, *args: Any, **kwargs: Any) -> Self:
        """Train until `total_timesteps` env steps are labelled. Further arguments as in `ImitationTrainer.learn`."""
        if self.teacher is None:
            raise UserError("teacher=None: Distill needs a teacher; name a run, or 'scripted'.")
        return super().learn(total_timesteps, *args, **kwargs)

    def _collect(self, callback: BaseCallback) -> bool:
        """Step all envs `n_steps` times; store labelled observations; return False if the callback ends training."""
        assert self.teacher is not None
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        self.reward_terms.clear()
        for _ in range(self.n_steps):
            self._poll()
            assert self._last_obs is not None
            label = self.as_actor().clip(self.teacher.act(self._teacher_obs(self._last_obs)))
            action = self._mixed(label, self._last_obs)
            stored = tree_map(torch.clone, self._replay_obs(self._last_obs))
            new_obs, reward, terminated, truncated, info = self.tensor_env.step(action)
            self.reward_terms.add(info)
            done = terminated | truncated
            final, ended = self._replay_obs(info["final_obs"]), self.tensor_env.done_envs
            self.replay_buffer.add(stored, label, reward, final, terminated, done, ended)
            if self.normalizer is not None:
                self.normalizer.update(self.as_actor().view(new_obs))
            self._last_obs = new_obs
            self.teacher.restart(done)
            self.num_timesteps += self.n_envs
            if self.device.type != "cpu" or done.any():  # `done.any()` would wait for a GPU
                self._record_episodes(done, info["episode_return"], info["episode_length"], info.get("success"))
            infos, rewards, dones = LazyInfos(info, done, truncated), reward, done
            callback.update_locals(locals())
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            if not callback.on_step():
                return False
        callback.on_rollout_end()
        return True

    def _mixed(self, label: torch.Tensor, obs: Obs) -> torch.Tensor:
        """Return the actions (n, ...) to take: the teacher's in its share of the envs, the student's in the others."""
        progress = 1.0 - self._current_progress_remaining
        share = max(0.0, 1.0 - progress / self.teacher_until) if self.teacher_until else 0.0
        teachers = round(share * self.n_envs)
        if not teachers:
            return self.act(obs)
        action = label.clone()
        if isinstance(self.action_space, spaces.Box) and self.teacher_noise:
            action[::2] += self._noise.sample()[::2] / self._scale
        if teachers < self.n_envs:
            action[teachers:] = self.act(obs)[teachers:].to(label.dtype)
        return action

    def _teacher_obs(self, obs: Any) -> Obs:
        return pick(obs, self.tensor_env.obs_groups.get(TEACHER))

    # -- the update ------------------------------------------------------------------------------------------------

    def gradient_step(self, obs: Obs, batch: Transitions) -> torch.Tensor:
        """Update the policy on `batch` and return the values of `metric_names`.

        With `state_coef`, the second loss is E|W φ(s) - s*|²: φ are the student's features, s* is the teacher's
        observation.
        """
        if self._state_head is None:
            return super().gradient_step(obs, batch)
        features = self.features(obs)
        state = torch.cat([x.flatten(1) for _, x in leaves("", self._teacher_obs(batch.obs))], dim=1)
        losses = [self.loss(features, batch.actions), F.mse_loss(self._state_head(features), state)]
        self._flat_head.attach()
        self._flat_head.zero_grad()
        descend(self._optimizer, losses[0] + self.state_coef * losses[1])
        self._flat_head.step()
        return torch.stack(losses).detach()

    # -- state -----------------------------------------------------------------------------------------------------

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        optimizers = super()._optimizers()
        if self._state_head is not None:
            optimizers["state_head"] = (self._head_optimizer, dict(self._state_head.named_parameters()))
        return optimizers

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "teacher", "_noise", "_state_head", "_head_optimizer", "_flat_head"]


ALGORITHM = Algorithm(
    "Distill", Distill, sb3.PPO, ActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    row={"n_envs": 32, "learning_rate": "lin_0.001", "log_std_init": -1.6, "net_arch": [256]},
    stock_row={"n_envs": 1},
    used=("learning_rate", "n_steps", "batch_size", "policy_kwargs"),
    taught=True, clip_encoder="clip_cnn", fewer_envs=False,
    own={"gradient_steps": int, "buffer_size": int, "random_shift": int, "policy_of": str,
         "teacher_until": float, "teacher_noise": float, "state_coef": float},
)  # fmt: skip
