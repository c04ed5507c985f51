"""Checkpoint retention: decide which checkpoints of a run to delete, from their age, their size and the disk space.

Retention keeps the last three checkpoints, and the newest of every hour of the last 24 hours. If these need more than
the available room, the oldest are deleted first, which also frees the oldest replay data. The newest
checkpoint is always kept. The best policy is stored in another folder, which retention ignores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

KEEP_LAST = 3
KEEP_HOURS = 24
SPARE_FRACTION, SPARE_BYTES = 0.05, 2**30
"""Disk space left free for metrics, videos and other programs: a fraction of the disk or a number of bytes,
whichever is smaller."""


class Held(NamedTuple):
    """A checkpoint with its age and size."""

    step: int
    time: float
    """Time of writing in Unix seconds."""
    files: Mapping[str, int]
    """Files that the checkpoint needs: path in the run -> bytes. Checkpoints may share files."""


def outdated(checkpoints: Sequence[Held], room: float, now: float) -> set[int]:
    """Return the steps of `checkpoints` (oldest first) to delete, so that the others take at most `room` bytes."""
    hours = {each.time // 3600: each.step for each in checkpoints if now - each.time < 3600 * KEEP_HOURS}
    kept = [each for each in checkpoints if each in checkpoints[-KEEP_LAST:] or each.step in hours.values()]
    while len(kept) > 1 and size(kept) > room:
        kept.pop(0)
    return {each.step for each in checkpoints} - {each.step for each in kept}


def size(checkpoints: Sequence[Held]) -> int:
    """Return the bytes of all `checkpoints` together; a shared file counts once."""
    return sum({path: size for each in checkpoints for path, size in each.files.items()}.values())


def room(budget: int, held: int, free: int, disk: int) -> float:
    """Return the bytes that checkpoints may use: at most `budget`, with the spare space left free.

    Checkpoints use `held` bytes now; the disk has `disk` bytes, of which `free` are free.
    """
    return min(budget, held + free - min(SPARE_FRACTION * disk, SPARE_BYTES))
