"""Off-policy data between a trainer and its checkpoints: rows, numbered from the first one the run ever saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kit.format.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

PART_BYTES = 32_000_000
"""Of a segment's file, about: writing one takes as much memory again, and more."""


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of off-policy data: column name -> (rows, n_envs, ...), the first one numbered `start`."""

    start: int
    rows: dict[str, torch.Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else 0

    def parts(self) -> Iterator[Segment]:
        """The same rows in segments of at most `PART_BYTES`, a row at least, oldest first."""
        row_bytes = sum(column[:1].nbytes for column in self.rows.values())
        count = max(1, PART_BYTES // max(1, row_bytes))
        for first in range(0, len(self), count):
            yield Segment(self.start + first, {name: rows[first : first + count] for name, rows in self.rows.items()})


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
