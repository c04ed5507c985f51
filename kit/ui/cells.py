"""Cells and panels: a newer run of a cell replaces its panel, and buttons answer while another cell runs."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from kit.ui.headless import shell_of_notebook

_replaced: dict[str, list[Any]] = {}
"""Id of a cell -> what an earlier run of it has shown, if nothing has taken its place."""
_stops: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
"""Id of a cell -> methods that stop what its last run has shown."""


def when_run_again(stop: Callable[[], object]) -> None:
    """Call `stop` when the notebook runs the present cell again.

    Never outside a cell, such as in a button's callback, and in Jupyter Notebook 6, which does not say which cell runs.
    """
    if cell := _cell():
        _listen()
        _stops[cell].append(stop)


def replaced_by(panel: Any) -> Any:
    """Return the panel of the same class that an earlier run of this cell has shown, or None."""
    replaced = _replaced.get(_cell() or "", [])
    older = next((each for each in replaced if type(each) is type(panel)), None)
    if older is not None:
        replaced.remove(older)
    return older


def answer_meanwhile(view: Any) -> None:
    """Let `view` and the widgets in it answer while a cell runs, where JupyterLab offers that (4.4 with ipykernel 7).

    JupyterLab sends what the user does to a subshell, a thread of the kernel. But ipykernel 7.4 hands it to the shell
    that changed the widget last, so that, after a change by a cell or a thread, a button waits for the cell that runs.
    """
    comm: Any = getattr(view, "comm", None)
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, sent_to: sent_to
    if not hasattr(view, "children"):
        return

    def each(children: Iterable[Any]) -> None:
        for child in children:
            answer_meanwhile(child)

    each(view.children)
    view.observe(lambda change: each(change["new"]), names="children")


def _cell() -> str | None:
    """Return the id of the cell that runs, as JupyterLab, VS Code and Colab send it with the code, or None."""
    shell = shell_of_notebook()
    sent = shell.get_parent().get("metadata", {}) if shell else {}
    cell: str | None = sent.get("cellId") or sent.get("colab", {}).get("cell_id")
    return cell


@cache
def _listen() -> None:
    shell_of_notebook().events.register("pre_run_cell", _begin)


def _begin(_: object) -> None:
    """Stop what the last run of this cell has shown."""
    cell = _cell() or ""
    if stops := _stops.pop(cell, []):
        _replaced[cell] = [getattr(stop, "__self__", None) for stop in stops]
    for stop in stops:
        with contextlib.suppress(Exception):  # such as of a dashboard whose run was deleted
            stop()
