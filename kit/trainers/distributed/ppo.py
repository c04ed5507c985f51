"""Distributed PPO: one process per GPU, each with its share of the envs.

Each rank has its share of the envs and of every minibatch. The gradient is the mean over ranks, advantages are
normalised over the whole minibatch, and once per iteration the ranks merge their normalisation statistics. So all ranks
have the same weights, as if one process had all envs. The logged metrics cover the data of rank 0 only.

Callers use rank 0 like any trainer. Between iterations the other ranks execute the commands of rank 0.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from kit.envs import curriculum
from kit.errors import Interrupted
from kit.trainers.distributed.group import ProcessGroup
from kit.trainers.networks import Evaluated
from kit.trainers.normalize import RunningMoments
from kit.trainers.ppo import PPO, kl_divergence
from kit.trainers.rollout import Rollout
from kit.trainers.saving import State

PER_RANK = "env", "normalizer", "rng", "trainer"
"""State components that differ between ranks."""
STATE, LOAD, GO, END = "state", "load", "go", "end"
"""Commands that rank 0 broadcasts to the others."""


class DistributedPPO(PPO):
    """PPO of one rank on its own envs, starting from rank 0's weights."""

    def __init__(self, *args: Any, group: ProcessGroup, **kwargs: Any) -> None:
        self.group = group
        super().__init__(*args, **kwargs)
        for weights in self.policy.state_dict().values():
            group.broadcast_(weights)
        if self.normalizer is not None:
            self._merged = {  # name -> result (3, ...) of `_sums` after the last merge, equal in all ranks
                name: _sums(RunningMoments(tuple(moments.mean.shape), self.device))
                for name, moments in self.normalizer.moments().items()
            }
            self._merge_statistics()

    # -- between iterations ----------------------------------------------------------------------------------------

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        self._synchronize()
        return super().learn(*args, **kwargs)

    def _boundary(self) -> None:
        super()._boundary()
        self._synchronize()

    def _synchronize(self) -> None:
        if self.group.rank == 0:
            self.group.broadcast(GO, None)
        else:
            self.obey()

    def obey(self) -> None:
        """Execute rank 0's commands until rank 0 continues training. Raises `Interrupted` if rank 0 ends."""
        while True:
            command, state = self.group.broadcast()
            if command == STATE:
                own = super().state()
                self.group.gather({f"{name}.{key}": value for name in PER_RANK for key, value in own[name].items()})
            elif command == LOAD:
                self._load(state)
            elif command == GO:
                return
            else:
                raise Interrupted("rank 0 ends")

    def end(self) -> None:
        """End the other ranks; called by rank 0."""
        with suppress(Interrupted):
            self.group.broadcast(END, None)

    def state(self) -> State:
        """Rank 0's state plus the per-rank components of the others; called by rank 0."""
        self.group.broadcast(STATE, None)
        others = self.group.gather()[1:]
        return {**super().state(), **{f"process{rank}": own for rank, own in enumerate(others, 1)}}

    def load_state(self, state: State) -> bool:
        """Load `state` in all ranks; called by rank 0.

        If `state` was saved with a different number of processes, the envs are reset.
        """
        self.group.broadcast(LOAD, state)
        return self._load(state)

    def _load(self, state: State) -> bool:
        rank = self.group.rank
        if sum(name.startswith("process") for name in state) != self.group.size - 1:
            stage = {name: x for name, x in state["env"].items() if name.startswith(f"{curriculum.OPTION}.")}
            state = {**state, "env": stage}
        elif rank:
            own: State = {name: {} for name in PER_RANK}
            for key, value in state[f"process{rank}"].items():
                name, _, rest = key.partition(".")
                own[name][rest] = value
            state = {**state, **own}
        same_envs = super().load_state(state)
        if not same_envs and rank:
            torch.manual_seed((self.seed or 0) + self.num_timesteps)
        if self.normalizer is not None:
            self._merged = {name: _sums(moments) for name, moments in self.normalizer.moments().items()}
        return same_envs

    # -- one update -------------------------------------------------------------------------------------------------

    def collect_rollouts(  # type: ignore[override]
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: Rollout, n_rollout_steps: int
    ) -> bool:
        before = self.num_timesteps
        continues = super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        self.num_timesteps = before + (self.num_timesteps - before) * self.group.size
        if self.normalizer is not None:
            self._merge_statistics()
        return continues

    def _merge_statistics(self) -> None:
        """Merge the statistics that the ranks have gathered since the last merge."""
        assert self.normalizer is not None
        for name, moments in self.normalizer.moments().items():
            total = self._merged[name] + self.group.sum_(_sums(moments) - self._merged[name])
            count, sums, squares = total
            moments.count, moments.mean = float(count.flatten()[0]), sums / count
            # Rounding can make the variance of a constant entry slightly negative.
            moments.var = (squares / count - moments.mean.square()).clamp_(min=0.0)
            # Recompute from the moments, as `_load` does, so that a resumed run has exactly the same sums.
            self._merged[name] = _sums(moments)

    def _gradient(self, *args: Any) -> Evaluated:
        evaluated = super()._gradient(*args)
        self.group.mean_(self.networks.optimizer.grad)
        return evaluated

    def _normalized(self, advantages: torch.Tensor) -> torch.Tensor:
        rows = advantages.view(-1, self.batch_size)
        n = self.batch_size * self.group.size
        rows = rows - self.group.mean_(rows.mean(1)).unsqueeze(1)
        std = (self.group.sum_(rows.square().sum(1)) / (n - 1)).sqrt()
        return (rows / (std.unsqueeze(1) + 1e-8)).flatten()

    def _kl(self, log_ratio: torch.Tensor) -> float:
        return self.group.mean_(kl_divergence(log_ratio).mean()).item()

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "group", "_merged"]


def _sums(moments: RunningMoments) -> torch.Tensor:
    """Count, sum and sum of squares of the rows in `moments`, (3, ...)."""
    mean = moments.mean
    return torch.stack([torch.ones_like(mean), mean, moments.var + mean.square()]) * moments.count
