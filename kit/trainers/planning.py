"""One plan of a run: what its config names, looked up once, and "auto" as numbers. Nothing is built or measured: the
same request gets the same plan, every time on the same kind of machine.

    row       of the task and algorithm (`kit.presets`), else the algorithm's own (its record in `kit.trainers`)
    worlds    the row's; of PPO twice as many, and again, while there are no more than `ENVS_PER_CORE` for each core
              (`GAMES_PER_CORE` of a task without physics) and the run has `ROUNDS` rollouts in it; on a GPU no more
              than its memory has room for
    device    the CPU, unless there is a GPU and the row or the preset is made for it, or images are seen
    batch     the largest divisor of the rollout that is no larger than the row's
    threads   one for each core
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kit import encoders, envs
from kit.config import RunConfig, default_name
from kit.encoders import ASYMMETRIC, Encoder
from kit.errors import UserError
from kit.machine import limits, settings
from kit.presets import NAMED, TASKS, TASKS_ON_CUDA, Row
from kit.trainers import algorithm
from kit.trainers.algorithm import Algorithm
from kit.trainers.arguments import complete

if TYPE_CHECKING:
    from kit.envs.contract import BatchEnv
    from kit.envs.registry import Spaces

ENVS_PER_CORE = 16
"""Of the fastest number an exhaustive search found on two cores, so many reached 0.98 with PPO on Reach and 0.91 to
0.99 on Ant."""
GAMES_PER_CORE = 1024
"""Worlds without physics cost little more than the calls that step them all."""
ROUNDS = 20
"""Rollouts that a run has at least, whatever the number of worlds. Reach, 100,000 steps: a return of 4.26 with 48
rollouts, 4.25 with 24, 4.11 with 12, 3.86 with 6."""
STRIDE = 64
"""Fewer envs than that are not measured on a GPU."""

Fits = Callable[["Plan"], int]
"""How many envs of a plan a GPU has room for."""


@dataclass(frozen=True)
class Plan:
    """A config without any "auto", and what it names. `kit.trainers.make_trainer` builds from it."""

    config: RunConfig
    algorithm: Algorithm
    encoder: Encoder

    @classmethod
    def of(cls, config: RunConfig, env: Spaces | BatchEnv) -> Plan:
        """Of a `config` without "auto", for `env`, or what `kit.envs.describe` says of it. Raises `UserError` for an
        algorithm or encoder that there is not, or that do not suit each other."""
        record = algorithm.find(config.algo)
        options = config.overrides.get("policy_kwargs", {}).get(encoders.OPTIONS)
        encoder = encoders.choose(config.encoder, env.observation_space, options, env.obs_groups)
        if encoder.policy not in record.trainer.policy_aliases:
            raise UserError(
                f"algo={config.algo!r} has no {encoder.policy}, a critic that sees another group than the policy; use "
                "PPO, A2C, SAC, TD3 or RecurrentPPO, or leave the critic's group out."
            )
        if encoder.policy == ASYMMETRIC and config.overrides.get("policy_kwargs", {}).get("shared_lstm"):
            raise UserError(
                "overrides policy_kwargs shared_lstm=true shows the critic what the actor sees, and here it has a "
                "group of its own; leave it out."
            )
        return cls(config, record, encoder)

    def with_envs(self, n_envs: int) -> Plan:
        """With another number of envs, and what goes with it."""
        hyper = self.algorithm.rule(self.config.overrides, n_envs, {}, {})
        return replace(self, config=self.config.replace(n_envs=n_envs, overrides=hyper))

    @property
    def sentence(self) -> str:
        """Such as "auto: 16 worlds on 2 threads, 256 steps, batch 512"; "" for other presets."""
        config, hyper, n = self.config, self.config.overrides, int(self.config.n_envs)
        if config.preset != "auto":
            return ""
        threads = f"{config.threads} thread{'' if config.threads == 1 else 's'}"
        said = f"auto: {n:,} world{'' if n == 1 else 's'} on {threads if config.device == 'cpu' else config.device}"
        said += f", {hyper['n_steps']} steps" if "n_steps" in hyper else ""
        return said + (f", batch {hyper['batch_size']:,}" if "batch_size" in hyper else "")


def plan(config: RunConfig, fits: Fits | None = None) -> Plan:
    """The plan of a request. Raises `UserError` for what cannot be trained; nothing is left behind. `fits` is asked
    where a GPU's memory decides the number of envs; without it the row's number is planned."""
    record = algorithm.find(config.algo)
    env = envs.describe(config.env, config.env_options)
    if not isinstance(env.action_space, record.actions):
        kinds = " or ".join(kind.__name__ for kind in record.actions)
        raise UserError(f"algo={config.algo!r} acts in {kinds} spaces and env={config.env!r} has {env.action_space}.")
    device = device_of(config, encoders.sees_images(env.observation_space))
    row = row_of(record, config, device)
    hyper = complete(record, row, config.overrides)
    n_envs = config.n_envs if isinstance(config.n_envs, int) else _worlds(record, config, row, device, env.physics)
    resolved = config.replace(
        run_name=config.run_name or default_name(config),
        device=device,
        n_envs=n_envs,
        threads=config.threads if isinstance(config.threads, int) else limits.usable_cores(),
        eval_every=max(1, config.total_steps // 10) if config.eval_every == "auto" else config.eval_every,
        overrides=record.rule(hyper, n_envs, row, config.overrides),
    )
    made = Plan.of(resolved, env)
    if fits and config.n_envs == "auto" and device != "cpu" and env.batched and n_envs > STRIDE:
        made = made.with_envs(min(n_envs, fits(made) * config.processes))
    if config.processes > 1:
        part(record, made.config)
    return made


def part(record: Algorithm, config: RunConfig, rank: int = 0, on_this_machine: int = 1) -> RunConfig:
    """What the process `rank` of several does of a planned `config`, with a seed of its own. Raises `UserError` if it
    cannot be shared out."""
    size = config.processes
    if not record.distributed:
        raise UserError(f"processes={size}: algo={config.algo!r} is trained by one; PPO can be by more.")
    if ":" in config.device:
        raise UserError(f"processes={size} take a card each and device={config.device!r} is one; write cuda.")
    n_envs, batch = int(config.n_envs), int(config.overrides["batch_size"])
    for name, number in (("n_envs", n_envs), ("batch_size", batch)):
        if number % size:
            raise UserError(f"{name}={number} cannot be shared by {size} processes; choose a multiple of that.")
    return config.replace(
        n_envs=n_envs // size,
        overrides={**config.overrides, "batch_size": batch // size},
        threads=max(1, int(config.threads) // on_this_machine),
        seed=config.seed + rank,
    )


def row_of(record: Algorithm, config: RunConfig, device: str) -> Row:
    """What the preset says."""
    if config.preset == "sb3":
        return record.stock_row
    if config.preset in NAMED:
        named = NAMED[config.preset]
        return record.row | {"n_envs": named["n_envs"], **{name: named[name] for name in record.columns}}
    rows = TASKS if device == "cpu" else TASKS | TASKS_ON_CUDA
    return rows.get((config.env, config.algo), record.row)


def device_of(config: RunConfig, pictures: bool) -> str:
    """Where networks train and, if it is a task of kit's kind, worlds are simulated."""
    import torch

    if config.device != "auto":
        if config.device != "cpu" and not torch.cuda.is_available():
            raise UserError(
                f"device={config.device!r} needs a CUDA GPU and PyTorch sees none; use cpu or see `kit verify`."
            )
        return config.device
    made_for_it = pictures or config.preset in NAMED or (config.env, config.algo) in TASKS_ON_CUDA
    return "cuda" if made_for_it and settings.gpu_works() else "cpu"


def _worlds(record: Algorithm, config: RunConfig, row: Row, device: str, physics: bool) -> int:
    worlds, per_core = int(row.get("n_envs", 1)), ENVS_PER_CORE if physics else GAMES_PER_CORE
    if config.preset != "auto" or not record.more_envs or (device != "cpu" and physics):
        return worlds
    n_steps = int({"n_steps": 2048, **row, **config.overrides}["n_steps"])
    most = min(per_core * limits.usable_cores(), config.total_steps // (ROUNDS * n_steps))
    while 2 * worlds <= most:
        worlds *= 2
    return worlds
