"""The record that describes one algorithm to the rest of kit, defined beside its class.

    class Toy(OnPolicyTrainer, ...): ...
    ALGORITHM = Algorithm("Toy", Toy, stock=..., policy=..., actions=(spaces.Box,), row={...}, stock_row={...})

kit's own algorithms are listed in `kit.config.ALGOS`. Use your own with `algo="my_algos:ALGORITHM"`, which means
"module:variable". The rest of kit learns from these records what an algorithm supports.
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
"""(merged hyperparameters, n_envs, the preset's hyperparameters, the user's overrides) -> consistent
hyperparameters."""


def _unchanged(hyper: Row, n_envs: int, row: Row, requested: Mapping[str, Any]) -> Row:
    return hyper


@dataclass(frozen=True)
class Algorithm:
    """Description of an algorithm: its trainer class, SB3 counterpart, defaults and limits."""

    name: str
    trainer: type[TensorTrainer]
    stock: type[BaseAlgorithm]
    """SB3's class. `overrides` can set the parameters of its constructor except
    `kit.trainers.arguments.NOT_OVERRIDES`."""
    policy: type[BasePolicy]
    """SB3's policy class. `policy_kwargs` can set the parameters of its constructor that are in
    `kit.trainers.arguments.POLICY_KWARGS`."""
    actions: tuple[type[Space], ...]
    """Supported types of action space."""
    row: Row
    """Hyperparameters that differ from SB3's defaults, for tasks without tuned hyperparameters in `kit.presets`."""
    stock_row: Row
    """Hyperparameters of the preset sb3: SB3's own defaults, for comparisons."""
    columns: tuple[str, ...] = ("net_arch",)
    """Hyperparameters, besides `n_envs`, that the presets fast, heavy and beast change for this algorithm."""
    heads: tuple[str, str] = ("pi", "vf")
    """Names of the two networks in a `net_arch` dict."""
    rule: Rule = field(default=_unchanged)
    """Adapts hyperparameters to `n_envs` and to each other. Raises `UserError` if the user's overrides contradict each
    other."""
    more_envs: bool = False
    """Whether n_envs="auto" may choose more envs than `row` has. The rollout, n_steps × n_envs, then grows too."""
    distributed: bool = False
    """Whether several processes can train it (`kit.trainers.distributed`)."""
    fewer_envs: bool = True
    """Whether a run that is out of memory may continue with fewer envs."""
    own: Mapping[str, type] = field(default_factory=dict)
    """Hyperparameter that `trainer` has and SB3's class does not -> its type."""
    used: tuple[str, ...] = ()
    """Hyperparameters of SB3's class that `trainer` has too; empty: all."""
    clip_encoder: str = "auto"
    """The encoder that encoder="auto" chooses for frame stacks of images."""
    taught: bool = False
    """Whether it learns from a teacher (`RunConfig.teacher`), which needs the observation group "teacher"."""
    dataset: str = ""
    """Use of recorded episodes (`RunConfig.dataset`): "needed", "optional", or "" if it does not learn from them."""
    memory_remedy: str = "network, n_steps or batch_size"
    """Settings that the out-of-memory message advises to reduce."""


def find(algo: str) -> Algorithm:
    """Return the record of `algo`: a name in `ALGOS`, or "module:NAME" of your own. Raises `UserError` if unknown."""
    if algo in ALGOS:
        return importlib.import_module(ALGOS[algo]).ALGORITHM
    module = algo.partition(":")[0]
    if not all(module.split(".")):
        raise UserError(f"algo={algo!r}: {module!r} is no module's name; write module:NAME of an Algorithm.")
    record = trust.load("algo", algo, algo, "module:NAME of an Algorithm")
    if not isinstance(record, Algorithm):
        raise UserError(f"algo={algo!r} is not a record (kit.trainers.algorithm.Algorithm); name the record.")
    return record


def with_n_envs(config: RunConfig, n_envs: int) -> RunConfig:
    """Return the resolved `config` (no "auto" left) with `n_envs` envs and hyperparameters adapted to them."""
    row = {**config.overrides, "n_envs": config.n_envs}
    return config.replace(n_envs=n_envs, overrides=find(config.algo).rule(config.overrides, n_envs, row, {}))


def largest_batch(rollout_size: int, at_most: int) -> int:
    """Return the largest divisor of `rollout_size` (n_steps × n_envs) that is no more than `at_most`."""
    return next(size for size in range(min(rollout_size, at_most), 0, -1) if rollout_size % size == 0)
