"""Heartbeat of panels: warn that the kernel is gone, and look for runs that other programs started.

A panel whose kernel is gone looks alive, and its buttons do nothing. So each panel holds a hidden warning (`NOTICE`),
which a thread of the kernel redraws every `BEAT_S`. If it is not redrawn for 30 s, a CSS animation, which needs no
kernel, makes it visible (`kit-silent` in `kit.ui.style.CSS`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from kit.ui import cells, style

BEAT_S = 10.0
NOTICE = (
    "This panel has no connection to its kernel. A run that is training goes on: <code>kit.ui.runs()</code> in a "
    "new cell shows and controls it."
)
REPLACED = "This panel no longer changes: its cell has run again."

_boxes: list[Any] = []
_refreshes: list[Callable[[], None]] = []


def add(box: Any, refresh: Callable[[], None] | None = None) -> None:
    """Draw the notice in `box`, an HTML widget, now and every `BEAT_S`, until the panel's cell runs again.

    `refresh` is called every `BEAT_S` too, in a thread of its own, because it may wait for a disk.
    """
    _start()
    _boxes.append(box)
    _draw(box, 0)
    if refresh is not None:
        _refreshes.append(refresh)

    def end() -> None:
        _boxes.remove(box)
        box.value = style.wrap(style.note(REPLACED))  # seen only where the panel is displayed a second time
        if refresh is not None:
            _refreshes.remove(refresh)

    cells.when_run_again(end)


def cover(w: Any, view: Any, refresh: Callable[[], None] | None = None) -> None:
    """Let the notice cover `view`, a box of widgets, when the kernel is gone. `w`: ipywidgets; `refresh`: see `add`."""
    box = w.HTML()
    box.add_class("kit-alive")
    view.add_class("kit-dashboard")  # the CSS puts the notice over it
    view.children = (*view.children, box)
    add(box, refresh)


@cache
def _start() -> None:
    for beat in (_draw_all, _refresh_all):
        threading.Thread(target=_repeat, args=(beat,), name="heartbeat", daemon=True).start()


def _repeat(beat: Callable[[int], None]) -> None:
    for count in itertools.count(1):
        time.sleep(BEAT_S)
        beat(count)


def _draw_all(count: int) -> None:
    for box in list(_boxes):
        with contextlib.suppress(Exception):  # a closed widget, or a kernel that is shutting down
            _draw(box, count)


def _refresh_all(_: int) -> None:
    for refresh in list(_refreshes):
        with contextlib.suppress(Exception):  # a folder that is gone for a moment; the next beat tries again
            refresh()


def _draw(box: Any, count: int) -> None:
    """Draw the notice. A new `count` makes a new element, so that the animation starts again."""
    box.value = style.wrap(f"<div class='kit-silent' role='status' data-beat='{count}'>{NOTICE}</div>")
