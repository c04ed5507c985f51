"""Twin delayed deep deterministic policy gradient (TD3; Fujimoto et al., 2018), as in SB3."""

from __future__ import annotations

from typing import Any, cast

import stable_baselines3 as sb3
import torch
from stable_baselines3.td3.policies import TD3Policy
from torch.nn import functional as F

from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.encoders.asymmetric import AsymmetricTD3
from kit.envs.obs import Obs
from kit.trainers.algorithm import Algorithm
from kit.trainers.off_policy import RECORD, OffPolicyTrainer, descend, min_q, polyak_update
from kit.trainers.replay import Transitions


class TD3(OffPolicyTrainer, sb3.TD3):
    """SB3's TD3 with a tensor replay buffer.

    :param exploration_noise: standard deviation of the Gaussian noise on actions in [-1, 1] while collecting; usual:
        0.05 to 0.3
    :param policy_delay: gradient steps of the critics per gradient step of the policy; usual: 1 to 3
    :param target_policy_noise: standard deviation of the noise on the target policy's actions; usual: 0.1 to 0.3
    :param target_noise_clip: largest absolute value of that noise; usual: 0.3 to 0.5
    """

    policy_aliases = {**sb3.TD3.policy_aliases, ASYMMETRIC: AsymmetricTD3}  # noqa: RUF012
    metric_names = ("actor_loss", "critic_loss")

    def __init__(self, *args: Any, exploration_noise: float = 0.1, **kwargs: Any) -> None:
        self.exploration_noise = exploration_noise
        super().__init__(*args, **kwargs)

    def explore(self, obs: Obs) -> torch.Tensor:
        """a = clip(μ(s) + σ ε, -1, 1),   ε ~ N(0, 1)"""
        actions = self.actor(cast(torch.Tensor, obs))
        return (actions + self.exploration_noise * torch.randn_like(actions)).clamp(-1.0, 1.0)

    def critic_loss(self, batch: Transitions) -> torch.Tensor:
        """L_Q = Σ_i E[(Q_i(s, a) - y)²],   y = r + γ (1 - d) min_i Q'_i(s', clip(μ'(s') + clip(σ' ε, -c, c), -1, 1))"""
        obs, next_obs = cast(torch.Tensor, batch.obs), cast(torch.Tensor, batch.next_obs)
        with torch.no_grad():
            noise = torch.empty_like(batch.actions).normal_(0, self.target_policy_noise)
            noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
            next_actions = (self.actor_target(next_obs) + noise).clamp(-1.0, 1.0)
            next_q = min_q(self.critic_target(next_obs, next_actions))
            target = batch.rewards + self.gamma * (~batch.terminated) * next_q
        return torch.stack([F.mse_loss(q.squeeze(1), target) for q in self.critic(obs, batch.actions)]).sum()

    def actor_loss(self, batch: Transitions) -> torch.Tensor:
        """L_μ = -E[Q_1(s, μ(s))]"""
        obs = cast(torch.Tensor, batch.obs)
        return -self.critic.q1_forward(obs, self.actor(obs)).mean()

    def gradient_step(self, batch: Transitions, step: int) -> torch.Tensor:
        """Update the critics at every step, the actor and all target networks at every `policy_delay`-th."""
        critic_loss = descend(self.critic.optimizer, self.critic_loss(batch))
        actor_loss = torch.zeros_like(critic_loss)
        if (self._n_updates + step + 1) % self.policy_delay == 0:
            # times policy_delay, because the log divides by the number of all steps, also those without actor update
            actor_loss = self.policy_delay * descend(self.actor.optimizer, self.actor_loss(batch))
            polyak_update(self.critic, self.critic_target, self.tau)
            polyak_update(self.actor, self.actor_target, self.tau)
        return torch.stack([actor_loss, critic_loss])


ALGORITHM = Algorithm(
    "TD3", TD3, sb3.TD3, TD3Policy,
    own={"random_shift": int, "n_sampled_goal": int, "random_share": float, "exploration_noise": float},
    **RECORD,
)  # fmt: skip
