"""Replay data on disk: each file holds a segment of consecutive rows.

A row is one step of all envs; the run's first row has number 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kit.format.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

DONE, RAGGED = "done", "ends."
"""Name of the column of episode ends, (rows, n_envs) bool, and prefix of ragged columns. A ragged column holds, for
example, the last images of episodes: one entry for each True in "done", in the same order, instead of one per row."""
PART_BYTES = 32_000_000
"""Approximate maximum size of a segment's file. Writing a segment of this size needs as much additional memory,
because the file's bytes are made in memory first."""


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of replay data: column name -> (rows, n_envs, ...); the first row has number `start`."""

    start: int
    rows: dict[str, torch.Tensor]

    def __len__(self) -> int:
        return next((len(column) for name, column in self.rows.items() if not name.startswith(RAGGED)), 0)

    def part(self, first: int, last: int) -> Segment:
        """Return the segment's rows [first, last), counted from its start."""
        rows = {name: column[first:last] for name, column in self.rows.items() if not name.startswith(RAGGED)}
        if DONE in self.rows:
            a, b = (int(self.rows[DONE][:stop].sum()) for stop in (first, last))
            rows |= {name: column[a:b] for name, column in self.rows.items() if name.startswith(RAGGED)}
        return Segment(self.start + first, rows)

    def parts(self) -> Iterator[Segment]:
        """Split into segments of at most `PART_BYTES`, but at least one row each, oldest first."""
        row_bytes = sum(column.nbytes for column in self.rows.values()) // max(1, len(self))
        count = max(1, PART_BYTES // max(1, row_bytes))
        for first in range(0, len(self), count):
            yield self.part(first, min(first + count, len(self)))


@runtime_checkable
class OffPolicy(Protocol):
    """Interface of a trainer with a replay buffer. The replay data is saved in segments, not in its `state()`."""

    replay_capacity: int
    replay_written: int
    replay_first: int

    def forget_replay(self) -> None: ...
    def replay_rows(self, start: int, stop: int) -> dict[str, torch.Tensor]: ...
    def load_replay(self, rows: dict[str, torch.Tensor], start: int) -> None: ...


def load_replay(trainer: OffPolicy, checkpoint: Checkpoint) -> None:
    """Load the replay data of `checkpoint` into `trainer`, segment by segment."""
    from safetensors.torch import load_file

    for path in checkpoint.replay():
        trainer.load_replay(load_file(path), int(path.stem))
