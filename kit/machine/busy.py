"""Whether other programs took the cores away while something was measured."""

from __future__ import annotations

import time
from pathlib import Path

BUSY = 0.03
"""The part of its time that a thread waits for a core. Probes on two cores were seen to wait 0.000 of it, and 0.10 to
0.14 beside one other program that computes."""
SAID = "while other programs use the cores"


class Watch:
    """Begins when it is made, and looks at the thread that asks it."""

    def __init__(self) -> None:
        self._begun, self._waited_s = time.perf_counter(), _waited_s()

    def busy(self) -> bool:
        """False where the system does not say."""
        return _waited_s() - self._waited_s > BUSY * (time.perf_counter() - self._begun)


def _waited_s() -> float:
    """Seconds for which this thread could have run but had no core (Linux: Documentation/scheduler/sched-stats.rst)."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
