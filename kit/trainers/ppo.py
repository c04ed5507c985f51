"""Proximal policy optimisation (Schulman et al., 2017), as in SB3."""

from __future__ import annotations

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from torch.nn import functional as F

from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.rollout import Batch


class PPO(OnPolicyTrainer, sb3.PPO):
    """SB3's PPO on tensors."""

    def train(self) -> None:
        """Several epochs of minibatches over the rollout."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)  # type: ignore[operator]
        clip_range_vf = None
        if self.clip_range_vf is not None:
            clip_range_vf = self.clip_range_vf(self._current_progress_remaining)  # type: ignore[operator]
        rollout = self.rollout_buffer.batch()
        stats: list[torch.Tensor] = []
        going_on = True
        for _ in range(self.n_epochs):
            shuffled = rollout.take(self._permutation(len(rollout)))  # one gather for the whole epoch
            epoch_start = len(stats)
            for batch in shuffled.split(self.batch_size):
                self._poll()
                loss, stat = self._loss(batch, clip_range, clip_range_vf)
                stats.append(stat)
                if self.target_kl is not None and stat[KL].item() > 1.5 * self.target_kl:
                    going_on = False
                    break
                self.policy.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                self.policy.optimizer.step()
            self._n_updates += 1
            if not going_on:
                break
        if self._log_now:
            self._log_update(torch.stack(stats), epoch_start, clip_range, clip_range_vf)

    def _loss(
        self, batch: Batch, clip_range: float, clip_range_vf: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of one minibatch, and the row of figures to log (see the constants below)."""
        actions = batch.actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else batch.actions
        values, log_prob, entropy = self.policy.evaluate_actions(batch.obs, actions)  # type: ignore[arg-type]
        values = values.flatten()
        advantages = batch.advantages
        if self.normalize_advantage and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = log_prob - batch.log_probs
        ratio = log_ratio.exp()
        # L = -E[min(r A, clip(r, 1-ε, 1+ε) A)] + c_v E[(R - V)²] - c_e H
        clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        if clip_range_vf is not None:
            values = batch.values + (values - batch.values).clamp(-clip_range_vf, clip_range_vf)
        value_loss = F.mse_loss(batch.returns, values)
        entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        with torch.no_grad():
            clip_fraction = ((ratio - 1).abs() > clip_range).float().mean()
            kl = (ratio - 1 - log_ratio).mean()
            row = torch.stack([policy_loss, value_loss, entropy_loss, loss, clip_fraction, kl])
        return loss, row

    def _log_update(
        self, stats: torch.Tensor, last_epoch: int, clip_range: float, clip_range_vf: float | None
    ) -> None:
        """`stats` (minibatches, 6): read from the device once."""
        means = stats.mean(0).tolist()
        record = self.logger.record
        record("train/entropy_loss", means[ENTROPY])
        record("train/policy_gradient_loss", means[POLICY])
        record("train/value_loss", means[VALUE])
        record("train/approx_kl", stats[last_epoch:, KL].mean().item())
        record("train/clip_fraction", means[CLIPPED])
        record("train/loss", stats[-1, LOSS].item())
        record("train/explained_variance", self._explained_variance())
        if hasattr(self.policy, "log_std"):
            record("train/std", self.policy.log_std.exp().mean().item())
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            record("train/clip_range_vf", clip_range_vf)


POLICY, VALUE, ENTROPY, LOSS, CLIPPED, KL = range(6)
