"""Make the envs of a config. In games, load the opponents: policies of other runs, named in env_options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.config import RunConfig
from kit.errors import UserError
from kit.format.checkpoint import Checkpoint
from kit.runs.run import Run, load_policy

if TYPE_CHECKING:
    from kit.envs import BatchEnv
    from kit.envs.play import Player


def make_env(config: RunConfig, n_envs: int, seed: int, threads: int | None = None) -> BatchEnv:
    """Make `n_envs` envs of `config` on its device. Raises `UserError` for an opponent that was trained for another env
    or side."""
    from kit import envs

    teams = {name: team(config, name, device=config.device) for name in envs.opponents(config.env, config.env_options)}
    return envs.make_vec(config.env, n_envs, config.device, seed, threads, {**config.env_options, **teams})


def check(config: RunConfig) -> None:
    """Raise `UserError` for an opponent that was trained for another env or side, without making the envs."""
    from kit import envs

    envs.describe(config.env, config.env_options)
    for name in envs.opponents(config.env, config.env_options):
        _find(config, name)


def _find(config: RunConfig, option: str) -> tuple[Run, Checkpoint]:
    """Return run and checkpoint that the env option names: RUN or RUN@STEP (default: the best). Raises `UserError`."""
    from kit import envs

    value = str(config.env_options[option])
    path, _, step = value.partition("@")
    try:
        run = Run(path)
        saved = run.find(int(step) if step.isdecimal() else step or None)
    except UserError as error:
        raise UserError(f"env_options {option}={value!r}: {error}") from None
    role = envs.learner_side(run.config.env, run.config.env_options)
    if run.config.env != config.env or role not in (option, envs.BOTH_SIDES):
        played = f"{run.config.env} as {role}" if role else run.config.env
        remedy = f"name a run that plays {config.env} as {option}."
        raise UserError(f"env_options {option}={value!r} plays {played}; {remedy}")
    return run, saved


def team(config: RunConfig, option: str, device: str = "cpu") -> Player:
    """Load the opponent named in the env option `option`; it plays deterministic actions."""
    import torch

    from kit import envs
    from kit.trainers.saving import RandomGenerators

    run, saved = _find(config, option)
    generators = RandomGenerators(torch.device("cpu"))
    before = generators.state()
    actor = load_policy(run.config, saved).as_actor().to(device)
    generators.load_state(before)  # building a network draws random numbers; undo that
    return envs.on_side(config.env, run.config.env_options, actor, option)
