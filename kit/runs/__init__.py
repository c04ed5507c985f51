"""Runs: start, resume, evaluate, export and publish them. `kit.runs(path_or_url)` lists the runs in a folder or store.

A run is a directory with exactly resumable checkpoints (`kit.runs.directory` lists its files).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.runs.finding import RunList, StoredRuns


class _Runs(ModuleType):
    """Makes the package callable: `kit.runs(where)` lists the runs in the folder or store `where`."""

    def __call__(self, where: str = "runs") -> RunList | StoredRuns:
        from kit.runs.finding import list_runs

        return list_runs(where)


sys.modules[__name__].__class__ = _Runs
