"""A request for a new run: whatever can be refused about it is refused here, before anything is created."""

from __future__ import annotations

from functools import partial
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
    """What a run is to be."""

    plan: Plan
    warm_start: WarmStart | None
    """The pretrained policy that it starts with."""


def prepare_run(
    config: RunConfig | None,
    changes: dict[str, Any],
    start_from: str | Path | None = None,
    trust: bool = False,
    other_process: bool = False,
    gpu_share: int = 1,
) -> PreparedRun:
    """Of `config` with `changes`, as for `kit.train`; `other_process`: for another process to train in. Where a GPU's
    memory decides the number of envs, one of `gpu_share` runs gets its part. Raises `UserError`."""
    from kit import envs
    from kit.measure.fit import room
    from kit.trainers.planning import plan

    given, warm = config, None
    config = (given or RunConfig()).replace(**changes)
    if start_from is not None:
        warm = warm_start(start_from, trust, config.runs_dir, config.algo)
        config = warm.complete(given, changes)
    permit(config, trust)
    if other_process or config.processes > 1:
        envs.carry(config)  # an env that no other process can make is refused
    opponents.check(config)
    if config.tracker is not None:
        need(config.tracker.partition(":")[0], "track")
    planned = plan(config, partial(room, share=gpu_share))
    if planned.config.store:
        from kit.stores import open_store

        open_store(planned.config.store, write=True)  # what cannot be written is said now, not after an hour
    return PreparedRun(planned, warm)
