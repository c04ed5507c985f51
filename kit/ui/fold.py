"""Collapsible sections of panels. A button folds them, so that the keyboard and screen readers reach them.

The headers of ipywidgets' Accordion are plain divs, which take no focus.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kit.errors import explain
from kit.ui import style


def focus(widget: Any) -> None:
    """Move the keyboard's focus to `widget`, if ipywidgets is new enough (8)."""
    if hasattr(widget, "focus"):
        widget.focus()


class Fold:
    """A collapsible section: a button with the title, and below it, while `is_open`, the widgets `children`.

    The browser draws the children when they are first shown. `w`: ipywidgets; `name`: CSS class of the view.
    """

    def __init__(self, w: Any, title: str, name: str, children: Sequence[Any], is_open: bool = False) -> None:
        button = w.Layout(width="100%", height="auto")
        self.button = w.ToggleButton(value=is_open, layout=button, _dom_classes=("kit-fold-button",))
        self._children, self._content = tuple(children), w.VBox(layout=w.Layout(padding="6px 8px"))
        self._title, layout = title, w.Layout(max_width="920px", margin="4px 0")
        self.view = w.VBox([self.button, self._content], layout=layout, _dom_classes=(name, "kit-fold"))
        self.button.observe(lambda _: self._draw(), names="value")
        self._draw()

    @property
    def is_open(self) -> bool:
        """Whether the section shows its children."""
        return bool(self.button.value)

    @is_open.setter
    def is_open(self, value: bool) -> None:
        self.button.value = value

    def focus(self) -> None:
        focus(self.button)

    def set_title(self, title: str) -> None:
        """Set the text of the button."""
        self._title = title
        self._draw()

    def _draw(self) -> None:
        with self.button.hold_sync():  # one message
            self.button.description = f"{'▾' if self.is_open else '▸'} {self._title}"
            self.button.tooltip = f"press to {'close' if self.is_open else 'open'}"  # ipywidgets has no aria-expanded
        if self.is_open:
            self._content.children = self._children
        self._content.layout.display = "flex" if self.is_open else "none"


class PageFold(Fold):
    """A collapsible section with a page of HTML. When it is opened, `make` makes the page in a thread.

    `make` gets the arguments of the last `choose` call. `below`: widgets below the page.
    """

    def __init__(self, w: Any, title: str, name: str, make: Callable[..., style.Page], *below: Any) -> None:
        self._make, self.page = make, w.HTML()
        self._chosen: tuple[Any, ...] | None = None
        self._drawn: tuple[Any, ...] | None = None
        super().__init__(w, title, name, [self.page, *below])

    def choose(self, *arguments: Any) -> None:
        """Set the arguments of `make`. If the section is open, make the page again."""
        self._chosen = arguments
        self._draw()

    def _draw(self) -> None:
        super()._draw()
        chosen = self._chosen
        if not self.is_open or chosen is None or chosen == self._drawn:
            return
        self._drawn = chosen
        self.page.value = style.wrap(style.note("…"))

        def make() -> None:
            try:
                page = self._make(*chosen)._repr_html_()
                failed = False
            except Exception as error:
                page, failed = style.wrap(style.note(explain(error), bad=True)), True
            if chosen == self._drawn:
                self.page.value = page
                self._drawn = None if failed else chosen  # a failed page is made again when the section is opened

        threading.Thread(target=make, daemon=True).start()
