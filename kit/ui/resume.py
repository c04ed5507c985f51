"""The resume panel: every run with its progress; one button goes on with it."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kit.runs.api import local_runs, resume
from kit.runs.run import Run
from kit.ui import style
from kit.ui.dashboard import Dashboard
from kit.ui.headless import follow, nobody_there

SHOWN = 12
"""Runs in the list, the latest first."""


class ResumePanel:
    """The runs in `runs_dir`, and a button for each that can go on.

    >>> panel = kit.ui.ResumePanel().show()

    `run` chooses one at once: its name, its path, or the URL of a run in a store. With nobody there (papermill), `show`
    goes on with `run`, by default with the latest unfinished one, and returns when it is done.
    """

    def __init__(self, run: str | Path | None = None, runs_dir: str = "runs", **changes: Any) -> None:
        self.choice, self.runs_dir, self.changes = run, runs_dir, changes
        self.run: Run | None = None
        self.on_end: list[Callable[[Run], None]] = []

    def show(self) -> ResumePanel:
        """Display the panel, or resume now if nobody is there to choose."""
        if nobody_there():
            print_table(self.runs_dir)
            self.run = self._resume(self.choice)
            follow(self.run)
        else:
            self._build()
        return self

    def _resume(self, choice: str | Path | None) -> Run:
        return resume(choice, runs_dir=self.runs_dir, background=True, **self.changes)

    # -- with somebody there ---------------------------------------------------------------------------------------

    def _build(self) -> None:
        import ipywidgets as w
        from IPython.display import display

        self._w = w
        self.dashboard = Dashboard()
        self.dashboard.on_end.append(self._ended)
        self.dashboard.on_change.append(self._draw)
        self.table = w.VBox([])
        self._buttons = w.HBox(self.dashboard.buttons)
        self.view = w.VBox([self.table, self._buttons, self.dashboard.view])
        self.view.add_class("kit-resume-panel")
        self._draw()
        display(self.view)
        if self.choice is not None:
            self._go(self.choice)

    def _draw(self) -> None:
        runs = local_runs(self.runs_dir)[:SHOWN]
        where = html.escape(self.runs_dir)
        text = f"No runs in {where} yet: train one with 01_train." if not runs else f"The latest runs in {where}:"
        self.table.children = [self._w.HTML(style.page(style.note(text))), *map(self._row, runs)]
        self._buttons.layout.display = "none" if self.run is None else ""

    def _row(self, run: Run) -> Any:
        now, w = run.status(), self._w
        state, working = now["state"], run.is_working()
        can = state in ("interrupted", "failed") or working
        label, icon = ("Watch", "eye") if working else ("Resume", "play")
        label, icon = (label, icon) if can else ("Done", "check")
        button = w.Button(description=label, icon=icon, disabled=not can, layout=w.Layout(width="96px"))
        button.add_class("kit-resume-button")
        button.on_click(partial(self._pressed, run=run, working=working))
        return w.HBox([button, w.HTML(style.wrap(row(run, now)))], layout=w.Layout(align_items="center"))

    def _pressed(self, button: Any, run: Run, working: bool) -> None:
        button.disabled = True
        if working:
            self._attach(run)
        else:
            self._go(run.path)

    def _go(self, choice: str | Path) -> None:
        self.dashboard.do(lambda: self._attach(self._resume(choice)), "Going on from the last checkpoint…")

    def _attach(self, run: Run) -> None:
        self.run = run
        self.dashboard.attach(run)

    def _ended(self, run: Run) -> None:
        for end in self.on_end:
            end(run)


def row(run: Run, now: dict[str, Any]) -> str:
    """One run as a line of HTML: name, bar, how far, success, state."""
    colour, word = style.STATES.get(now["state"], (style.GREY, now["state"]))
    done = min(1.0, now["step"] / max(1, now["total_steps"]))
    success = f"{style.percent(now['success_rate'])} success" if now["success_rate"] is not None else ""
    when = style.ago(now["updated"]) if now["updated"] else ""
    return (
        "<div class='kit-run'>"
        f"<span class='kit-name'>{html.escape(run.name)}</span>"
        f"<span class='kit-bar'><div style='width:{100 * done:.0f}%;background:{colour}'></div></span>"
        f"<span>{100 * done:.0f} % of {now['total_steps']:,}</span><span>{success}</span>"
        f"<span style='color:{colour}'>{html.escape(word)}</span><span class='kit-dim'>{when}</span></div>"
    )


def print_table(runs_dir: str) -> None:
    """The same list as plain text."""
    for run in local_runs(runs_dir)[:SHOWN]:
        now = run.status()
        bar = round(20 * min(1.0, now["step"] / max(1, now["total_steps"])))
        share = 100 * now["step"] // max(1, now["total_steps"])
        print(f"{run.name:<38} {'█' * bar}{'░' * (20 - bar)} {share:3d} % of {now['total_steps']:,}  {now['state']}")
