"""Off-policy data between a trainer and its checkpoints: rows, numbered from the first one the run ever saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kit.format.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

DONE, RAGGED = "done", "ends."
"""Columns whose names begin with the latter hold no entry for each row, but one for each True in the former (rows,
n_envs), in its order."""
PART_BYTES = 32_000_000
"""Of a segment's file, about: writing one takes as much memory again, and more."""


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of off-policy data: column name -> (rows, n_envs, ...), the first one numbered `start`."""

    start: int
    rows: dict[str, torch.Tensor]

    def __len__(self) -> int:
        return next((len(column) for name, column in self.rows.items() if not name.startswith(RAGGED)), 0)

    def part(self, first: int, last: int) -> Segment:
        """Those of its rows from `first` up to `last`, counted from its own beginning."""
        rows = {name: column[first:last] for name, column in self.rows.items() if not name.startswith(RAGGED)}
        if DONE in self.rows:
            a, b = (int(self.rows[DONE][:stop].sum()) for stop in (first, last))
            rows |= {name: column[a:b] for name, column in self.rows.items() if name.startswith(RAGGED)}
        return Segment(self.start + first, rows)

    def parts(self) -> Iterator[Segment]:
        """The same rows in segments of at most `PART_BYTES`, a row at least, oldest first."""
        row_bytes = sum(column.nbytes for column in self.rows.values()) // max(1, len(self))
        count = max(1, PART_BYTES // max(1, row_bytes))
        for first in range(0, len(self), count):
            yield self.part(first, min(first + count, len(self)))


@runtime_checkable
class OffPolicy(Protocol):
    """A trainer whose data outlives an iteration."""

    replay_capacity: int
    replay_written: int
    replay_first: int

    def forget_replay(self) -> None: ...
    def replay_rows(self, start: int, stop: int) -> dict[str, torch.Tensor]: ...
    def load_replay(self, rows: dict[str, torch.Tensor], start: int) -> None: ...


def load_replay(trainer: OffPolicy, found: Checkpoint) -> None:
    """Put the off-policy data that `found` needs back into `trainer`, segment by segment."""
    from safetensors.torch import load_file

    for path in found.replay():
        trainer.load_replay(load_file(path), int(path.stem))
