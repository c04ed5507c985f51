"""Off-policy training loop of SAC, TD3 and CrossQ: collect, store in the replay buffer, sample, update, log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq
from stable_baselines3.common.utils import should_collect_more_steps

from kit.encoders.frozen import FrozenView
from kit.envs.obs import Obs, tree_map
from kit.envs.sb3 import LazyInfos
from kit.errors import UserError
from kit.presets import Row
from kit.trainers.base import tensor_env_of
from kit.trainers.demonstrations import DATASET, Demonstrations, Episode, rows_of
from kit.trainers.hindsight import DESIRED, HindsightReplay, has_goals
from kit.trainers.replay import Replay, Transitions, both
from kit.trainers.replay_trainer import ReplayTrainer
from kit.trainers.shifting import random_shift


class OffPolicyTrainer(ReplayTrainer, OffPolicyAlgorithm):
    """SB3's `OffPolicyAlgorithm` with a tensor replay buffer.

    A subclass implements `explore` and `gradient_step`.

    :param buffer_size: steps that the replay buffer keeps; the oldest are overwritten. Usual: 100,000 to 1,000,000
    :param learning_starts: steps with random actions before the first update; usual: 100 to 10,000
    :param train_freq: steps of each env between two updates; usual: 1 to 64
    :param gradient_steps: minibatches per update; -1: as many as env steps since the last update; usual: -1, or 1 to 64
    :param tau: fraction of the way to the trained networks that the target networks move at a time; usual: 0.005 to
        0.05
    :param n_steps: steps of a multi-step return; usual: 1, and nothing else is supported
    :param random_shift: largest random shift of training images in pixels (DrQ augmentation); 0 turns it off; usual:
        0 to 4
    :param n_sampled_goal: goal tasks only (hindsight experience replay, `kit.trainers.hindsight`): for each
        sampled transition that keeps its goal, this many get a goal achieved later in the episode; 0 turns it off;
        usual: 4
    :param random_share: probability with which an env takes a uniformly random action in a step; usual: 0 to 0.3
    """

    replay_buffer: Replay  # type: ignore[assignment]
    demonstrations: Demonstrations | None = None
    """Recorded transitions, which make up half of each batch (RLPD; Ball et al., 2023)."""
    actor: Any
    critic: Any

    def __init__(
        self, *args: Any, random_shift: int = 4, n_sampled_goal: int = 4, random_share: float = 0.0, **kwargs: Any
    ) -> None:
        self.random_shift, self.n_sampled_goal, self.random_share = random_shift, n_sampled_goal, random_share
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        if self.n_steps != 1 or self.action_noise is not None:
            raise UserError(f"n_steps={self.n_steps}: kit supports n_steps=1 without action_noise; leave both out.")
        super()._setup_model()
        self._scheduled = [optimizer for optimizer, _ in self._optimizers().values()]

    def _make_replay(self, rows: int, frames: Mapping[str, int]) -> Replay:
        if not self.n_sampled_goal or self.env is None or not has_goals(self.observation_space):
            return super()._make_replay(rows, frames)
        compute_reward = tensor_env_of(self.env).compute_reward
        goal = torch.zeros(1, *self.observation_space[DESIRED].shape, device=self.device)  # type: ignore[index]
        compute_reward(goal, goal)  # a task without this function is refused now, not when learning starts
        return HindsightReplay(rows, self.n_envs, self.device, frames, self.n_sampled_goal, compute_reward)

    def set_dataset(self, episodes: Iterable[Episode] | None, state: Mapping[str, Any]) -> None:
        """Take half of each batch from `episodes`. With None, in a resumed run, `load_state` restores their data."""
        frames = self.replay_buffer.frames
        rows = None if episodes is None else rows_of(episodes, frames, self.as_actor().scale)
        self.demonstrations = Demonstrations(rows, frames, self.device)
        self.attach(DATASET, self.demonstrations)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _iterate(self, callback: BaseCallback) -> bool:
        assert isinstance(self.train_freq, TrainFreq)
        rollout = self._collect(callback, self.train_freq)
        gradient_steps = self.gradient_steps if self.gradient_steps >= 0 else rollout.episode_timesteps
        if rollout.continue_training and self._learning_started() and gradient_steps > 0:
            self.train(gradient_steps, self.batch_size)
        return rollout.continue_training

    def _collect(self, callback: BaseCallback, train_freq: TrainFreq) -> RolloutReturn:
        """Step the envs for `train_freq` steps (or episodes) and store the transitions in the replay buffer."""
        by_episode = train_freq.unit.value == "episode"
        if by_episode and self.n_envs > 1:
            raise UserError(f"train_freq in episodes needs n_envs=1, not {self.n_envs}; give it in steps.")
        self.policy.set_training_mode(False)
        frozen = isinstance(self.as_actor().view, FrozenView)
        steps = episodes = 0
        self.reward_terms.clear()
        if self.use_sde:
            self.actor.reset_noise(self.n_envs)
        callback.on_rollout_start()
        while should_collect_more_steps(train_freq, steps, episodes):
            self._poll()
            if self.use_sde and self.sde_sample_freq > 0 and steps % self.sde_sample_freq == 0:
                self.actor.reset_noise(self.n_envs)
            assert self._last_obs is not None
            self._last_obs = self._replay_obs(self._last_obs)
            obs = tree_map(torch.clone, self._last_obs)
            scaled = self._next_action(self._last_obs)
            new_obs, reward, terminated, truncated, info = self.tensor_env.step(self.as_actor().unscale(scaled))
            if self.device.type == "cpu":  # reading the reward would wait for a GPU
                self._check_finite(reward)
            self.reward_terms.add(info)
            done, new_obs = terminated | truncated, self._replay_obs(new_obs)
            ended = self.tensor_env.done_envs
            reusable = frozen and (not done.any() if ended is None else not len(ended))  # then final_obs equals new_obs
            next_obs = new_obs if reusable else self._replay_obs(info["final_obs"])
            self.replay_buffer.add(obs, scaled, reward, next_obs, terminated, done, ended)
            if self.normalizer is not None:
                self.normalizer.update(self.as_actor().view(new_obs))
                self.normalizer.reward(reward, done)
            self._last_obs = new_obs
            self.num_timesteps += self.n_envs
            steps += 1
            if (not by_episode and self.device.type != "cpu") or done.any():  # `done.any()` would wait for a GPU
                episodes += by_episode
                self._record_episodes(done, info["episode_return"], info["episode_length"], info.get("success"))
            infos, rewards, dones = LazyInfos(info, done, truncated), reward, done
            callback.update_locals(locals())
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            if not callback.on_step():
                return RolloutReturn(steps * self.n_envs, episodes, continue_training=False)
        callback.on_rollout_end()
        return RolloutReturn(steps * self.n_envs, episodes, continue_training=True)

    def _learning_started(self) -> bool:
        """Return whether more than `learning_starts` env steps are done.

        If the replay data of earlier steps could not be restored (`replay_buffer.first`), only those in the buffer
        count.
        """
        collected = len(self.replay_buffer) * self.n_envs if self.replay_buffer.first else self.num_timesteps
        return collected > self.learning_starts

    def _next_action(self, obs: Obs) -> torch.Tensor:
        """Return actions (n, act) in [-1, 1]: uniformly random until `learning_starts`, then from `explore`."""
        if self.num_timesteps < self.learning_starts and not (self.use_sde and self.use_sde_at_warmup):
            return self._random_actions()
        return self._policy_actions(obs)

    def _policy_actions(self, obs: Obs) -> torch.Tensor:
        """Return actions (n, act) from `explore`, and uniformly random ones in a share `random_share` of the envs."""
        with torch.no_grad():
            actions = self.explore(self.as_actor().preprocess(obs))
        if not self.random_share:
            return actions
        is_random = torch.rand(self.n_envs, 1, device=self.device) < self.random_share
        return torch.where(is_random, self._random_actions().view_as(actions), actions)

    def _random_actions(self) -> torch.Tensor:
        """Return uniformly random actions (n, act) in [-1, 1]."""
        shape = (self.n_envs, *self.action_space.shape)  # type: ignore[misc]
        return torch.rand(shape, device=self.device) * 2.0 - 1.0

    @abstractmethod
    def explore(self, obs: Obs) -> torch.Tensor:
        """Sample exploratory actions (n, act) in [-1, 1] for policy inputs `obs` (n, ...)."""

    # -- the update ------------------------------------------------------------------------------------------------

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._scheduled)
        self._attach()
        for step in range(gradient_steps):
            self._poll()
            self._metric_sums += self.gradient_step(self._sample_batch(batch_size), step)
        self._metric_steps += gradient_steps
        self._n_updates += gradient_steps

    def _attach(self) -> None:
        """Prepare flat optimizers (`kit.trainers.flat`) for an update, after the learning rate is set."""

    @abstractmethod
    def gradient_step(self, batch: Transitions, step: int) -> torch.Tensor:
        """Update all networks on `batch` and return the values of `metric_names`, in their order.

        `step` counts the gradient steps of this `train` call, from 0.
        """

    def _sample_batch(self, batch_size: int) -> Transitions:
        """Sample transitions as inputs of the networks: preprocessed, and normalised by the current statistics."""
        batch, preprocess = self._sample_transitions(batch_size), self.as_actor().preprocess
        rewards = batch.rewards if self.normalizer is None else self.normalizer.scale_reward(batch.rewards)
        obs, next_obs = preprocess(batch.obs), preprocess(batch.next_obs)
        if self.random_shift:
            obs, next_obs = (random_shift(images, self.random_shift) for images in (obs, next_obs))
        return Transitions(obs, batch.actions, rewards, next_obs, batch.terminated)

    def _sample_transitions(self, batch_size: int) -> Transitions:
        if self.demonstrations is None:
            return self.replay_buffer.sample(batch_size)
        recorded = self.demonstrations.replay.sample(batch_size // 2)
        return both(self.replay_buffer.sample(batch_size - batch_size // 2), recorded)

    # -- state -----------------------------------------------------------------------------------------------------

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        trained = {id(p) for group in self.critic.optimizer.param_groups for p in group["params"]}
        critic: dict[str, Any] = {name: p for name, p in self.critic.named_parameters() if id(p) in trained}
        return {
            "actor": (self.actor.optimizer, dict(self.actor.named_parameters())),
            "critic": (self.critic.optimizer, critic),
        }

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_scheduled", "demonstrations"]


def keep_ratio(hyper: Row, n_envs: int, row: Row, requested: Mapping[str, Any]) -> Row:
    """Set `gradient_steps` for `n_envs` so that gradient steps per env step stay as in the preset's `row`.

    With this ratio kept, the final return hardly depends on `n_envs`: SAC on Reach gets 4.10 with 8 envs, 4.14 with 16
    and 4.17 with 32.
    """
    steps = int(row.get("gradient_steps", -1))
    if steps <= 0 or {"train_freq", "gradient_steps"} & set(requested):
        return hyper
    return {**hyper, "gradient_steps": max(1, round(steps * n_envs / int(row.get("n_envs", n_envs))))}


RECORD: dict[str, Any] = {
    "actions": (spaces.Box,),
    "row": {"n_envs": 4, "gradient_steps": -1},  # -1: one gradient step per env step, the ratio of SB3 with one env
    "stock_row": {"n_envs": 1},
    "columns": ("batch_size", "net_arch"),
    "heads": ("pi", "qf"),
    "rule": keep_ratio,
    "fewer_envs": False,
    "dataset": "optional",
    "memory_remedy": "buffer_size, n_envs or network",
}
"""Fields that the `Algorithm` records of SAC, TD3 and CrossQ share."""


def min_q(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return min_i Q_i (B,) of the critics' `values`, (B, 1) each."""
    return torch.cat(values, dim=1).min(1).values


def descend(optimizer: Any, loss: torch.Tensor, parameters: list[torch.Tensor] | None = None) -> torch.Tensor:
    """Take one step of `optimizer`, torch's or a flat one, on `loss`; return the loss, detached.

    `parameters`: those that `optimizer` changes. If given, no time is spent on other gradients.
    """
    optimizer.zero_grad()
    loss.backward(inputs=parameters)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def polyak_update(network: torch.nn.Module, target: torch.nn.Module, tau: float) -> None:
    """Move the target's parameters, θ' ← θ' + τ (θ - θ'), and copy its buffers (batch-norm statistics)."""
    torch._foreach_lerp_(list(target.parameters()), list(network.parameters()), tau)
    for copy, source in zip(target.buffers(), network.buffers(), strict=True):
        copy.copy_(source)
