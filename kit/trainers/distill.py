"""Distillation: a student learns a teacher's actions from its own observations (DAgger; Ross et al., 2011).

Each iteration steps all envs `n_steps` times. The teacher labels every observation with its action, and acts itself in
a share of the envs, which falls from 1 to 0. In half of these, noise is added to its actions, so that the labels also
show how to recover from mistakes (DART; Laskey et al., 2017). Then the student is trained on all stored labels.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from torch.nn import functional as F

from kit.envs.obs import TEACHER, Obs, leaves, pick, tree_map
from kit.envs.sb3 import LazyInfos
from kit.errors import UserError
from kit.trainers.algorithm import Algorithm
from kit.trainers.off_policy import descend
from kit.trainers.replay_trainer import ReplayTrainer
from kit.trainers.saving import Component, Values
from kit.trainers.shifting import random_shift

BETA = 0.1
"""Errors beyond this count linearly. Near the point where a teacher changes direction its labels contradict each other:
squared errors average them to standing still, linear ones take the more frequent one. On DishwashingVideo, after 30,000
frames: 22 dollars an hour with 0.1, 9 with 1."""
CORRELATION = 0.9
"""Correlation of the noise on the teacher's actions from one step to the next."""


class Teacher(Component, Protocol):
    """A policy that labels observations with actions. Its state is saved in every checkpoint."""

    def act(self, obs: Obs) -> torch.Tensor:
        """Return actions (n, ...) for `obs` (n, ...), the entries of the group "teacher". Called once per env step."""

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


class Distill(ReplayTrainer, sb3.PPO):
    """Trains the policy of PPO by supervised learning, so that PPO can train it further (`start_from`).

    Call `set_teacher` before `learn`. Observations are stored as in off-policy replay, each image once.

    :param n_steps: steps of every env per iteration
    :param gradient_steps: gradient steps per iteration
    :param batch_size: labelled observations per gradient step
    :param buffer_size: most labelled observations that are kept; older ones are overwritten
    :param teacher_until: fraction of the run during which the teacher acts in some envs; its share falls from 1 to 0
    :param teacher_noise: standard deviation of the noise on the teacher's actions, in units of half the action's range
    :param state_coef: weight of a second loss, the prediction of the teacher's observation from the student's features;
        0 turns it off
    :param random_shift: largest random shift of training images in pixels (DrQ augmentation); 0 turns it off
    """

    teacher: Teacher | None = None

    def __init__(
        self,
        policy: Any,
        env: Any,
        learning_rate: Any = 1e-3,
        n_steps: int = 8,
        batch_size: int = 128,
        gradient_steps: int = 24,
        buffer_size: int = 200_000,
        teacher_until: float = 0.4,
        teacher_noise: float = 0.8,
        state_coef: float = 0.0,
        random_shift: int = 0,
        **kwargs: Any,
    ) -> None:
        self.gradient_steps, self.buffer_size, self.random_shift = gradient_steps, buffer_size, random_shift
        self.teacher_until, self.teacher_noise, self.state_coef = teacher_until, teacher_noise, state_coef
        self.metric_names = ("imitation_loss", "state_loss") if state_coef else ("imitation_loss",)
        super().__init__(policy, env, learning_rate, n_steps, batch_size, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        space = self.action_space
        self._scale = torch.ones((), device=self.device)
        if isinstance(space, spaces.Box) and space.is_bounded():
            self._scale = torch.as_tensor(2.0 / (space.high - space.low), device=self.device)
        self._noise = DriftNoise((self.n_envs, *(space.shape or ())), self.teacher_noise, self.device)
        self.attach("noise", self._noise)
        self._state_head: torch.nn.Linear | None = None
        if self.state_coef and self.env is not None:
            width = sum(x[0].numel() for _, x in leaves("", self._teacher_obs(self._last_obs)))
            self._state_head = torch.nn.Linear(self.policy.features_dim, width, device=self.device)
            self._head_optimizer = torch.optim.Adam(self._state_head.parameters(), lr=self.lr_schedule(1))

    def set_teacher(self, teacher: Teacher) -> None:
        """Set the teacher; checkpoints include it."""
        self.teacher = teacher
        self.attach("teacher", teacher)

    # -- the loop --------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1000,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train until `total_timesteps` env steps are labelled. Metrics are logged every `log_interval` env steps."""
        if self.teacher is None:
            raise UserError("teacher=None: Distill needs a teacher; name a run, or 'scripted'.")
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            before = self.num_timesteps
            if not self._collect(callback):
                break
            self.train()
            self.iteration += 1
            if self.num_timesteps // log_interval > before // log_interval or self.num_timesteps >= total_timesteps:
                self._log_update()
                self._read_episodes()
                self.dump_logs(self.iteration)
            self._boundary()
        callback.on_training_end()
        return self

    def _collect(self, callback: BaseCallback) -> bool:
        """Step all envs `n_steps` times and store the labelled observations; return False if the callback stops it."""
        assert self.teacher is not None
        self.policy.set_training_mode(False)
        callback.on_rollout_start()
        for _ in range(self.n_steps):
            self._poll()
            assert self._last_obs is not None
            label = self.clip(self.teacher.act(self._teacher_obs(self._last_obs)))
            action = self._mixed(label, self._last_obs)
            stored = tree_map(torch.clone, self._replay_obs(self._last_obs))
            new_obs, reward, terminated, truncated, info = self.tensor_env.step(action)
            done = terminated | truncated
            self.replay_buffer.add(stored, label, reward, self._replay_obs(info["final_obs"]), terminated, done)
            if self.normalizer is not None:
                self.normalizer.update(self.as_actor().view(new_obs))
            self._last_obs = new_obs
            self.teacher.restart(done)
            self.num_timesteps += self.n_envs
            if self.device.type != "cpu" or done.any():  # `any` would wait for a GPU
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
        done = 1.0 - self._current_progress_remaining
        share = max(0.0, 1.0 - done / self.teacher_until) if self.teacher_until else 0.0
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

    def clip(self, action: torch.Tensor) -> torch.Tensor:
        """Clip the teacher's actions to the action space, so that labels are bounded."""
        if not isinstance(self.action_space, spaces.Box):
            return action
        actor = self.as_actor()
        return torch.maximum(torch.minimum(action.to(actor.low.dtype), actor.high), actor.low)

    # -- the update ------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Take `gradient_steps` gradient steps, each on a new batch of stored observations."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([optimizer for optimizer, _ in self._optimizers().values()])
        for _ in range(self.gradient_steps):
            self._poll()
            batch = self.replay_buffer.sample(self.batch_size, with_next=False)
            obs = self.as_actor().preprocess(batch.obs)
            if self.random_shift:
                obs = random_shift(obs, self.random_shift)
            losses = self.losses(obs, batch.actions, batch.obs)
            self._metric_sums += self._descend(losses)
        self._metric_steps += self.gradient_steps
        self._n_updates += self.gradient_steps

    def losses(self, obs: Obs, labels: torch.Tensor, teacher_obs: Obs) -> list[torch.Tensor]:
        """L = E[smooth L1(μ(s), a*)] in units of half the action's range, or -E[log π(a*|s)] for discrete actions, with
        a* the teacher's action; and E|W φ(s) - s*|², with φ the student's features and s* the teacher's observation."""
        policy: Any = self.policy
        features = policy.extract_features(obs, policy.pi_features_extractor)
        distribution = policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(features))
        if isinstance(self.action_space, spaces.Box):
            loss = F.smooth_l1_loss(distribution.mode() * self._scale, labels * self._scale, beta=BETA)
        else:
            loss = -distribution.log_prob(labels.float()).mean()
        if self._state_head is None:
            return [loss]
        state = torch.cat([x.flatten(1) for _, x in leaves("", self._teacher_obs(teacher_obs))], dim=1)
        return [loss, F.mse_loss(self._state_head(features), state)]

    def _descend(self, losses: list[torch.Tensor]) -> torch.Tensor:
        if len(losses) == 1:
            return descend(self.policy.optimizer, losses[0]).unsqueeze(0)
        self._head_optimizer.zero_grad()
        descend(self.policy.optimizer, losses[0] + self.state_coef * losses[1])
        self._head_optimizer.step()
        return torch.stack(losses).detach()

    # -- state -----------------------------------------------------------------------------------------------------

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        parameters: dict[str, torch.Tensor] = dict(self.policy.named_parameters())
        optimizers = {"policy": (self.policy.optimizer, parameters)}
        if self._state_head is not None:
            optimizers["state_head"] = (self._head_optimizer, dict(self._state_head.named_parameters()))
        return optimizers

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "teacher", "_scale", "_noise", "_state_head", "_head_optimizer"]


ALGORITHM = Algorithm(
    "Distill", Distill, sb3.PPO, ActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    row={"n_envs": 32, "learning_rate": "lin_0.001", "log_std_init": -1.6, "net_arch": [256]},
    stock_row={"n_envs": 1},
    used=("learning_rate", "n_steps", "batch_size", "policy_kwargs"),
    taught=True, clip_encoder="clip_cnn", fewer_envs=False,
    own={"gradient_steps": int, "buffer_size": int, "random_shift": int,
         "teacher_until": float, "teacher_noise": float, "state_coef": float},
)  # fmt: skip
