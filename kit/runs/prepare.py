"""Check and plan a new run before anything is created: config, warm start, opponents, tracker, store.

Opponents are policies of other runs that a game plays against.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kit.config import RunConfig
from kit.errors import need
from kit.runs import opponents
from kit.runs.warm_start import WarmStart, warm_start
from kit.trust import permit

if TYPE_CHECKING:
    from kit.trainers.planning import Plan


class PreparedRun(NamedTuple):
    """The plan and warm start of a run that can be created."""

    plan: Plan
    warm_start: WarmStart | None
    """The pretrained policy that the run starts with."""


def prepare_run(
    config: RunConfig | None,
    changes: dict[str, Any],
    start_from: str | Path | None = None,
    trust: bool = False,
    other_process: bool = False,
) -> PreparedRun:
    """Check `config` with `changes` and plan the run; `start_from` and `trust` as in `kit.train`.

    `other_process`: whether another process will train it. Raises `UserError` if the run cannot be made.
    """
    from kit import envs
    from kit.trainers.planning import plan

    user_config, warm = config, None
    config = (user_config or RunConfig()).replace(**changes)
    if start_from is not None:
        warm = warm_start(start_from, trust, config.runs_dir, config.algo)
        config = warm.make_config(user_config, changes)
    permit(config, trust)
    if other_process or config.processes > 1:
        envs.child_environ(config)  # raises if another process cannot make the env
    opponents.check(config)
    if config.tracker is not None:
        need(config.tracker.partition(":")[0], "track")
    planned = plan(config)
    if planned.config.store:
        from kit.stores import open_store

        open_store(planned.config.store, write=True)  # a store that cannot be written raises now, not after an hour
    return PreparedRun(planned, warm)
