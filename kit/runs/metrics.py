"""metrics.jsonl: one row per update and per evaluation, append-only; the same numbers as TensorBoard events."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from stable_baselines3.common.logger import Logger
    from torch.utils.tensorboard.writer import SummaryWriter

CLOCK = ("time/", "gpu/")
"""Columns that begin so are readings of the machine: the only ones that may differ between a cut run and an uncut
one."""


class Metrics:
    """Writes rows. A row is {"step": int, "rollout/ep_rew_mean": float, ...} with Stable-Baselines3's names."""

    def __init__(self, run_path: Path, rows: int) -> None:
        """Go on after the first `rows` rows; rows beyond them belong to work that was lost and will be done again."""
        self.rows = rows
        self._path = run_path / "metrics.jsonl"
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        if len(lines) < rows:
            raise ValueError(f"{self._path} has {len(lines)} rows; the checkpoint was written after {rows}")
        self._file = self._path.open("ab")
        self._file.truncate(sum(len(line) for line in lines[:rows]))
        self._folder = run_path / "tb"
        self._events: SummaryWriter | None = None
        self.last: dict[str, Any] = {}
        """The latest value of every column."""
        for line in lines[:rows]:
            self.last |= json.loads(line)
        self._purge_step: int | None = self.last["step"] + 1 if rows else None

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one row. Values are numbers; anything else is left to TensorBoard's own writers."""
        row = {"step": step, **{name: _number(value) for name, value in values.items() if _is_number(value)}}
        self._file.write((json.dumps(row) + "\n").encode())
        self._file.flush()
        self.rows += 1
        self.last |= row
        for name, value in row.items():
            if name != "step":
                self._tensorboard().add_scalar(name, value, step)

    def sync(self) -> None:
        """Make every row durable, before a checkpoint that counts them is committed."""
        os.fsync(self._file.fileno())
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _tensorboard(self) -> SummaryWriter:
        if self._events is None:  # here and not above: the import takes most of a second
            from torch.utils.tensorboard.writer import SummaryWriter

            self._events = SummaryWriter(str(self._folder), purge_step=self._purge_step)
        return self._events


def row_logger(metrics: Metrics, further: Callable[[], Mapping[str, Any]] = dict) -> Logger:
    """A Stable-Baselines3 logger whose every dump becomes one row, with the columns that `further` gives then."""
    from stable_baselines3.common.logger import KVWriter, Logger

    class Rows(KVWriter):
        def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
            metrics.add(step, {**key_values, **further()})

    return Logger(folder=None, output_formats=[Rows()])


def read(run_path: Path) -> list[dict[str, Any]]:
    """Every whole row; a line that is being written just now is left out."""
    try:
        data = (run_path / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def frame(run_path: Path) -> pd.DataFrame:
    """The rows as a DataFrame, one line per row, NaN where a row has no such column."""
    import pandas as pd

    return pd.DataFrame(read(run_path))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or hasattr(value, "item")


def _number(value: Any) -> int | float:
    return value.item() if hasattr(value, "item") else value
