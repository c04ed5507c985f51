"""Worlds of a run's config, with the policies of other runs where its env_options name them as opponents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.config import RunConfig
from kit.errors import UserError
from kit.format.checkpoint import Checkpoint
from kit.runs.run import Run

if TYPE_CHECKING:
    from kit.envs import BatchEnv
    from kit.trainers.actor import Actor


def make_env(config: RunConfig, n_envs: int, seed: int, threads: int | None = None) -> BatchEnv:
    """`n_envs` worlds on the config's device. Raises `UserError` for an opponent that cannot play."""
    from kit import envs

    teams = {name: team(config, name, device=config.device) for name in envs.opponents(config.env, config.env_options)}
    return envs.make_vec(config.env, n_envs, config.device, seed, threads, {**config.env_options, **teams})


def check(config: RunConfig) -> None:
    """Raise `UserError` for an opponent that cannot play, before anything is made."""
    from kit import envs

    envs.describe(config.env, config.env_options)
    for name in envs.opponents(config.env, config.env_options):
        _find(config, name)


def _find(config: RunConfig, option: str) -> tuple[Run, Checkpoint]:
    """The run that `option` names, as RUN or RUN@STEP (by default its best policy), if it plays that part."""
    from kit import envs

    named = str(config.env_options[option])
    path, _, step = named.partition("@")
    try:
        run = Run(path)
        found = run.find(int(step) if step.isdecimal() else step or None)
    except UserError as error:
        raise UserError(f"env_options {option}={named!r}: {error}") from None
    theirs = envs.learner_side(run.config.env, run.config.env_options)
    if (run.config.env, theirs) != (config.env, option):
        part = f"{run.config.env} as {theirs}" if theirs else run.config.env
        raise UserError(f"env_options {option}={named!r} plays {part}; name a run that plays {config.env} as {option}.")
    return run, found


def team(config: RunConfig, option: str, device: str = "cpu") -> Actor:
    """The policy that `option` names, without noise."""
    import torch

    from kit.runs.policies import load_policy
    from kit.trainers.saving import RandomGenerators

    run, found = _find(config, option)
    numbers = RandomGenerators(torch.device("cpu"))
    before = numbers.state()
    actor = load_policy(run.config, found).as_actor().to(device)
    numbers.load_state(before)  # making it has drawn from them, and may come after a checkpoint that put them back
    return actor
