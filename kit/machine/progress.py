"""Progress bars: tqdm in a terminal or a notebook, plain lines in a log file or a pipe. Fractions as per cent."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import std

from kit.machine import host

LINE_EVERY_S = 5.0
"""Minimum seconds between two lines; the last line may come sooner."""
LINE = "{l_bar}{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"


def progress_bar(total: int | None = None, initial: int = 0, **options: Any) -> Any:
    """Return a progress bar on stderr: a tqdm bar, or `ProgressLines` if stderr is neither terminal nor notebook.

    `options` are tqdm's (desc, unit, unit_scale, leave).
    """
    if not is_interactive():
        return ProgressLines(total, initial, **options)
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=initial, dynamic_ncols=True, **options)


def percent(rate: float) -> str:
    """Format 0.97 as "97 %".

    With a decimal if rounding gives 0 or 100 % for a rate that is neither, such as 0.996.
    """
    text, exact = f"{100 * rate:.0f}", f"{100 * rate:.1f}"
    return f"{exact if text in ('0', '100') and exact not in ('0.0', '100.0') else text} %"


def add_earlier(bar: Any, amount: float) -> None:
    """Add what was done before this session to a progress bar, without counting it in the bar's rate."""
    bar.initial, bar.n, bar.last_print_n = bar.initial + amount, bar.n + amount, bar.last_print_n + amount


def set_total(bar: Any, total: float) -> None:
    """Set the total of a bar that was made without one, also of its widget in a notebook."""
    bar.total = total
    if container := getattr(bar, "container", None):
        widget = container.children[1]
        widget.max, widget.bar_style, widget.layout.width = max(total, 1), "", None


def is_interactive() -> bool:
    """Return whether stderr is a terminal or a notebook's output, where a bar can be redrawn in place."""
    return host.kernel() is not None or sys.stderr.isatty()


class ProgressLines(std.tqdm):
    """tqdm that writes lines: at most one per percent, and at most one in `LINE_EVERY_S` seconds.

    The first update and the end are written immediately.
    """

    monitor_interval = 0  # no thread that redraws
    _percent: int | None = None

    def __init__(self, total: int | None = None, initial: int = 0, **options: Any) -> None:
        super().__init__(
            total=total, initial=initial, bar_format=LINE, mininterval=LINE_EVERY_S, miniters=0, smoothing=0,
            delay=1e-9, **options,  # with delay > 0, tqdm prints no line before the first update
        )  # fmt: skip
        self.last_print_t = 0.0

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write a line if the whole percentage (without a total: the count) has changed since the last line."""
        percent = int(100 * self.n / self.total) if self.total else int(self.n)
        if percent != self._percent:
            self._percent = percent
            print(self, file=self.fp, flush=True)

    def close(self) -> None:
        if not self.disable and self._percent is not None:
            self.display()
        self.disable = True
