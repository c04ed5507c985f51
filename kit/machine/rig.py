"""A trainer on the test rig: the real thing on short rollouts, its parts timed by the polls that every trainer makes
before each env step and each minibatch."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from typing import Any, Self

from kit.config import RunConfig
from kit.machine import memory
from kit.machine.speed import random_actions
from kit.machine.tune import Candidate, Reading

SETTLE_STEPS = 16
"""Of every world before anything is measured, whatever their number: robots land on their feet, and from then on a step
costs more."""
EPOCHS = 4
"""Of PPO in a turn."""
STEPS = 256
"""Of all worlds together in a turn of A2C or SAC, 8 of each at least."""


class Rigs:
    """One rig for each candidate of `config`, built when it is first asked for a turn.

    >>> with Rigs(config) as measure:
    ...     measure(Candidate(16, 2, "cpu")).steps_per_s

    Leaves the process's random generators and thread count as they were.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._rigs: dict[Candidate, Rig] = {}
        self._restore = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._restore.enter_context(_nothing_changed())
        return self

    def __exit__(self, *error: object) -> None:
        for rig in self._rigs.values():
            rig.env.close()
        on_gpu = any(candidate.device != "cpu" for candidate in self._rigs)
        self._rigs.clear()
        if on_gpu:  # a card may have no room for rigs beside the run
            memory.give_back()
        self._restore.close()

    def __call__(self, candidate: Candidate) -> Reading:
        if candidate not in self._rigs:
            self._rigs[candidate] = Rig(candidate.of(self.config))
        return self._rigs[candidate].turn()


class Rig:
    """Worlds and a trainer of a resolved `config`; PPO's rollouts are of just one minibatch."""

    def __init__(self, config: RunConfig) -> None:
        import torch

        from kit.envs import make_vec
        from kit.trainers import make_trainer

        self._n_envs, self._on_gpu = int(config.n_envs), config.device != "cpu"
        self._whole: tuple[int, int] | None = None
        """PPO's steps and epochs in a whole iteration."""
        hyper = dict(config.overrides)
        if config.algo == "PPO":
            batch = int(hyper["batch_size"])
            self._whole = int(hyper.get("n_steps", 2048)), int(hyper.get("n_epochs", 10))
            hyper |= {"n_steps": batch // math.gcd(batch, self._n_envs), "n_epochs": EPOCHS}
            hyper.pop("target_kl", None)  # it may end an update early
        if config.algo == "SAC":
            hyper |= {"learning_starts": 0, "buffer_size": 10_000}
        self.env = make_vec(config.env, self._n_envs, config.device, config.seed, threads=int(config.threads))
        self._trainer: Any = make_trainer(config.replace(overrides=hyper), self.env)
        self._threads = torch.get_num_threads()
        begun = self._now()
        for actions in random_actions(self.env, SETTLE_STEPS):
            self.env.step(actions)
        # Worlds of our own live on the trainer's device; anybody else's are stepped by the CPU.
        self._host_s = 0.0 if hasattr(self.env, "sim") and self._on_gpu else (self._now() - begun) / SETTLE_STEPS

    def turn(self) -> Reading:
        """What a whole iteration would take, by one or a few short ones."""
        import torch

        torch.set_num_threads(self._threads)
        return self._parts(self._whole) if self._whole else self._altogether()

    def _parts(self, whole: tuple[int, int]) -> Reading:
        """PPO: env steps, then minibatches, each told by a poll."""
        trainer = self._trainer
        steps, minibatches = trainer.n_steps, EPOCHS * trainer.n_steps * self._n_envs // trainer.batch_size
        first_update, last = steps, steps + minibatches - 1
        polls: list[float] = []

        def poll() -> bool:
            borders = (0, first_update, last)  # where a GPU must have finished; in between it may lag behind
            polls.append(self._now() if len(polls) in borders else 0.0)
            return False

        trainer.should_stop = poll
        trainer.learn(steps * self._n_envs, reset_num_timesteps=False)
        step_s = (polls[first_update] - polls[0]) / steps
        minibatch_s = (polls[last] - polls[first_update]) / (minibatches - 1)
        n_steps, n_epochs = whole
        rollout = n_steps * self._n_envs
        updates = n_epochs * rollout // trainer.batch_size
        return Reading(rollout, n_steps * step_s, updates * minibatch_s, n_steps * self._host_s, trainer.batch_size)

    def _altogether(self) -> Reading:
        """A2C and SAC: iterations are short as they are."""
        trainer, before, begun = self._trainer, self._trainer.num_timesteps, self._now()
        trainer.learn(max(STEPS, 8 * self._n_envs), reset_num_timesteps=False)
        steps = trainer.num_timesteps - before
        return Reading(steps, self._now() - begun, 0.0, steps / self._n_envs * self._host_s)

    def _now(self) -> float:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize(self.env.device)
        return time.perf_counter()


@contextlib.contextmanager
def _nothing_changed() -> Iterator[None]:
    """This process's random generators and torch's thread count are afterwards what they were."""
    import numpy as np
    import torch

    threads, python, legacy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    card = [torch.cuda.current_device()] if torch.cuda.is_available() else []  # all of several: torch warns of that
    with torch.random.fork_rng(card):
        yield
    torch.set_num_threads(threads)
    random.setstate(python)
    np.random.set_state(legacy)
