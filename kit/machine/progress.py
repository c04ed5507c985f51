"""Progress bars: tqdm in a terminal or a notebook, plain lines in a log file or a pipe."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

LINE_EVERY_S = 5.0
"""Shortest time between two lines, s; the last line may come sooner."""


def progress_bar(total: int | None = None, initial: int = 0, **options: Any) -> Any:
    """Return a progress bar on stderr: a tqdm bar, or `ProgressLines` if stderr is neither terminal nor notebook.

    `options` are tqdm's (desc, unit, unit_scale, leave).
    """
    if not is_interactive():
        return ProgressLines(total, initial, **options)
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=initial, dynamic_ncols=True, **options)


def is_interactive() -> bool:
    """Return whether stderr is a terminal or a notebook's output, where a bar can be redrawn in place."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


class ProgressLines:
    """Progress as lines of text: at most one per percent, and at most one in `LINE_EVERY_S` seconds.

    The first update and the end are written at once. It has those of tqdm's attributes and methods that kit uses.
    """

    def __init__(
        self, total: int | None = None, initial: int = 0, desc: str = "", unit: str = "it", unit_scale: bool = False,
        leave: bool = True, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.total, self.n, self.desc = total, initial, desc
        self._initial, self._unit, self._scale = initial, unit, unit_scale
        self._file, self._clock = file or sys.stderr, clock
        self._start_s, self._line_s = clock(), -math.inf
        self._written: int | None = None

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, n: int = 1) -> None:
        """Add `n` to the progress, and write a line if one is due."""
        self.n += n
        if self._clock() - self._line_s >= LINE_EVERY_S:
            self._write()

    def set_description_str(self, desc: str, refresh: bool = True) -> None:
        self.desc = desc

    def close(self) -> None:
        """Write the last line, unless there was no update or a line with the same percentage is already written."""
        if self._written is not None:
            self._write()

    def _percent(self) -> int:
        """Return the progress in whole percent; without a total, the count itself."""
        return int(100 * self.n / self.total) if self.total else self.n

    def _write(self) -> None:
        from tqdm.std import tqdm

        if self._percent() == self._written:
            return
        self._written, self._line_s = self._percent(), self._clock()
        text = tqdm.format_meter(
            self.n, self.total or 0, self._line_s - self._start_s, prefix=self.desc, unit=self._unit,
            unit_scale=self._scale, initial=self._initial,
            bar_format="{l_bar}{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]" if self.total else None,
        )  # fmt: skip
        print(text, file=self._file, flush=True)
