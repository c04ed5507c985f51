"""Soft actor-critic (Haarnoja et al., 2018), as in SB3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback, RolloutReturn, TrainFreq
from stable_baselines3.common.utils import should_collect_more_steps
from stable_baselines3.sac.policies import SACPolicy
from torch.nn import functional as F

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric import AsymmetricSAC
from kit.encoders.frozen import FrozenView
from kit.envs.obs import Obs, tree_map
from kit.errors import UserError
from kit.presets import Row
from kit.trainers.algorithm import Algorithm
from kit.trainers.base import TensorTrainer, tensor_env_of
from kit.trainers.clips import stacks_of_pictures
from kit.trainers.fast.stacked_sac import StackedSAC, can_stack
from kit.trainers.on_policy import READ_EVERY, LazyInfos
from kit.trainers.replay import Replay, Transitions
from kit.trainers.saving import Counters, Part, State, Values
from kit.trainers.shifting import random_shift


class SAC(TensorTrainer, sb3.SAC):
    """SB3's SAC on tensors. Replay data is not part of `state()`: see `replay_rows` and `load_replay`."""

    policy_aliases = {**sb3.SAC.policy_aliases, ASYMMETRIC: AsymmetricSAC}  # noqa: RUF012
    replay_buffer: Replay  # type: ignore[assignment]

    def __init__(self, *args: Any, random_shift: int = 4, **kwargs: Any) -> None:
        """`random_shift`: pixels by which pictures are moved at random before they are learnt from; 0 leaves them."""
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
                inside, kept = tensor_env_of(self.env), self.observation_space
                kept = kept if isinstance(self.env.unwrapped.view, FrozenView) else inside.observation_space
                frames = stacks_of_pictures(kept, inside.frames)
            self.replay_buffer = Replay(rows, self.n_envs, self.device, frames)
        self._sums = torch.zeros(len(FIGURES), device=self.device)
        self._summed = 0
        super()._setup_model()
        self._stacked = StackedSAC(self) if can_stack(self) else None

    # -- the loop --------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1000,
        tb_log_name: str = "SAC",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train until `total_timesteps` env steps are done. A row of metrics comes each time another `log_interval`
        env steps (SB3 counts episodes) have passed, on a GPU no oftener than every fourth iteration, and at the end."""
        if self.device.type != "cpu":
            log_interval = max(log_interval, READ_EVERY * self.n_envs)
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
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
        """Step the worlds `train_freq` times (or until so many episodes end) and put what happens into the replay."""
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
            self._last_obs = self._keep(self._last_obs)
            obs = tree_map(torch.clone, self._last_obs)
            scaled = self._explore()
            new_obs, reward, terminated, truncated, info = self.tensor_env.step(self.as_actor().unscale(scaled))
            done, new_obs = terminated | truncated, self._keep(new_obs)
            followed = new_obs if frozen and not done.any() else self._keep(info["final_obs"])
            self.replay_buffer.add(obs, scaled, reward, followed, terminated, done)
            if self.normalizer is not None:
                self.normalizer.update(self.as_actor().view(new_obs))
                self.normalizer.reward(reward, done)
            self._last_obs = new_obs
            self.num_timesteps += self.n_envs
            steps += 1
            if (not by_episode and self.device.type != "cpu") or done.any():  # a GPU is not asked for nothing
                episodes += by_episode
                self._record_episodes(done, info["episode_return"], info["episode_length"], info.get("success"))
            infos, rewards, dones = LazyInfos(info, done, truncated), reward, done
            callback.update_locals(locals())
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            if not callback.on_step():
                return RolloutReturn(steps * self.n_envs, episodes, continue_training=False)
        callback.on_rollout_end()
        return RolloutReturn(steps * self.n_envs, episodes, continue_training=True)

    def _keep(self, obs: Obs) -> Obs:
        """What of `obs` is worth keeping: of pictures that an encoder has seen which never changes, what it saw."""
        view = self.as_actor().view
        return view(obs) if isinstance(view, FrozenView) else obs

    def _has_seen_enough(self) -> bool:
        """Whether to learn yet; where the replay was lost it must fill again first."""
        there = len(self.replay_buffer) * self.n_envs if self.replay_buffer.first else self.num_timesteps
        return there > self.learning_starts

    def _explore(self) -> torch.Tensor:
        """Actions (n, act) in [-1, 1]: uniform until learning starts, the policy's afterwards."""
        assert self._last_obs is not None
        if self.num_timesteps < self.learning_starts and not (self.use_sde and self.use_sde_at_warmup):
            shape = (self.n_envs, *self.action_space.shape)  # type: ignore[misc]
            return torch.rand(shape, device=self.device) * 2.0 - 1.0
        with torch.no_grad():
            return self.actor(self.as_actor().see(self._last_obs))

    # -- the update ------------------------------------------------------------------------------------------------

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """`gradient_steps` steps of critics, actor and temperature, each on a fresh batch."""
        self.policy.set_training_mode(True)
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        if self.ent_coef_optimizer is not None:
            optimizers.append(self.ent_coef_optimizer)
        self._update_learning_rate(optimizers)
        if self._stacked is not None:
            self._stacked.attach()
        for step in range(gradient_steps):
            self._poll()
            self._sums += self._gradient_step(self._draw(batch_size), polyak=step % self.target_update_interval == 0)
        self._summed += gradient_steps
        self._n_updates += gradient_steps

    def _draw(self, batch_size: int) -> Transitions:
        """A batch as the networks see it: normalised by what is known now."""
        batch, see = self.replay_buffer.sample(batch_size), self.as_actor().see
        rewards = batch.rewards if self.normalizer is None else self.normalizer.scale_reward(batch.rewards)
        obs, next_obs = see(batch.obs), see(batch.next_obs)
        if self.random_shift:
            obs, next_obs = (random_shift(seen, self.random_shift) for seen in (obs, next_obs))
        return Transitions(obs, batch.actions, rewards, next_obs, batch.terminated)

    def _gradient_step(self, batch: Transitions, polyak: bool) -> torch.Tensor:
        """One step of everything; returns the row of `FIGURES`."""
        if self._stacked is not None:
            return self._stacked.step(batch, polyak)
        if self.use_sde:
            self.actor.reset_noise()
        actions, log_prob = self.actor.action_log_prob(cast(torch.Tensor, batch.obs))
        ent_coef, ent_coef_loss = self._temperature_step(log_prob)

        with torch.no_grad():  # y = r + γ (1 - d) (min_i Q'_i(s', a') - α log π(a' | s'))
            next_actions, next_log_prob = self.actor.action_log_prob(cast(torch.Tensor, batch.next_obs))
            next_qs = self.critic_target(cast(torch.Tensor, batch.next_obs), next_actions)
            next_q = torch.cat(next_qs, dim=1).min(1).values
            target = batch.rewards + self.gamma * (~batch.terminated) * (next_q - ent_coef * next_log_prob)
        current = self.critic(cast(torch.Tensor, batch.obs), batch.actions)
        critic_loss = 0.5 * sum(F.mse_loss(q.squeeze(1), target) for q in current)
        assert isinstance(critic_loss, torch.Tensor)
        self.critic.optimizer.zero_grad()
        critic_loss.backward()
        self.critic.optimizer.step()

        q_pi = torch.cat(self.critic(cast(torch.Tensor, batch.obs), actions), dim=1).min(1).values
        actor_loss = (ent_coef * log_prob - q_pi).mean()
        self.actor.optimizer.zero_grad()
        actor_loss.backward()
        self.actor.optimizer.step()

        if polyak:
            self._move_targets()
        return torch.stack([ent_coef, actor_loss, critic_loss, ent_coef_loss]).detach()

    def _temperature_step(self, log_prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The temperature α that this step uses, and its loss; moves it if it is learnt."""
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            return self.ent_coef_tensor, torch.zeros_like(self.ent_coef_tensor)
        ent_coef = self.log_ent_coef.detach().exp().squeeze(0)
        loss = -(self.log_ent_coef * (log_prob + float(self.target_entropy)).detach()).mean()
        self.ent_coef_optimizer.zero_grad()
        loss.backward()
        self.ent_coef_optimizer.step()
        return ent_coef, loss.detach()

    def _move_targets(self) -> None:
        """θ' ← θ' + τ (θ - θ'); running statistics are copied."""
        with torch.no_grad():
            torch._foreach_lerp_(list(self.critic_target.parameters()), list(self.critic.parameters()), self.tau)
            for target, source in zip(self.batch_norm_stats_target, self.batch_norm_stats, strict=True):
                target.copy_(source)

    def _log_update(self) -> None:
        """Means since the last row."""
        if not self._summed:
            return
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, total in zip(FIGURES, self._sums.tolist(), strict=True):
            if name != "ent_coef_loss" or self.ent_coef_optimizer is not None:
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
        """The oldest row that is there."""
        return max(self.replay_buffer.first, self.replay_written - self.replay_capacity)

    @property
    def replay_written(self) -> int:
        """Rows ever added. One row is one step of all worlds."""
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
        same_worlds = super().load_state(state)
        if same_worlds and self.tensor_env.snapshots:
            assert self._last_obs is not None
            self.replay_buffer.go_on(self._last_obs)
        else:
            self.replay_buffer.begin_anew()
        return same_worlds

    def begin_with(self, state: State) -> None:
        super().begin_with(state)
        learnt = state.get("trainer", {}).get("log_ent_coef")
        if self.log_ent_coef is not None and learnt is not None:
            self.log_ent_coef.data.copy_(learnt)

    def parts(self) -> dict[str, Part]:
        return {**super().parts(), "trainer": _OffPolicyCounters(self)}

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        learnt = {id(p) for group in self.critic.optimizer.param_groups for p in group["params"]}
        critic: dict[str, Any] = {name: p for name, p in self.critic.named_parameters() if id(p) in learnt}
        optimizers: dict[str, Any] = {
            "actor": (self.actor.optimizer, dict(self.actor.named_parameters())),
            "critic": (self.critic.optimizer, critic),
        }
        if self.ent_coef_optimizer is not None:
            optimizers["ent_coef"] = (self.ent_coef_optimizer, {"log_ent_coef": self.log_ent_coef})
        return optimizers

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_sums", "_summed", "_stacked"]


class _OffPolicyCounters(Counters):
    """Also what the replay holds, the temperature, and sums for the next row of metrics."""

    trainer: SAC

    def state(self) -> Values:
        own = self.trainer
        learnt = {} if own.log_ent_coef is None else {"log_ent_coef": own.log_ent_coef.detach().cpu().clone()}
        sums = {"figure_sums": own._sums.cpu().clone(), "figures_summed": own._summed}
        lost = {"replay_first": own.replay_buffer.first} if own.replay_buffer.first else {}
        cuts = {"replay_breaks": list(own.replay_buffer.breaks)} if own.replay_buffer.breaks else {}
        return {**super().state(), "replay_written": own.replay_written, **lost, **cuts, **sums, **learnt}

    def load_state(self, state: Values) -> None:
        super().load_state(state)
        own = self.trainer
        own.replay_buffer.written = int(state["replay_written"])
        own.replay_buffer.first = int(state.get("replay_first", 0))
        own.replay_buffer.breaks = [int(row) for row in state.get("replay_breaks", [])]
        own._sums.copy_(state["figure_sums"])
        own._summed = int(state["figures_summed"])
        if own.log_ent_coef is not None:
            own.log_ent_coef.data.copy_(state["log_ent_coef"])


FIGURES = ("ent_coef", "actor_loss", "critic_loss", "ent_coef_loss")


def _keep_ratio(hyper: Row, n_envs: int, row: Row, asked: Mapping[str, Any]) -> Row:
    """As many gradient steps for each env step as the row's, whatever the number of worlds: what SAC learns hangs on
    that. Reach, 60,000 steps, mean return of three seeds: 4.10 with 8 worlds, 4.14 with 16, 4.17 with 32."""
    steps = int(row.get("gradient_steps", -1))
    if steps < 0 or {"train_freq", "gradient_steps"} & set(asked):
        return hyper
    return {**hyper, "gradient_steps": max(1, round(steps * n_envs / int(row.get("n_envs", n_envs))))}


ALGORITHM = Algorithm(
    "SAC", SAC, sb3.SAC, SACPolicy,
    actions=(spaces.Box,),
    row={"n_envs": 4, "gradient_steps": -1},  # SB3's ratio with one world: a gradient step for each env step
    stock_row={"n_envs": 1},
    columns=("batch_size", "net_arch"),
    heads=("pi", "qf"),
    rule=_keep_ratio,
    imported=("batch_size", "buffer_size", "learning_starts", "tau", "gamma", "gradient_steps"),
    fewer_worlds=False,
    own={"random_shift": int},
    memory_remedy="buffer_size, n_envs or network",
)  # fmt: skip
