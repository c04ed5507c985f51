"""Write metrics.jsonl (one row each time the trainer logs or evaluates) and the same rows as TensorBoard events."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stable_baselines3.common.logger import Logger
    from torch.utils.tensorboard.writer import SummaryWriter

CLOCK = ("time/", "gpu/")
"""Prefixes of columns that measure time or the GPU. An interruption of the run changes only these columns."""


class Metrics:
    """Writes rows. A row is {"step": int, "rollout/ep_rew_mean": float, ...} with Stable-Baselines3's names.

    If the disk is full, rows wait in memory and are written with a later row; only `sync` raises the `OSError`.
    """

    def __init__(self, run_path: Path, rows: int) -> None:
        """`rows`: number of rows at the checkpoint. Later rows are deleted: their iterations are trained again."""
        self.rows = rows
        self.on_row: Callable[[dict[str, Any]], None] = lambda row: None
        """Called with each new row."""
        self._path = run_path / "metrics.jsonl"
        lines = self._path.read_bytes().splitlines(keepends=True)[:rows] if self._path.exists() else []
        if len(lines) < rows:
            raise ValueError(f"{self._path} has {len(lines)} rows; the checkpoint was written after {rows}")
        self._file = self._path.open("ab", buffering=0)
        self._size = sum(map(len, lines))
        self._file.truncate(self._size)
        self._waiting: list[bytes] = []
        before = [json.loads(line) for line in lines]
        self.last: dict[str, Any] = {name: value for row in before for name, value in row.items()}
        """The latest value of every column."""
        self._events = Events(run_path / "tb", before)

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one row with the numbers in `values`; other values (images, histograms) are skipped."""
        scalars = {name: x for name, x in values.items() if getattr(x, "shape", ()) in ((), (1,))}
        plain = {name: x.item() if hasattr(x, "item") else x for name, x in scalars.items()}
        row = {"step": step, **{name: value for name, value in plain.items() if isinstance(value, int | float)}}
        self._waiting.append((json.dumps(row) + "\n").encode())
        self.rows += 1
        if "test/step" not in row and ("eval/mean_return" in row or "rollout/ep_rew_mean" in row):
            # trained further since the final test
            self.last = {name: value for name, value in self.last.items() if not name.startswith("test/")}
        self.last |= row
        with contextlib.suppress(OSError):
            self._flush()
        self._events.add(row)
        self.on_row(row)

    def sync(self) -> None:
        """Flush all rows to disk. Called before each checkpoint, which stores the number of rows. Raises `OSError`."""
        self._flush()
        os.fsync(self._file.fileno())
        self._events.flush()

    def close(self) -> None:
        """Write waiting rows and close the files."""
        with contextlib.suppress(OSError):
            self._flush()
        self._file.close()
        self._events.close()

    def _flush(self) -> None:
        if self._waiting:
            data = b"".join(self._waiting)
            try:
                if self._file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._file.truncate(self._size)  # remove the partial line
                raise
            self._size += len(data)
            self._waiting.clear()


class Events:
    """Writes the rows of metrics.jsonl as TensorBoard events."""

    def __init__(self, folder: Path, before: list[dict[str, Any]]) -> None:
        """`before`: the rows of metrics.jsonl so far. They are written as events too if `folder` has none."""
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._is_broken = False
        has_events = any(folder.glob("events.*"))
        self._waiting = [] if has_events else list(before)
        self._purge_step = (before[-1]["step"] + 1 if before else 0) if has_events else None

    def add(self, row: dict[str, Any]) -> None:
        """Write the row's columns as scalars, after any rows that could not be written before."""
        self._waiting.append(row)
        if not self._is_broken:
            self._write()

    def _write(self) -> None:
        try:
            while self._waiting:
                row = self._waiting[0]
                for name, value in row.items():
                    if name != "step":
                        self._open().add_scalar(name, value, row["step"])
                self._waiting.pop(0)
        except OSError:  # the TensorBoard writer's thread died; after `flush` a new writer continues at this row
            self._purge_step, self._writer, self._is_broken = row["step"], None, True

    def flush(self) -> None:
        """Write everything to disk, also what could not be written before."""
        self._is_broken = False
        self._write()
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()

    def _open(self) -> SummaryWriter:
        if self._writer is None:  # imported late: the import takes most of a second
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
        return self._writer


def row_logger(metrics: Metrics, extra_columns: Callable[[], Mapping[str, Any]] = dict) -> Logger:
    """Return a Stable-Baselines3 logger; each dump adds one row: the logged values and `extra_columns()`."""
    from stable_baselines3.common.logger import KVWriter, Logger

    class Rows(KVWriter):
        def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
            metrics.add(step, {**key_values, **extra_columns()})

    return Logger(folder=None, output_formats=[Rows()])
