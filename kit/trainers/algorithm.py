"""The record that describes one algorithm to the rest of kit, defined beside its class.

    class Toy(OnPolicyTrainer, ...): ...
    ALGORITHM = Algorithm("Toy", Toy, stock=..., policy=..., actions=(spaces.Box,), row={...}, stock_row={...})

kit's own algorithms are listed in `kit.config.ALGOS`. Use your own as `algo="my_algos:ALGORITHM"`, module and record.
No other code in kit knows an algorithm by name.
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
"""Function (hyper, n_envs, row, requested) -> consistent hyperparameters.

`hyper`: the hyperparameters to be used; `row`: those of the preset; `requested`: the user's overrides.
"""


def _unchanged(hyper: Row, n_envs: int, row: Row, requested: Mapping[str, Any]) -> Row:
    return hyper


@dataclass(frozen=True)
class Algorithm:
    """Description of an algorithm: its trainer class, SB3 counterpart, defaults and limits."""

    name: str
    trainer: type[TensorTrainer]
    stock: type[BaseAlgorithm]
    """SB3's class; its constructor parameters are the valid overrides."""
    policy: type[BasePolicy]
    """SB3's policy class; its constructor parameters are the valid `policy_kwargs`."""
    actions: tuple[type[Space], ...]
    """Supported types of action space."""
    row: Row
    """`n_envs` and hyperparameters for tasks without tuned ones, with enough envs to keep the cores busy. The rest are
    SB3's defaults."""
    stock_row: Row
    """The same with Stable-Baselines3's own defaults, for comparisons (preset sb3)."""
    columns: tuple[str, ...] = ("net_arch",)
    """Names of the hyperparameters that the presets fast, heavy and beast set (columns of their table)."""
    heads: tuple[str, str] = ("pi", "vf")
    """Names of the two networks in a `net_arch` dict."""
    rule: Rule = field(default=_unchanged)
    """Makes hyperparameters consistent, such as a `batch_size` that divides the rollout. Raises `UserError` if the
    user's overrides contradict each other."""
    more_envs: bool = False
    """Whether `auto` may take more envs than the row, with rollouts that grow with them."""
    distributed: bool = False
    """Whether several processes can train it (`kit.trainers.distributed`)."""
    imported: tuple[str, ...] = ()
    """Names of the hyperparameters that a run started from an SB3 zip takes from it."""
    fewer_envs: bool = True
    """Whether a run that is out of memory may continue with fewer envs."""
    own: Mapping[str, type] = field(default_factory=dict)
    """Hyperparameters that SB3 does not have, with their types."""
    memory_remedy: str = "network, n_steps or batch_size"
    """Settings to reduce, named in the message when a run stays out of memory."""


def find(algo: str) -> Algorithm:
    """Look up an algorithm: a name in `ALGOS`, or "module:NAME" of a user's record. Raises `UserError`."""
    if algo in ALGOS:
        return importlib.import_module(ALGOS[algo]).ALGORITHM
    module, _, name = algo.partition(":")
    trust.check(algo, module)
    try:
        record = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"algo={algo!r} cannot be loaded ({error}); write module:NAME of an Algorithm.") from None
    if not isinstance(record, Algorithm):
        raise UserError(f"algo={algo!r} is a {type(record).__name__}, not an Algorithm (kit.trainers.algorithm).")
    return record


def with_n_envs(config: RunConfig, n_envs: int) -> RunConfig:
    """A resolved `config` with another number of envs and hyperparameters that fit it."""
    return config.replace(n_envs=n_envs, overrides=find(config.algo).rule(config.overrides, n_envs, {}, {}))


def largest_batch(rollout_size: int, at_most: int) -> int:
    """Return the largest divisor of `rollout_size` (n_steps × n_envs) that is no more than `at_most`."""
    return next(size for size in range(min(rollout_size, at_most), 0, -1) if rollout_size % size == 0)
