"""Single-file PPO in the style of CleanRL: a contender of `ppo.py`.

Gymnasium's `SyncVectorEnv` with numpy arrays, two MLPs under autograd, minibatches gathered by index, Adam. All
contenders do the same work: hyperparameters are SB3's, and observations and rewards are not normalised.
"""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Normal

LEARNING_RATE = 3e-4
GAMMA = 0.99
LAMBDA = 0.95
CLIP = 0.2
VALUE_COEF = 0.5
MAX_GRAD_NORM = 0.5


class Agent(nn.Module):
    """Gaussian policy and value function in two separate MLPs."""

    def __init__(self, num_obs: int, num_actions: int, widths: list[int]) -> None:
        super().__init__()
        self.value = perceptron([num_obs, *widths, 1], last_gain=1.0)
        self.mean = perceptron([num_obs, *widths, num_actions], last_gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def forward(
        self, obs: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (action, log-probability of the action, value); sample the action unless it is given."""
        mean = self.mean(obs)
        policy = Normal(mean, self.log_std.expand_as(mean).exp())
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action).sum(1), self.value(obs).flatten()


def perceptron(widths: list[int], last_gain: float) -> nn.Sequential:
    """Make an MLP with tanh activations and orthogonal initial weights."""
    layers: list[nn.Module] = []
    for i, (rows, columns) in enumerate(itertools.pairwise(widths)):
        linear = nn.Linear(rows, columns)
        last = i == len(widths) - 2
        nn.init.orthogonal_(linear.weight, last_gain if last else 2**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)


class PPO:
    """PPO on `n_envs` envs; `learn(steps)` trains for `steps` more env steps, summed over all envs."""

    def __init__(self, env_id: str, n_envs: int, n_steps: int, batch: int, epochs: int, widths: list[int]) -> None:
        self.n_steps, self.batch, self.epochs = n_steps, batch, epochs

        def make() -> gymnasium.Env:
            return gymnasium.wrappers.ClipAction(gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(env_id)))

        self.envs = SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        num_obs, num_actions = (int(np.prod(space.shape)) for space in (
            self.envs.single_observation_space, self.envs.single_action_space))  # fmt: skip
        self.agent = Agent(num_obs, num_actions, widths)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
        self.obs = torch.zeros(n_steps, n_envs, num_obs)
        self.actions = torch.zeros(n_steps, n_envs, num_actions)
        self.log_probs, self.rewards, self.dones, self.values = torch.zeros(4, n_steps, n_envs)
        self.next_obs = torch.as_tensor(self.envs.reset(seed=0)[0], dtype=torch.float32)
        self.next_done = torch.zeros(n_envs)

    def learn(self, steps: int) -> None:
        for _ in range(steps // self.rewards.numel()):
            self._collect()
            self._update(self._advantages())

    def _collect(self) -> None:
        for step in range(self.n_steps):
            self.obs[step], self.dones[step] = self.next_obs, self.next_done
            with torch.no_grad():
                action, self.log_probs[step], self.values[step] = self.agent(self.next_obs)
            self.actions[step] = action
            obs, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            self.rewards[step] = torch.as_tensor(reward)
            self.next_obs = torch.as_tensor(obs, dtype=torch.float32)
            self.next_done = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)

    def _advantages(self) -> torch.Tensor:
        """Generalised advantage estimates (n_steps, n_envs)."""
        with torch.no_grad():
            next_value, alive = self.agent.value(self.next_obs).flatten(), 1 - self.next_done
        advantages, carried = torch.zeros_like(self.rewards), torch.zeros_like(next_value)
        for step in reversed(range(self.n_steps)):
            delta = self.rewards[step] + GAMMA * next_value * alive - self.values[step]
            carried = advantages[step] = delta + GAMMA * LAMBDA * alive * carried
            next_value, alive = self.values[step], 1 - self.dones[step]
        return advantages

    def _update(self, advantages_: torch.Tensor) -> None:
        obs, actions = self.obs.flatten(0, 1), self.actions.flatten(0, 1)
        log_probs, advantages = self.log_probs.flatten(), advantages_.flatten()
        returns = advantages + self.values.flatten()
        order = np.arange(len(obs))
        for _ in range(self.epochs):
            np.random.shuffle(order)
            for start in range(0, len(obs), self.batch):
                rows = order[start : start + self.batch]
                _, log_prob, value = self.agent(obs[rows], actions[rows])
                log_ratio = log_prob - log_probs[rows]
                ratio = log_ratio.exp()
                with torch.no_grad():  # approximate KL and clip fraction, which CleanRL logs
                    ((ratio - 1) - log_ratio).mean()
                    ((ratio - 1).abs() > CLIP).float().mean().item()
                advantage = advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
                value_loss = 0.5 * (value - returns[rows]).square().mean()
                loss = policy_loss + 2 * VALUE_COEF * value_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), MAX_GRAD_NORM)
                self.optimizer.step()
