"""Distributed PPO: the same program in every process, one for each GPU, on envs of its own.

Each rank has its share of the envs and of every minibatch. The gradient is the mean over ranks, advantages are
normalised over the whole minibatch, and once in an iteration the ranks agree on the statistics that observations are
normalised with. So they hold the weights that one process would hold with all the envs and the same minibatches. Logged
figures of updates and episodes are rank 0's.

Callers steer rank 0 like any trainer. Between iterations the other ranks follow its commands: send their state for a
checkpoint, load one, go on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from kit.errors import Interrupted
from kit.trainers.distributed.group import ProcessGroup
from kit.trainers.networks import Evaluated
from kit.trainers.normalize import RunningMoments
from kit.trainers.ppo import PPO, kl_divergence
from kit.trainers.rollout import Rollout
from kit.trainers.saving import State

OWN = "env", "normalizer", "rng", "trainer"
"""Components of the state that each rank has for itself."""
STATE, LOAD, GO, END = "state", "load", "go", "end"


class DistributedPPO(PPO):
    """PPO of one rank, on its own envs. It starts from rank 0's weights."""

    def __init__(self, *args: Any, group: ProcessGroup, **kwargs: Any) -> None:
        self.group = group
        super().__init__(*args, **kwargs)
        for weights in self.policy.state_dict().values():
            group.broadcast_(weights)
        if self.normalizer is not None:
            self._agreed = {
                name: _sums(RunningMoments(tuple(moments.mean.shape), self.device))
                for name, moments in self.normalizer.moments().items()
            }
            self._agree()

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
            self.follow()

    def follow(self) -> None:
        """Do what rank 0 commands until it goes on. Raises `Interrupted` if it ends."""
        while True:
            command, state = self.group.broadcast()
            if command == STATE:
                own = super().state()
                self.group.gather({f"{name}.{key}": value for name in OWN for key, value in own[name].items()})
            elif command == LOAD:
                self._take(state)
            elif command == GO:
                return
            else:
                raise Interrupted("rank 0 ends")

    def end(self) -> None:
        """In rank 0: the others end too."""
        with suppress(Interrupted):
            self.group.broadcast(END, None)

    def state(self) -> State:
        """In rank 0: with the others' own components."""
        self.group.broadcast(STATE, None)
        others = self.group.gather()[1:]
        return {**super().state(), **{f"process{rank}": own for rank, own in enumerate(others, 1)}}

    def load_state(self, state: State) -> bool:
        """In rank 0: the others load theirs. The envs of another number of processes are reset."""
        self.group.broadcast(LOAD, state)
        return self._take(state)

    def _take(self, state: State) -> bool:
        rank = self.group.rank
        if sum(name.startswith("process") for name in state) != self.group.size - 1:
            state = {**state, "env": {}}
        elif rank:
            own: State = {name: {} for name in OWN}
            for key, value in state[f"process{rank}"].items():
                name, _, rest = key.partition(".")
                own[name][rest] = value
            state = {**state, **own}
        same_envs = super().load_state(state)
        if not same_envs and rank:
            torch.manual_seed((self.seed or 0) + self.num_timesteps)
        if self.normalizer is not None:
            self._agreed = {name: _sums(moments) for name, moments in self.normalizer.moments().items()}
        return same_envs

    # -- one update -------------------------------------------------------------------------------------------------

    def collect_rollouts(  # type: ignore[override]
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: Rollout, n_rollout_steps: int
    ) -> bool:
        before = self.num_timesteps
        going_on = super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        self.num_timesteps = before + (self.num_timesteps - before) * self.group.size
        if self.normalizer is not None:
            self._agree()
        return going_on

    def _agree(self) -> None:
        """Merge the statistics that each rank has gathered since the last time."""
        assert self.normalizer is not None
        for name, moments in self.normalizer.moments().items():
            total = self._agreed[name] + self.group.sum_(_sums(moments) - self._agreed[name])
            count, weighted, squares = total
            moments.count, moments.mean = float(count.flatten()[0]), weighted / count
            moments.var = (squares / count - moments.mean.square()).clamp_(min=0.0)  # rounding, where nothing varies
            self._agreed[name] = _sums(moments)  # as after a resume, to the last bit

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
        return [*super()._excluded_save_params(), "group", "_agreed"]


def _sums(moments: RunningMoments) -> torch.Tensor:
    """Count, sum and sum of squares of the rows in `moments`, (3, ...)."""
    mean = moments.mean
    return torch.stack([torch.ones_like(mean), mean, moments.var + mean.square()]) * moments.count
