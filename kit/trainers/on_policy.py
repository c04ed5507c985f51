"""On-policy training loop shared by PPO, RecurrentPPO and A2C: collect, compute returns, update, log."""

from __future__ import annotations

from typing import Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from kit.envs.obs import Obs
from kit.envs.sb3 import LazyInfos
from kit.trainers.base import READ_EVERY, TensorTrainer
from kit.trainers.clips import image_stacks
from kit.trainers.fast.stacked import StackedActorCritic, can_stack
from kit.trainers.networks import Networks
from kit.trainers.rollout import Rollout


class OnPolicyTrainer(TensorTrainer, OnPolicyAlgorithm):
    """SB3's `OnPolicyAlgorithm` with tensor rollouts. A subclass implements `train` and usually `loss`.

    :param n_steps: steps of each env between two updates; n_envs × n_steps is the rollout. Usual for PPO: rollouts of
        1,000 to 20,000 steps
    :param gae_lambda: λ of generalized advantage estimation (GAE), from 0 to 1: how far advantages rely on the
        rewards that followed (1) rather than on the value function's prediction (0); usual: 0.9 to 0.98
    :param vf_coef: weight of the value function's loss; usual: 0.5
    :param max_grad_norm: gradient clipping: a gradient with a larger norm is scaled down to this norm; usual: 0.5 to 1
    :param normalize_advantage: scale the advantages of each minibatch to mean 0 and standard deviation 1
    """

    rollout_buffer: Rollout  # type: ignore[assignment]
    default_log_interval = 1
    freeze_encoder = False
    """Whether the image encoder keeps its weights. Rollouts then store its features in place of the images."""

    def _setup_model(self) -> None:
        super()._setup_model()
        frames = None
        if self.freeze_encoder:
            self.policy.features_extractor.requires_grad_(False)
        elif self.env is not None:
            frames = image_stacks(self.observation_space, self.as_actor().view.frames(self.tensor_env.frames))
        self.rollout_buffer = Rollout(self.n_steps, self.n_envs, self.device, frames)
        self.networks = self._networks()

    def _networks(self) -> Networks:
        return StackedActorCritic(self.policy) if can_stack(self.policy) else Networks(self.policy)

    def _preprocess(self, obs: Obs) -> Obs:
        """Return the policy's inputs for the env's `obs`, with a frozen encoder's features in place of the images."""
        policy_obs: Any = self.as_actor().preprocess(obs)
        if not self.freeze_encoder:
            return policy_obs
        encoder: Any = self.policy.features_extractor
        return encoder.with_features(policy_obs, BasePolicy.extract_features(self.policy, policy_obs, encoder))

    # -- the loop --------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = None,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train until `total_timesteps` env steps are done.

        Metrics are logged every `log_interval` iterations and at the end. The default is 1, for A2C 10, but
        at least 4 on a GPU.
        """
        log_interval = log_interval or max(self.default_log_interval, 1 if self.device.type == "cpu" else READ_EVERY)
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            assert self.env is not None
            if not self.collect_rollouts(self.env, callback, self.rollout_buffer, self.n_steps):
                break
            self._compute_returns()
            self.iteration += 1
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            self._log_now = self.iteration % log_interval == 0 or self.num_timesteps >= total_timesteps
            if self._log_now or self.device.type == "cpu":  # on a GPU, reading it synchronises
                # a value is NaN if an observation is
                self._check_finite(torch.stack([self.rollout_buffer.rewards, self.rollout_buffer.values]))
            self.train()
            if self._log_now:
                self._log_episodes()
                self.dump_logs(self.iteration)
            self._boundary()
        callback.on_training_end()
        return self

    def collect_rollouts(  # type: ignore[override]
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: Rollout, n_rollout_steps: int
    ) -> bool:
        """Fill `rollout_buffer` with `n_rollout_steps` steps of every env; return False if the callback stops it."""
        rollout, actor, normalizer = rollout_buffer, self.as_actor(), self.normalizer
        on_cpu, has_success = self.device.type == "cpu", False
        self.policy.set_training_mode(False)
        rollout.begin()
        self.reward_terms.clear()
        if self.use_sde:
            self.policy.reset_noise(self.n_envs)
        callback.on_rollout_start()
        assert self._last_obs is not None
        with torch.no_grad():
            self.networks.begin(rollout)
            for step in range(n_rollout_steps):
                self._poll()
                if self.use_sde and self.sde_sample_freq > 0 and step % self.sde_sample_freq == 0:
                    self.policy.reset_noise(self.n_envs)
                obs = rollout.store_obs(step, self._preprocess(self._last_obs))
                actions = self.networks.sample(rollout, step, obs)
                new_obs, reward, terminated, truncated, info = self.tensor_env.step(actor.to_env(actions))
                done = terminated | truncated
                self.reward_terms.add(info)
                rollout.done[step] = done
                rollout.episode_return[step] = info["episode_return"]
                rollout.episode_length[step] = info["episode_length"]
                if "success" in info:
                    rollout.success[step], has_success = info["success"], True
                if normalizer is not None:
                    normalizer.update(actor.view(new_obs))
                    reward = normalizer.reward(reward, done)
                rollout.rewards[step] = reward
                if not on_cpu or truncated.any():  # always on a GPU, where `any` would synchronise, which costs more
                    final_obs = self.networks.with_hidden_state(self._preprocess(info["final_obs"]))
                    rollout.store_truncated(step, truncated & ~terminated, final_obs, self.tensor_env.done_envs)
                self._last_obs = new_obs
                self.num_timesteps += self.n_envs
                infos = LazyInfos(info, done, truncated)
                callback.update_locals({**locals(), "rewards": reward, "dones": done})
                if not callback.on_step():
                    return False
            self.networks.finish(rollout)
        self._record_episodes(
            rollout.done, rollout.episode_return, rollout.episode_length, rollout.success if has_success else None
        )
        callback.on_rollout_end()
        return True

    def _compute_returns(self) -> None:
        assert self._last_obs is not None
        with torch.no_grad():
            self.rollout_buffer.bootstrap(self.networks.values, self.gamma)
            last_obs = self._preprocess(self._last_obs)
            last_values = self.networks.values(self.networks.with_hidden_state(last_obs))
            self.rollout_buffer.finish(last_values, self.gamma, self.gae_lambda)

    def _permutation(self, n: int) -> torch.Tensor:
        """Return the order (n,) in which an epoch visits the rollout's rows."""
        return torch.randperm(n, device=self.device)

    def _explained_variance(self) -> float:
        """Return 1 - Var(returns - values) / Var(returns); NaN if all returns are equal."""
        returns, values = self.rollout_buffer.returns, self.rollout_buffer.values
        variance = returns.var(correction=0).item()
        return float("nan") if variance == 0 else 1.0 - (returns - values).var(correction=0).item() / variance

    # -- state -----------------------------------------------------------------------------------------------------

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        return {"policy": (self.policy.optimizer, dict(self.policy.named_parameters()))}

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_log_now", "networks"]
