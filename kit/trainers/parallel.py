"""PPO and A2C in several processes that hold the same network, each with its share of the worlds.

What is shared out is what takes the time: the physics, each process stepping its own worlds, and the gradient, each
process working on its part of every minibatch. All else every process does for the whole run, with the same random
numbers: it sees all worlds (`kit.envs.shared.SharedEnv`), draws the noise of all actions and the same permutations,
and normalises with the same statistics. So rollouts, minibatches and every decision are those of one process; what
differs is the order in which the rows of a minibatch are added up, that is rounding. The price is the policy's forward
pass for all worlds in each process, little beside physics, and memory there for the whole rollout.
"""

from __future__ import annotations

from typing import Any, Self

import torch

from kit.envs.shared import SharedEnv
from kit.errors import UserError
from kit.machine.group import GO, LOAD, SNAPSHOT, STOP, Group
from kit.trainers import Interrupted
from kit.trainers.a2c import A2C
from kit.trainers.base import State
from kit.trainers.flat import FlatOptimizer
from kit.trainers.on_policy import OnPolicyTrainer
from kit.trainers.ppo import PPO, Clip, Outcome
from kit.trainers.rollout import Batch


class Parallel(OnPolicyTrainer):
    """A mixin before an on-policy trainer whose env is a `SharedEnv`. Rank 0 is steered like any trainer; the others
    `obey` it, at the same places."""

    tensor_env: SharedEnv

    @property
    def group(self) -> Group:
        return self.tensor_env.group

    # -- leading and following -------------------------------------------------------------------------------------

    def learn(self, *args: Any, **kwargs: Any) -> Self:
        """As ever, in all processes at once. Raises `ProcessLost` if one of them is gone."""
        self._carry_on()
        return super().learn(*args, **kwargs)

    def _poll(self) -> None:
        if self.group.leads and self.should_stop():
            self.group.order(STOP)
            raise Interrupted(f"asked to stop at step {self.num_timesteps:,}")
        self._carry_on()

    def _carry_on(self) -> None:
        if self.group.leads:
            self.group.order(GO)
        else:
            self.obey()

    def obey(self) -> None:
        """Do what the leader asks for until it says to carry on. Raises `Interrupted` if it says to stop."""
        while (order := self.group.receive()) != GO:
            if order == SNAPSHOT:
                self.tensor_env.snapshot()
            elif order == LOAD:
                super().load_state(self.group.share())
            elif order == STOP:
                raise Interrupted("the leader stops")

    def state(self) -> State:
        """As ever, for the leader to call: the others hand over their worlds."""
        self.group.order(SNAPSHOT)
        return super().state()

    def load_state(self, state: State) -> bool:
        """As ever, for the leader to call: the others load `state` too, taken by any number of processes."""
        self.group.order(LOAD)
        return super().load_state(self.group.share(state))

    # -- the gradient ----------------------------------------------------------------------------------------------

    def _own(self, batch: Batch) -> Batch:
        """This process's part of a minibatch. The parts are equally long, so the mean of their means is the mean."""
        if len(batch) % self.group.size:
            raise UserError(f"batch_size={len(batch)} cannot be shared by {self.group.size} processes.")
        return batch.split(len(batch) // self.group.size)[self.group.rank]

    def _average(self, *others: torch.Tensor) -> list[torch.Tensor]:
        """Make the gradient the mean over all processes, in one collective with `others`, whose means are returned."""
        assert isinstance(self._flat, FlatOptimizer)
        tensors = (self._flat.grad, *others)
        packed = torch.cat([tensor.flatten() for tensor in tensors])
        self.group.sum_(packed)
        means = packed.div_(self.group.size).split([tensor.numel() for tensor in tensors])
        self._flat.grad.copy_(means[0])
        return [mean.view(tensor.shape) for mean, tensor in zip(means[1:], others, strict=True)]


class ParallelPPO(Parallel, PPO):
    """PPO whose minibatches are shared out."""

    def _gradient(self, batch: Batch, clip: Clip) -> Outcome:
        own = super()._gradient(self._own(batch), clip)
        return Outcome(*self._average(self._spread(own.log_ratio), self._spread(own.values), own.entropy))

    def _spread(self, rows: torch.Tensor) -> torch.Tensor:
        """A minibatch's rows of which this process has its own: scaled so that the mean over all processes has all."""
        whole = rows.new_zeros(len(rows) * self.group.size)
        whole[self.group.mine(len(whole))] = rows * self.group.size
        return whole


class ParallelA2C(Parallel, A2C):
    """A2C whose batch is shared out."""

    def _gradient(self, batch: Batch) -> torch.Tensor:
        return self._average(super()._gradient(self._own(batch)))[0]
