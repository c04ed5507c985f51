"""What to keep of a run's checkpoints: a function of what there is and of how much room there is, and of nothing else.

By age, the last three stay, and the newest of each hour of the last day. What is then too large for the room goes,
oldest first, since the oldest alone need the oldest replay data. The newest stays whatever it takes. Best policies lie
elsewhere and always stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

KEEP_LAST = 3
KEEP_HOURS = 24
SPARE_PART, SPARE_BYTES = 0.05, 2**30
"""Of a disk, the smaller of the two stays free: for metrics, films, and whoever else writes there."""


class Held(NamedTuple):
    """A checkpoint and what it takes."""

    step: int
    time: float
    """Unix seconds."""
    files: Mapping[str, int]
    """Bytes of each file it needs, by the path in the run; several checkpoints may name the same one."""


def outdated(found: Sequence[Held], room: float, now: float) -> set[int]:
    """Steps of those that are to go; `found` has the oldest first. What stays takes at most `room` bytes, or is the
    newest alone."""
    hours = {each.time // 3600: each.step for each in found if now - each.time < 3600 * KEEP_HOURS}
    kept = [each for each in found if each in found[-KEEP_LAST:] or each.step in hours.values()]
    while len(kept) > 1 and size(kept) > room:
        kept.pop(0)
    return {each.step for each in found} - {each.step for each in kept}


def size(found: Sequence[Held]) -> int:
    """Bytes of all of them together; a file that several need lies there once."""
    return sum({path: size for each in found for path, size in each.files.items()}.values())


def room(budget: int, held: int, free: int, disk: int) -> float:
    """Bytes that checkpoints may take, of which `held` are taken, on a disk of `disk` bytes with `free` ones."""
    return min(budget, held + free - min(SPARE_PART * disk, SPARE_BYTES))
