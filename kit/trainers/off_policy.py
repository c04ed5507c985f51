"""Collect, keep in the replay, draw, update, log: the loop that SAC and TD3 share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback, RolloutReturn, TrainFreq
from stable_baselines3.common.utils import should_collect_more_steps

from kit.encoders.frozen import FrozenView
from kit.envs.obs import Obs, tree_map
from kit.errors import UserError
from kit.presets import Row
from kit.trainers.base import READ_EVERY, TensorTrainer, tensor_env_of
from kit.trainers.clips import image_stacks
from kit.trainers.infos import LazyInfos
from kit.trainers.replay import Replay, Transitions
from kit.trainers.saving import Component, Counters, State, Values
from kit.trainers.shifting import random_shift


class OffPolicyTrainer(TensorTrainer, OffPolicyAlgorithm):
    """SB3's `OffPolicyAlgorithm` with its replay as tensors. An algorithm writes `explore` and `gradient_step`. Replay
    data is not part of `state()`: see `replay_rows` and `load_replay`.

    :param random_shift: pixels by which images are moved at random before they are learnt from; 0 leaves them
    """

    figures: tuple[str, ...]
    """Names of what `gradient_step` returns, as metrics show them."""
    replay_buffer: Replay  # type: ignore[assignment]
    actor: Any
    critic: Any

    def __init__(self, *args: Any, random_shift: int = 4, **kwargs: Any) -> None:
        if random_shift < 0:
            raise UserError(f"overrides random_shift={random_shift!r} must be a whole number of at least 0.")
        self.random_shift = random_shift
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        if self.n_steps != 1 or self.action_noise is not None:
            raise UserError(f"n_steps={self.n_steps} and action_noise are SB3's alone; leave them out here.")
        if not isinstance(self.replay_buffer, Replay):
            rows = max(1, self.buffer_size // self.n_envs)
            frames: dict[str, int] = {}
            if self.env is not None:
                env, space = tensor_env_of(self.env), self.observation_space
                space = space if isinstance(self.env.unwrapped.view, FrozenView) else env.observation_space
                frames = image_stacks(space, env.frames)
            self.replay_buffer = Replay(rows, self.n_envs, self.device, frames)
        self._sums = torch.zeros(len(self.figures), device=self.device)
        self._summed = 0
        super()._setup_model()

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
        """Train until `total_timesteps` env steps are done. A row of metrics comes each time another `log_interval`
        env steps (SB3 counts episodes) have passed, on a GPU no oftener than every fourth iteration, and at the end."""
        if self.device.type != "cpu":
            log_interval = max(log_interval, READ_EVERY * self.n_envs)
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        callback.on_training_start(locals(), globals())
        assert isinstance(self.train_freq, TrainFreq)
        while self.num_timesteps < total_timesteps:
            before = self.num_timesteps
            rollout = self._collect(callback, self.train_freq)
            if not rollout.continue_training:
                break
            gradient_steps = self.gradient_steps if self.gradient_steps >= 0 else rollout.episode_timesteps
            if self._has_seen_enough() and gradient_steps > 0:
                self.train(gradient_steps, self.batch_size)
            self.iteration += 1
            passed = self.num_timesteps // log_interval > before // log_interval
            if passed or self.num_timesteps >= total_timesteps:
                self._log_update()
                self._read_episodes()
                self.dump_logs()
            self._boundary()
        callback.on_training_end()
        return self

    def _collect(self, callback: BaseCallback, train_freq: TrainFreq) -> RolloutReturn:
        """Step the envs `train_freq` times (or until so many episodes end) and keep the transitions in the replay."""
        by_episode = train_freq.unit.value == "episode"
        if by_episode and self.n_envs > 1:
            raise UserError(f"train_freq in episodes needs n_envs=1, not {self.n_envs}; give it in steps.")
        self.policy.set_training_mode(False)
        frozen = isinstance(self.as_actor().view, FrozenView)
        steps = episodes = 0
        if self.use_sde:
            self.actor.reset_noise(self.n_envs)
        callback.on_rollout_start()
        while should_collect_more_steps(train_freq, steps, episodes):
            self._poll()
            if self.use_sde and self.sde_sample_freq > 0 and steps % self.sde_sample_freq == 0:
                self.actor.reset_noise(self.n_envs)
            assert self._last_obs is not None
            self._last_obs = self._kept(self._last_obs)
            obs = tree_map(torch.clone, self._last_obs)
            scaled = self._next_action(self._last_obs)
            new_obs, reward, terminated, truncated, info = self.tensor_env.step(self.as_actor().unscale(scaled))
            done, new_obs = terminated | truncated, self._kept(new_obs)
            next_obs = new_obs if frozen and not done.any() else self._kept(info["final_obs"])
            self.replay_buffer.add(obs, scaled, reward, next_obs, terminated, done)
            if self.normalizer is not None:
                self.normalizer.update(self.as_actor().view(new_obs))
                self.normalizer.reward(reward, done)
            self._last_obs = new_obs
            self.num_timesteps += self.n_envs
            steps += 1
            if (not by_episode and self.device.type != "cpu") or done.any():  # `any` would wait for a GPU
                episodes += by_episode
                self._record_episodes(done, info["episode_return"], info["episode_length"], info.get("success"))
            infos, rewards, dones = LazyInfos(info, done, truncated), reward, done
            callback.update_locals(locals())
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            if not callback.on_step():
                return RolloutReturn(steps * self.n_envs, episodes, continue_training=False)
        callback.on_rollout_end()
        return RolloutReturn(steps * self.n_envs, episodes, continue_training=True)

    def _kept(self, obs: Obs) -> Obs:
        """`obs` as the replay holds them: a frozen encoder's features in place of images."""
        view = self.as_actor().view
        return view(obs) if isinstance(view, FrozenView) else obs

    def _has_seen_enough(self) -> bool:
        """Whether to learn yet; where the replay was lost it must fill again first."""
        there = len(self.replay_buffer) * self.n_envs if self.replay_buffer.first else self.num_timesteps
        return there > self.learning_starts

    def _next_action(self, obs: Obs) -> torch.Tensor:
        """Actions (n, act) in [-1, 1]: uniform until learning starts, then those of `explore`."""
        if self.num_timesteps < self.learning_starts and not (self.use_sde and self.use_sde_at_warmup):
            shape = (self.n_envs, *self.action_space.shape)  # type: ignore[misc]
            return torch.rand(shape, device=self.device) * 2.0 - 1.0
        with torch.no_grad():
            return self.explore(self.as_actor().see(obs))

    @abstractmethod
    def explore(self, obs: Obs) -> torch.Tensor:
        """Actions (n, act) in [-1, 1] to try in `obs` (n, ...) as the policy sees them."""

    # -- the update ------------------------------------------------------------------------------------------------

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """`gradient_steps` steps, each on a fresh batch."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([optimizer for optimizer, _ in self._optimizers().values()])
        for step in range(gradient_steps):
            self._poll()
            self._sums += self.gradient_step(self._draw(batch_size), step)
        self._summed += gradient_steps
        self._n_updates += gradient_steps

    @abstractmethod
    def gradient_step(self, batch: Transitions, step: int) -> torch.Tensor:
        """One step of all networks on `batch`, number `step` of this call of `train`; the row of `figures`."""

    def _draw(self, batch_size: int) -> Transitions:
        """A batch as the networks see it, normalised by the present statistics."""
        batch, see = self.replay_buffer.sample(batch_size), self.as_actor().see
        rewards = batch.rewards if self.normalizer is None else self.normalizer.scale_reward(batch.rewards)
        obs, next_obs = see(batch.obs), see(batch.next_obs)
        if self.random_shift:
            obs, next_obs = (random_shift(seen, self.random_shift) for seen in (obs, next_obs))
        return Transitions(obs, batch.actions, rewards, next_obs, batch.terminated)

    def _log_update(self) -> None:
        """Means since the last row."""
        if not self._summed:
            return
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, total in zip(self.figures, self._sums.tolist(), strict=True):
            self.logger.record(f"train/{name}", total / self._summed)
        self.logger.record("train/learning_rate", self.lr_schedule(self._current_progress_remaining))
        self._sums.zero_()
        self._summed = 0

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def replay_capacity(self) -> int:
        """Rows that the replay holds at most."""
        return self.replay_buffer.capacity

    @property
    def replay_first(self) -> int:
        """The oldest row in the replay."""
        return max(self.replay_buffer.first, self.replay_written - self.replay_capacity)

    @property
    def replay_written(self) -> int:
        """Rows ever added. One row is one step of all envs."""
        return self.replay_buffer.written

    def replay_rows(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Copies of rows `start` to `stop`, counted from the run's first: column -> (stop - start, n_envs, ...)."""
        return self.replay_buffer.rows(start, stop)

    def load_replay(self, rows: dict[str, torch.Tensor], start_row: int) -> None:
        """Put back `rows`, the first of which is number `start_row`; after `load_state`, which says how many count."""
        self.replay_buffer.load(rows, start_row)

    def forget_replay(self) -> None:
        """Go on without the data that could not be put back; after `load_state`."""
        self.replay_buffer.forget()

    def load_state(self, state: State) -> bool:
        same_envs = super().load_state(state)
        if same_envs and self.tensor_env.snapshots:
            assert self._last_obs is not None
            self.replay_buffer.go_on(self._last_obs)
        else:
            self.replay_buffer.note_reset()
        return same_envs

    def components(self) -> dict[str, Component]:
        return {**super().components(), "trainer": ReplayCounters(self)}

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        trained = {id(p) for group in self.critic.optimizer.param_groups for p in group["params"]}
        critic: dict[str, Any] = {name: p for name, p in self.critic.named_parameters() if id(p) in trained}
        return {
            "actor": (self.actor.optimizer, dict(self.actor.named_parameters())),
            "critic": (self.critic.optimizer, critic),
        }

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_sums", "_summed"]


class ReplayCounters(Counters):
    """Also which rows the replay holds, and sums for the next row of metrics."""

    trainer: OffPolicyTrainer

    def state(self) -> Values:
        own = self.trainer
        sums = {"figure_sums": own._sums.cpu().clone(), "figures_summed": own._summed}
        lost = {"replay_first": own.replay_buffer.first} if own.replay_buffer.first else {}
        cuts = {"replay_breaks": list(own.replay_buffer.breaks)} if own.replay_buffer.breaks else {}
        return {**super().state(), "replay_written": own.replay_written, **lost, **cuts, **sums}

    def load_state(self, state: Values) -> None:
        super().load_state(state)
        own = self.trainer
        own.replay_buffer.written = int(state["replay_written"])
        own.replay_buffer.first = int(state.get("replay_first", 0))
        own.replay_buffer.breaks = [int(row) for row in state.get("replay_breaks", [])]
        own._sums.copy_(state["figure_sums"][: len(own._sums)])
        own._summed = int(state["figures_summed"])


def keep_ratio(hyper: Row, n_envs: int, row: Row, asked: Mapping[str, Any]) -> Row:
    """As many gradient steps for each env step as the row has, whatever the number of envs: what is learnt depends on
    that. SAC on Reach, 60,000 steps, mean return of three seeds: 4.10 with 8 envs, 4.14 with 16, 4.17 with 32."""
    steps = int(row.get("gradient_steps", -1))
    if steps < 0 or {"train_freq", "gradient_steps"} & set(asked):
        return hyper
    return {**hyper, "gradient_steps": max(1, round(steps * n_envs / int(row.get("n_envs", n_envs))))}


def smallest(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """min_i Q_i (B,) of critics' values (B, 1) each."""
    return torch.cat(values, dim=1).min(1).values


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> torch.Tensor:
    """One step of `optimizer` down `loss`, which is returned detached."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
