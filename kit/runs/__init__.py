"""Runs: directories that cannot be lost. `kit.runs(path_or_url)` lists them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.runs.finding import RunList, StoredRuns


class _Runs(ModuleType):
    """Makes this package callable: `kit.runs` is both the room and the function that lists what is in it."""

    def __call__(self, where: str = "runs") -> RunList | StoredRuns:
        from kit.runs.finding import list_runs

        return list_runs(where)


sys.modules[__name__].__class__ = _Runs
