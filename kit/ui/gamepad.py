"""Gamepad: the sticks of a gamepad that is plugged in where the browser runs, read by ipywidgets."""

from __future__ import annotations

from typing import Any

import numpy as np

DEAD_ZONE = 0.12
"""Largest deflection, from 0 to 1, of a stick that counts as released: worn sticks do not return to 0."""


class Gamepad:
    """The first gamepad of the browser. A browser shows it to the page only after one of its buttons was pressed.

    `widget`: an `ipywidgets.Controller`; a browser reads the gamepad only while it displays the widget.
    """

    def __init__(self, widgets: Any) -> None:
        self.widget = widgets.Controller(index=0)

    def sticks(self) -> np.ndarray:
        """Return the deflections (4,) of the sticks, from -1 to 1: left x, left y, right x, right y; up is positive.

        Without a gamepad they are 0. The widget's axes are those of the W3C's standard gamepad: down is positive.
        """
        axes = [axis.value for axis in self.widget.axes[:4]] if self.widget.connected else []
        found = np.zeros(4)
        found[: len(axes)] = axes
        found[np.abs(found) < DEAD_ZONE] = 0.0
        return found * np.array([1.0, -1.0, 1.0, -1.0])
