"""A run's progress in the browser tab's title, and the browser's notification when the run has ended."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

ESM = """
function render({ model, el }) {
  // without this, an arrow key pressed in a <select> would go to the next cell of JupyterLab
  const keepKeys = ({ target }) => {
    if (target.tagName === "SELECT") target.setAttribute("data-lm-suppress-shortcuts", "true");
  };
  setTimeout(() => el.closest(".kit-dashboard")?.addEventListener("focusin", keepKeys), 0);
  const draw = (text) => {
    const before = window.kitTitle || "", now = text ? `${text} · ` : "";
    const title = document.title.startsWith(before) ? document.title.slice(before.length) : document.title;
    document.title = now + title;
    window.kitTitle = now;
  };
  model.on("change:title", () => draw(model.get("title")));
  const removed = () => draw("");
  if (!("Notification" in window) || !window.isSecureContext) return removed;
  const label = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.onchange = () => { if (box.checked) Notification.requestPermission(); };
  label.append(box, " Notify me when the run ends");
  el.append(label);
  model.on("change:ended", () => {
    if (box.checked && model.get("ended") && Notification.permission === "granted")
      new Notification(model.get("ended"));
  });
  return removed;
}
export default { render };
"""
"""In the page: sets the tab's title, and shows a checkbox that asks the browser for permission.

On Colab outputs are in a frame of another origin, which can do neither."""


@cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class Notice(anywidget.AnyWidget):
        _esm = ESM
        title = traitlets.Unicode("").tag(sync=True)
        ended = traitlets.Unicode("").tag(sync=True)

    return Notice


class Notice:
    """Text before the tab's title, and a notification when the run has ended. `view`: the widget that shows them.

    Without the package anywidget, nothing is shown.
    """

    def __init__(self, w: Any) -> None:
        self.view = _widget_class()() if find_spec("anywidget") else w.HTML()
        self.view.add_class("kit-notice")

    def show(self, title: str, ended: str = "") -> None:
        """Set the text before the tab's title; with `ended`, show this text as a notification."""
        self.view.title, self.view.ended = title, ended
