"""Proximal policy optimisation (Schulman et al., 2017), as in SB3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy

from kit.encoders.asymmetric import CRITICS, AsymmetricActorCritic
from kit.encoders.asymmetric import NAME as ASYMMETRIC
from kit.envs.mirror import Mirror
from kit.envs.obs import from_leaves, leaves
from kit.errors import UserError
from kit.presets import Row
from kit.trainers.algorithm import Algorithm, largest_batch
from kit.trainers.fast import derivatives
from kit.trainers.fast.derivatives import closed_form
from kit.trainers.networks import Evaluated
from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.rollout import Batch
from kit.trainers.saving import State, Values, held


class ProximalTrainer(OnPolicyTrainer):
    """PPO's clipped-surrogate update, shared by PPO and RecurrentPPO.

    :param n_epochs: passes over each rollout; usual: 3 to 15. More: fewer env steps are needed, but each update changes
        the policy more
    :param clip_range: how far the probability of an action may change in one update, as a fraction; usual: 0.1 to 0.3.
        lin_0.2 falls to 0 during the run
    :param clip_range_vf: how far the value function's prediction may change in one update; usual: none (no limit), or
        0.2 to 10
    :param target_kl: end an update once the policy has changed by 1.5 times this KL divergence; usual: 0.01 to 0.03;
        none: no limit
    """

    batch_size: int
    n_epochs: int
    normalize_advantage: bool
    target_kl: float | None
    clip_range: Any
    clip_range_vf: Any
    critic_warmup = 0

    def train(self) -> None:
        """Run `n_epochs` epochs of minibatch updates over the rollout."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        self.networks.attach()
        progress = self._current_progress_remaining
        clip = [self.clip_range(progress)]
        if self.clip_range_vf is not None:
            clip.append(self.clip_range_vf(progress))
        rollout, metrics, kl = self._samples(), [], None
        fixed = self._fixed()
        for _ in range(self.n_epochs):
            shuffled = rollout.take(self._permutation(len(rollout)))  # one gather for the whole epoch
            if self.normalize_advantage:
                shuffled = replace(shuffled, advantages=self._normalized(shuffled.advantages))
            evaluated: list[Evaluated] = []
            for batch in shuffled.split(self.batch_size):
                self._poll()
                evaluated.append(self._gradient(batch, *clip))
                if self.target_kl is not None:
                    kl = self._kl(evaluated[-1].log_prob - batch.log_probs)
                    if kl > 1.5 * self.target_kl:
                        break
                with held(fixed):
                    self.networks.step(self.max_grad_norm)
            self._n_updates += 1
            if self._log_now:
                metrics.append(self._metrics(shuffled, evaluated, *clip))
            if kl is not None and self.target_kl is not None and kl > 1.5 * self.target_kl:
                break
        if self._log_now:
            self._log_update(metrics, *clip)

    def _samples(self) -> Batch:
        """Return the transitions to learn from."""
        return self.rollout_buffer.batch()

    def _fixed(self) -> list[torch.Tensor]:
        """Return the weights that this update does not change: during `critic_warmup` all but the critic's."""
        if self.num_timesteps > self.critic_warmup:
            return []
        return [p for name, p in self.policy.named_parameters() if not name.startswith(CRITICS)]

    @closed_form(derivatives.ppo)
    def loss(self, new: Evaluated, batch: Batch, clip_range: Any, clip_range_vf: Any = None) -> torch.Tensor:
        """L = -E[min(r A, clip(r, 1-ε, 1+ε) A)] + c_v E[(R - V)²] - c_e H,   r = π(a|s) / π_old(a|s)"""
        ratio = (new.log_prob - batch.log_probs).exp()
        clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(ratio * batch.advantages, clipped * batch.advantages).mean()
        values = clip_values(new.values, batch.values, clip_range_vf)
        value_loss = (batch.returns - values).square().mean()
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * new.entropy

    def _gradient(self, batch: Batch, *clip: float) -> Evaluated:
        return self.networks.gradient(self.loss, batch, *clip)

    def _normalized(self, advantages: torch.Tensor) -> torch.Tensor:
        return normalize(advantages, self.batch_size)

    def _kl(self, log_ratio: torch.Tensor) -> float:
        """Mean KL divergence between the rollout's policy and the current one over a minibatch."""
        return kl_divergence(log_ratio).mean().item()

    # -- metrics ---------------------------------------------------------------------------------------------------

    def _metrics(
        self, epoch: Batch, evaluated: list[Evaluated], clip_range: float, clip_range_vf: float | None = None
    ) -> torch.Tensor:
        """Metrics (minibatches, 5) of one epoch, columns as in `METRICS`, kept on the device."""
        values = torch.cat([new.values for new in evaluated])
        log_probs, advantages, returns, old = (
            x[: len(values)] for x in (epoch.log_probs, epoch.advantages, epoch.returns, epoch.values)
        )
        log_ratio = torch.cat([new.log_prob for new in evaluated]) - log_probs
        ratio = log_ratio.exp()
        surrogate = torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip_range, 1 + clip_range))
        per_row = torch.stack([
            -surrogate,
            (returns - clip_values(values, old, clip_range_vf)).square(),
            kl_divergence(log_ratio),
            ((ratio - 1).abs() > clip_range).float(),
        ])  # fmt: skip
        means = torch.stack([minibatch.mean(1) for minibatch in per_row.split(self.batch_size, 1)])
        entropies = torch.stack([new.entropy for new in evaluated])
        return torch.cat([means, -entropies.unsqueeze(1)], 1)

    def _log_update(self, metrics: list[torch.Tensor], clip_range: float, clip_range_vf: float | None = None) -> None:
        """Log `metrics`, one (minibatches, 5) tensor per epoch, with a single read from the device."""
        rows = [torch.cat(metrics).mean(0), metrics[-1].mean(0), metrics[-1][-1]]
        means, last_epoch, last = torch.stack(rows).tolist()
        record = self.logger.record
        record("train/entropy_loss", means[ENTROPY])
        record("train/policy_gradient_loss", means[POLICY])
        record("train/value_loss", means[VALUE])
        record("train/approx_kl", last_epoch[KL])
        record("train/clip_fraction", means[CLIPPED])
        record("train/loss", last[POLICY] + self.ent_coef * last[ENTROPY] + self.vf_coef * last[VALUE])
        record("train/explained_variance", self._explained_variance())
        if hasattr(self.policy, "log_std"):
            record("train/std", self.policy.log_std.exp().mean().item())
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            record("train/clip_range_vf", clip_range_vf)


class PPO(ProximalTrainer, sb3.PPO):
    """SB3's PPO with tensor rollouts.

    :param critic_warmup: env steps at the start during which only the critic learns; for runs that start from a
        pretrained policy (`kit.branch`, `start_from`). The policy then starts with a new critic if the pretrained
        one does not fit, and with the action noise of log_std_init. Usual: 0, or 10,000 to 100,000
    :param freeze_encoder: keep the image encoder of a pretrained policy (`kit.branch`, `start_from`) as it is and train
        the layers after it. Rollouts then store features, computed once per step: from clips this is three times as
        fast
    :param mirror: learn from every transition and from its left-right mirror image; for tasks that have one, such as
        legged robots. It doubles the rows: double batch_size to keep the number of updates, and choose a learning rate
        of at most lin_0.0002, because a larger one can ruin the policy
    """

    policy_aliases = {**sb3.PPO.policy_aliases, ASYMMETRIC: AsymmetricActorCritic}  # noqa: RUF012

    def __init__(
        self,
        *args: Any,
        critic_warmup: int = 0,
        freeze_encoder: bool = False,
        mirror: bool = False,
        **kwargs: Any,
    ) -> None:
        self.critic_warmup, self.freeze_encoder, self.mirror = critic_warmup, freeze_encoder, mirror
        super().__init__(*args, **kwargs)

    def _samples(self) -> Batch:
        batch = super()._samples()
        if not self.mirror:
            return batch
        mirror = self.tensor_env.mirror
        assert mirror is not None
        obs, actions = self._mirrored(batch.obs, mirror), mirror.action(batch.actions)
        # With the log-probabilities of the original transitions, a slightly asymmetric policy (by 0.1 standard
        # deviations per joint) would have most ratios of mirror images clipped.
        with torch.no_grad():
            log_probs = self.policy.evaluate_actions(obs, actions)[1]
        return batch.join(replace(batch, obs=obs, actions=actions, log_probs=log_probs))

    def _mirrored(self, obs: Any, mirror: Mirror) -> Any:
        """Return the mirror image of policy inputs `obs`."""
        raw = obs if self.normalizer is None else self.normalizer.unscaled(obs)
        columns = {name: mirror.obs[name.removeprefix("obs").removeprefix(".")](x) for name, x in leaves("obs", raw)}
        image = from_leaves("obs", columns)
        return image if self.normalizer is None else self.normalizer.scale_obs(image)

    def warm_start(self, state: State) -> None:
        if not self.critic_warmup:
            return super().warm_start(state)
        weights = with_own_critic(state["policy"], self.policy)
        super().warm_start({**state, "policy": weights, "optimizer": {}})
        if hasattr(self.policy, "log_std"):
            self.policy.log_std.data.fill_(self.policy.log_std_init)


def with_own_critic(weights: Values, policy: ActorCriticPolicy) -> Values:
    """Return pretrained `weights` (name -> tensor) for `policy`.

    If their critic does not fit, it is replaced by the critic of `policy`. For a single camera, the image network is
    renamed: its name depends on whether the env delivers the image in a Dict.
    """
    mine = policy.state_dict()
    cameras = {m[1] for name in mine if (m := re.match(r"features_extractor\.eyes\.(eye_\w*)\.", name))}
    if len(cameras) == 1:
        weights = {re.sub(r"\.eyes\.eye_\w*\.", f".eyes.{min(cameras)}.", name): x for name, x in weights.items()}
    critic = {name: x for name, x in mine.items() if name.startswith(CRITICS)}
    fits = all(name in weights and weights[name].shape == x.shape for name, x in critic.items())
    return weights if fits else {name: x for name, x in weights.items() if not name.startswith(CRITICS)} | critic


METRICS = POLICY, VALUE, KL, CLIPPED, ENTROPY = range(5)
"""Columns of the metrics of a minibatch."""


def normalize(advantages: torch.Tensor, size: int) -> torch.Tensor:
    """Normalise `advantages` (N,) to mean 0 and std 1 in minibatches of `size`; a minibatch of one row is unchanged."""
    whole = len(advantages) // size * size
    minibatches = [advantages[:whole].view(-1, size), advantages[whole:].view(1, -1)]
    for i, rows in enumerate(minibatches):
        if rows.shape[1] > 1:
            std, mean = torch.std_mean(rows, dim=1, keepdim=True)
            minibatches[i] = (rows - mean) / (std + 1e-8)
    return torch.cat([rows.flatten() for rows in minibatches])


def kl_divergence(log_ratio: torch.Tensor) -> torch.Tensor:
    """Estimate KL(π_old ‖ π) per row as (r - 1) - log r, which is never negative (Schulman, 2020)."""
    return log_ratio.exp() - 1 - log_ratio


def clip_values(values: torch.Tensor, old: torch.Tensor, clip_range_vf: Any = None) -> torch.Tensor:
    """Clip `values` (B,) to within `clip_range_vf` of the rollout's `old` values; None leaves them unclipped."""
    return values if clip_range_vf is None else old + (values - old).clamp(-clip_range_vf, clip_range_vf)


def fit_batch_size(hyper: Row, n_envs: int, row: Row, requested: Mapping[str, Any]) -> Row:
    """Return `hyper` with a `batch_size` that divides the rollout, n_envs × n_steps.

    A preset's batch size is lowered to the largest divisor. If the user `requested` a batch size that does not divide
    the rollout, raise `UserError`.
    """
    n_steps, batch_size = int(hyper.get("n_steps", 2048)), int(hyper.get("batch_size", 64))
    rollout_size = n_envs * n_steps
    divisor = largest_batch(rollout_size, batch_size)
    if "batch_size" in requested and divisor != batch_size:
        raise UserError(
            f"batch_size={batch_size} does not divide n_envs × n_steps = {n_envs} × {n_steps} = {rollout_size}; "
            f"the largest divisor below it is {divisor}."
        )
    return {**hyper, "batch_size": divisor}


ALGORITHM = Algorithm(
    "PPO", PPO, sb3.PPO, ActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    # On two cores "auto" doubles n_envs to 32: rollouts of 2,048 steps and batches of 64, as in SB3. With rollouts of
    # 4,096 and 8,192 and batches of 512, runs of 100,000 and 500,000 steps learnt much less; tests/bench/README.md
    # compares them.
    row={"n_envs": 16, "n_steps": 64, "batch_size": 64},
    stock_row={"n_envs": 1, "n_steps": 2048, "batch_size": 64},
    columns=("n_steps", "batch_size", "n_epochs", "net_arch"),
    rule=fit_batch_size,
    more_envs=True,
    distributed=True,
    own={"critic_warmup": int, "freeze_encoder": bool, "mirror": bool},
)  # fmt: skip
