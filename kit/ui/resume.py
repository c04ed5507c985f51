"""The resume panel: every run with its progress; one button goes on with it."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kit.runs.api import list_runs, local_runs, resume
from kit.runs.run import Run
from kit.ui import style
from kit.ui.dashboard import Dashboard
from kit.ui.headless import follow, nobody_there

SHOWN = 12
"""Runs in the list, the latest first."""


@dataclass(frozen=True)
class Entry:
    """A run in the list: on this machine, or in a store."""

    name: str
    now: dict[str, Any]
    """At least state, step, total_steps, success_rate and updated."""
    choice: str | Path
    """What `kit.resume` is given."""
    working: Run | None = None
    """The run itself, if a process on this machine is at work on it."""

    @property
    def share(self) -> float:
        """Of the way, 0 to 1."""
        return min(1.0, self.now["step"] / max(1, self.now["total_steps"] or 1))


class ResumePanel:
    """The runs in `runs_dir` and in `store`, and a button for each that can go on.

    >>> panel = kit.ui.ResumePanel().show()

    `run` chooses one at once: its name, its path, or its URL in a store. `changes` are fields that may differ from the
    run's config. With nobody there (papermill), `show` goes on with `run`, by default with the latest unfinished one,
    on this machine or else in the store, and returns when it is done.
    """

    def __init__(
        self, run: str | Path | None = None, runs_dir: str = "runs", store: str | None = None, **changes: Any
    ) -> None:
        self.choice, self.runs_dir, self.store = run, runs_dir, store
        self.changes = {name: value for name, value in {"store": store, **changes}.items() if value is not None}
        self.run: Run | None = None
        self.on_end: list[Callable[[Run], None]] = []
        """Called with the run when it is finished."""

    def show(self) -> ResumePanel:
        """Display the panel, or resume now if nobody is there to choose."""
        if nobody_there():
            for entry in here(self.runs_dir) + there(self.store):
                print(line(entry))
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
        self._stored: list[Entry] = []
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
        elif self.store is not None:
            self.dashboard.do(self._look_into_store, f"Looking into {self.store}…")

    def _look_into_store(self) -> None:
        self._stored = there(self.store)
        self.dashboard.say("")
        self._draw()

    def _draw(self) -> None:
        local = here(self.runs_dir)
        known = {entry.name for entry in local}
        entries = local + [entry for entry in self._stored if entry.name not in known]
        text = f"The latest runs in {self.runs_dir}" + (f" and {self.store}:" if self._stored else ":")
        if not entries:
            text = f"No runs in {self.runs_dir} yet: train one with 01_train, or name the store that holds yours."
        self.table.children = [self._w.HTML(style.page(style.note(text))), *map(self._row, entries)]
        self._buttons.layout.display = "none" if self.run is None else ""

    def _row(self, entry: Entry) -> Any:
        w = self._w
        label, icon = ("Watch", "eye") if entry.working else ("Resume", "play")
        can = entry.working is not None or entry.now["state"] in ("interrupted", "failed") or self._goes_further(entry)
        label, icon = (label, icon) if can else ("Done", "check")
        layout = w.Layout(flex="0 0 auto", width="96px")
        button = w.Button(description=label, icon=icon, disabled=not can, layout=layout)
        button.add_class("kit-resume-button")
        button.on_click(partial(self._pressed, entry=entry))
        return w.HBox([button, w.HTML(style.wrap(row(entry)))], layout=w.Layout(align_items="center"))

    def _goes_further(self, entry: Entry) -> bool:
        """Whether a finished run is asked for more steps."""
        return entry.now["state"] == "finished" and int(self.changes.get("total_steps", 0)) > entry.now["step"]

    def _pressed(self, button: Any, entry: Entry) -> None:
        button.disabled = True
        if entry.working is not None:
            self._attach(entry.working)
        else:
            self._go(entry.choice)

    def _go(self, choice: str | Path) -> None:
        self.dashboard.do(lambda: self._attach(self._resume(choice)), "Going on from the last checkpoint…")

    def _attach(self, run: Run) -> None:
        self.run = run
        self.dashboard.attach(run)

    def _ended(self, run: Run) -> None:
        for end in self.on_end:
            end(run)


def here(runs_dir: str) -> list[Entry]:
    """The latest runs on this machine."""
    found = []
    for run in local_runs(runs_dir)[:SHOWN]:
        now = run.status()
        found.append(Entry(run.name, now, run.path, run if run.is_working(now) else None))
    return found


def there(store: str | None) -> list[Entry]:
    """The latest runs in a store. Raises `UserError` if it cannot be read."""
    runs = list_runs(store).to_dicts()[:SHOWN] if store is not None else []
    return [Entry(run["name"], run, f"{str(store).rstrip('/')}/{run['name']}") for run in runs]


def row(entry: Entry) -> str:
    """One run as a line of HTML: name, bar, how far, success, state, age."""
    now, percent = entry.now, 100 * entry.share
    colour, word = style.STATES.get(now["state"], (style.GREY, now["state"]))
    success = f"{style.percent(now['success_rate'])} success" if now["success_rate"] is not None else ""
    when = style.ago(now["updated"]) if now["updated"] else ""
    return (
        "<div class='kit-run'>"
        f"<span class='kit-name'>{html.escape(entry.name)}</span>"
        f"<span class='kit-bar'><div style='width:{percent:.0f}%;background:{colour}'></div></span>"
        f"<span>{percent:.0f} % of {now['total_steps'] or 0:,}</span><span>{success}</span>"
        f"<span style='color:{colour}'>{html.escape(word)}</span><span class='kit-dim'>{when}</span></div>"
    )


def line(entry: Entry) -> str:
    """The same as plain text."""
    filled = round(20 * entry.share)
    bar = "█" * filled + "░" * (20 - filled)
    far = f"{100 * entry.share:3.0f} % of {entry.now['total_steps'] or 0:,}"
    return f"{entry.name:<38} {bar} {far}  {entry.now['state']}"
