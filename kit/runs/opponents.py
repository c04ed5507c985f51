"""Make the envs of a config. In games, load the opponents: policies of other runs, named in env_options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.config import STOCK, RunConfig
from kit.errors import UserError
from kit.format.checkpoint import Checkpoint
from kit.runs.finding import locate_step
from kit.runs.run import Run, load_policy

if TYPE_CHECKING:
    from kit.envs import BatchEnv
    from kit.trainers.actor import Actor


def make_env(config: RunConfig, n_envs: int, seed: int, threads: int | None = None) -> BatchEnv:
    """Make `n_envs` envs of `config` on its device. Raises `UserError` for an opponent that was trained for another env
    or side."""
    from kit import envs

    named = envs.opponents(config.env, config.env_options)
    teams = {side: [load_opponent(config, side, run, config.device) for run in runs] for side, runs in named.items()}
    return envs.make_vec(config.env, n_envs, config.device, seed, threads, {**config.env_options, **teams})


def check(config: RunConfig) -> None:
    """Raise `UserError` for an opponent that was trained for another env or side, without making the envs."""
    from kit import envs

    envs.describe(config.env, config.env_options)  # raises for unknown options
    for side, runs in envs.opponents(config.env, config.env_options).items():
        for run in runs:
            if run != STOCK:
                _find(config, side, run)


def _find(config: RunConfig, side: str, value: str) -> tuple[Run, Checkpoint]:
    """Return run and checkpoint that `value` names: RUN or RUN@STEP (default: the best). Raises `UserError`."""
    from kit import envs

    try:
        run, step = locate_step(value, config.runs_dir)
        saved = run.find(step)
    except UserError as error:
        raise UserError(f"env_options {side}={value!r}: {error}") from None
    role = envs.learner_side(run.config.env, run.config.env_options)
    if (run.config.env, role) != (config.env, side):
        played = f"{run.config.env} as {role}" if role else run.config.env
        remedy = f"name a run that plays {config.env} as {side}."
        raise UserError(f"env_options {side}={value!r} plays {played}; {remedy}")
    return run, saved


def load_opponent(config: RunConfig, side: str, value: str, device: str = "cpu") -> Actor | str:
    """Load an opponent, RUN or RUN@STEP, that plays `side` with deterministic actions. STOCK is returned as it is."""
    import torch

    from kit.trainers.saving import RandomGenerators

    if value == STOCK:
        return STOCK
    run, saved = _find(config, side, value)
    generators = RandomGenerators(torch.device("cpu"))
    before = generators.state()
    actor = load_policy(run.config, saved).as_actor().to(device)
    generators.load_state(before)  # building a network draws random numbers; undo that
    return actor
