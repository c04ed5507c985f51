"""PPO in several processes, one for each card: the same program in all of them, on worlds of its own.

Each has its share of the worlds and of every minibatch. The gradient is the mean of theirs, advantages are normalised
over the whole minibatch, and once in an iteration they agree on the statistics that observations are normalised with.
So they hold the same weights as one process would that had all the worlds and met the same minibatches. What is logged
of updates and episodes is the leader's.

The leader is steered like any trainer. Between iterations the others do what it says: hand over their worlds for a
checkpoint, take those of one, go on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from kit.errors import Interrupted
from kit.machine.group import Group
from kit.trainers.networks import Evaluated
from kit.trainers.normalize import RunningMoments
from kit.trainers.ppo import PPO, kl_divergence
from kit.trainers.rollout import Rollout
from kit.trainers.saving import State

OWN = "env", "normalizer", "rng", "trainer"
"""Parts of the state that each process has for itself."""
STATE, LOAD, GO, END = "state", "load", "go", "end"


class TogetherPPO(PPO):
    """One of the processes', on its own worlds. It begins with the leader's weights."""

    def __init__(self, *args: Any, group: Group, **kwargs: Any) -> None:
        self.group = group
        super().__init__(*args, **kwargs)
        for weights in self.policy.state_dict().values():
            group.give(weights)
        if self.normalizer is not None:
            self._agreed = {
                name: _sums(RunningMoments(tuple(moments.mean.shape), self.device))
                for name, moments in self.normalizer.moments().items()
            }
            self._agree()

    # -- between iterations ----------------------------------------------------------------------------------------

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        self._carry_on()
        return super().learn(*args, **kwargs)

    def _boundary(self) -> None:
        super()._boundary()
        self._carry_on()

    def _carry_on(self) -> None:
        if self.group.leads:
            self.group.tell(GO, None)
        else:
            self.obey()

    def obey(self) -> None:
        """Until the leader goes on. Raises `Interrupted` if it ends."""
        while True:
            order, state = self.group.tell()
            if order == STATE:
                own = super().state()
                self.group.gather({f"{name}.{key}": value for name in OWN for key, value in own[name].items()})
            elif order == LOAD:
                self._take(state)
            elif order == GO:
                return
            else:
                raise Interrupted("the leader ends")

    def end(self) -> None:
        """For the leader: the others end too."""
        with suppress(Interrupted):
            self.group.tell(END, None)

    def state(self) -> State:
        """For the leader: also what the others have for themselves."""
        self.group.tell(STATE, None)
        theirs = self.group.gather()[1:]
        return {**super().state(), **{f"process{rank}": own for rank, own in enumerate(theirs, 1)}}

    def load_state(self, state: State) -> bool:
        """For the leader: so do the others. Of another number of processes, the worlds begin anew."""
        self.group.tell(LOAD, state)
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
        same_worlds = super().load_state(state)
        if not same_worlds and rank:
            torch.manual_seed((self.seed or 0) + self.num_timesteps)
        if self.normalizer is not None:
            self._agreed = {name: _sums(moments) for name, moments in self.normalizer.moments().items()}
        return same_worlds

    # -- in one ----------------------------------------------------------------------------------------------------

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
        """Put together what each has seen since the last time."""
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
    """Count, sum and sum of squares of the rows that `moments` have seen, (3, ...)."""
    mean = moments.mean
    return torch.stack([torch.ones_like(mean), mean, moments.var + mean.square()]) * moments.count
