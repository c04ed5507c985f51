"""What is particular to one algorithm, as one record beside its class: nothing else in kit knows an algorithm by name.

    class Toy(OnPolicyTrainer, ...): ...
    ALGORITHM = Algorithm("Toy", Toy, stock=..., policy=..., actions=(spaces.Box,), row={...}, stock_row={...})

One of kit's own needs a line in `kit.config.ALGOS`; anybody's is named "module" in its place, `algo="my_algos:Toy"`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from kit import trust
from kit.config import ALGOS, RunConfig
from kit.errors import UserError
from kit.presets import Row

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.policies import BasePolicy

    from kit.trainers.base import TensorTrainer

Rule = Callable[[Row, int, Row, Mapping[str, Any]], Row]
"""Of hyperparameters, the number of worlds, the preset's row and what the user asked for: hyperparameters that go
together."""


def _as_they_are(hyper: Row, n_envs: int, row: Row, asked: Mapping[str, Any]) -> Row:
    return hyper


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of SB3's with our inside."""

    name: str
    trainer: type[TensorTrainer]
    stock: type[BaseAlgorithm]
    """SB3's class, whose constructor says what can be overridden."""
    policy: type[BasePolicy]
    """SB3's policy, whose constructor says what `policy_kwargs` may hold."""
    actions: tuple[type[Space], ...]
    """Kinds of action space it can act in."""
    row: Row
    """Where nothing better is known of a task: SB3's defaults with worlds enough to keep the cores busy."""
    stock_row: Row
    """What Stable-Baselines3 itself would do, for comparisons."""
    columns: tuple[str, ...] = ("net_arch",)
    """What it takes from the presets fast, heavy and beast."""
    heads: tuple[str, str] = ("pi", "vf")
    """Names of the two networks where `net_arch` tells them apart."""
    rule: Rule = field(default=_as_they_are)
    """Raises `UserError` if the user asked for what does not go together."""
    more_envs: bool = False
    """Whether `auto` may take more worlds than a row says: the rollouts grow with them."""
    distributed: bool = False
    """Whether several processes can train it together."""
    imported: tuple[str, ...] = ()
    """Hyperparameters that a run takes over from an SB3 zip."""
    fewer_envs: bool = True
    """Whether a run out of memory may go on with fewer worlds."""
    own: Mapping[str, type] = field(default_factory=dict)
    """Hyperparameters that SB3 does not have, and their types."""
    memory_remedy: str = "network, n_steps or batch_size"
    """What to make smaller when memory runs out for good."""


def find(algo: str) -> Algorithm:
    """The record called `algo`: one of kit's, or "module:NAME" where NAME is a record in a module of the user's."""
    if algo in ALGOS:
        return importlib.import_module(ALGOS[algo]).ALGORITHM
    module, _, name = algo.partition(":")
    trust.check(algo, module)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"algo={algo!r} cannot be loaded ({error}); write module:NAME of an Algorithm.") from None
    if not isinstance(found, Algorithm):
        raise UserError(f"algo={algo!r} is a {type(found).__name__}, not an Algorithm (kit.trainers.algorithm).")
    return found


def with_n_envs(config: RunConfig, n_envs: int) -> RunConfig:
    """A resolved `config` with another number of worlds, and what goes with it."""
    return config.replace(n_envs=n_envs, overrides=find(config.algo).rule(config.overrides, n_envs, {}, {}))


def largest_batch(rollout: int, at_most: int) -> int:
    """The largest divisor of `rollout` (steps × worlds) that is no more than `at_most`."""
    return next(size for size in range(min(rollout, at_most), 0, -1) if rollout % size == 0)
