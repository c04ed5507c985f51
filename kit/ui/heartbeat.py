"""A notice over panels whose kernel is gone: their buttons would look alive and do nothing.

A thread of the kernel redraws each panel's notice every `BEAT_S`. The notice becomes visible `kit-silent`'s 30 s (see
`kit.ui.style.CSS`) after it was last drawn, by a CSS animation, which needs no kernel.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import Any

from kit.ui import style

BEAT_S = 10.0
NOTICE = (
    "This panel has no connection to its kernel: run its cell again. A run that is training goes on, and the panel "
    "shows it again."
)

_boxes: list[Any] = []
_beating = threading.Event()


def add(box: Any) -> None:
    """Draw the notice in `box`, an HTML widget, now and from time to time, as long as this kernel lives."""
    _boxes.append(box)
    _draw(box, 0)
    if not _beating.is_set():
        _beating.set()
        threading.Thread(target=_beat, name="heartbeat", daemon=True).start()


def _beat() -> None:
    for count in itertools.count(1):
        time.sleep(BEAT_S)
        for box in list(_boxes):
            with contextlib.suppress(Exception):  # a closed widget, or a kernel that is shutting down
                _draw(box, count)


def _draw(box: Any, count: int) -> None:
    """Draw the notice. A new `count` makes a new element, so that the animation starts again."""
    box.value = style.wrap(f"<div class='kit-silent' role='status' data-beat='{count}'>{NOTICE}</div>")
