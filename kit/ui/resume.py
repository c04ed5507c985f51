"""The resume panel: every run with its progress; one button goes on with it."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kit.runs.api import resume
from kit.runs.finding import RunList, list_runs
from kit.runs.run import Run
from kit.runs.status import WORKING
from kit.ui import style
from kit.ui.panel import Panel

SHOWN = 12
"""Runs in the list, the latest first."""
Entry = dict[str, Any]
"""Of a run on this machine or in a store: what `kit.runs` says of it, "choice", which `kit.resume` is given, and
"at_work", whether a process on this machine is."""


class ResumePanel(Panel):
    """The runs in `runs_dir` and in `store`, and a button for each that can go on.

    >>> panel = kit.ui.ResumePanel().show()

    `run` chooses one at once: its name, its path, or its URL in a store. `changes` are fields that may differ from the
    run's config, and `trust` as in `kit.resume`. With nobody there, `run` goes on, or the latest unfinished one, on
    this machine or else in the store.
    """

    def __init__(
        self,
        run: str | Path | None = None,
        runs_dir: str = "runs",
        store: str | None = None,
        end_session: bool = False,
        **changes: Any,
    ) -> None:
        super().__init__(end_session)
        self.choice, self.runs_dir, self.store = run, runs_dir, store
        self.changes = {name: value for name, value in {"store": store, **changes}.items() if value is not None}
        self._stored: list[Entry] = []
        self._lines: dict[str, Any] = {}

    def _begin(self) -> Run:
        for entry in entries(self.runs_dir) + entries(self.store):
            print(line(entry))
        return self._resume(self.choice)

    def _resume(self, choice: str | Path | None) -> Run:
        return resume(choice, runs_dir=self.runs_dir, background=True, **self.changes)

    # -- with somebody there ---------------------------------------------------------------------------------------

    def _build(self, w: Any) -> None:
        super()._build(w)
        self.table = w.VBox([])
        self.view.children = (store_entry(w, self.store, self._look), self.table, *self.view.children)
        self.view.add_class("kit-resume-panel")

    def _shown(self) -> None:
        self._changed()
        if self.choice is not None:
            self._go(self.choice)
        elif self.store is not None:
            self._look(self.store)

    def _look(self, store: str) -> None:
        """List the runs of `store` too, and copy to it what goes on."""

        def look() -> None:
            self._stored = entries(store)
            self.store = self.changes["store"] = store
            self.say("")
            self._changed()

        self.do(look, f"Looking into {store}…")

    def _changed(self) -> None:
        """Draw the list."""
        local = entries(self.runs_dir)
        known = {entry["name"] for entry in local}
        shown = local + [entry for entry in self._stored if entry["name"] not in known]
        text = f"The latest runs in {self.runs_dir}" + (f" and {self.store}:" if self._stored else ":")
        if not shown:
            text = f"No runs in {self.runs_dir} yet: train one with 01_train, or name the store that holds yours."
        self.table.children = [self._w.HTML(style.wrap(style.note(text))), *map(self._row, shown)]
        self.buttons.layout.display = "none" if self.run is None else ""

    def _row(self, entry: Entry) -> Any:
        w = self._w
        more = entry["state"] == "finished" and int(self.changes.get("total_steps", 0)) > entry["step"]
        label, icon = "Done", "check"
        if entry["at_work"]:
            label, icon = "Watch", "eye"
        elif entry["state"] in ("interrupted", "failed") or more:
            label, icon = "Resume", "play"
        layout = w.Layout(flex="0 0 auto", width="96px")
        button = w.Button(description=label, icon=icon, disabled=label == "Done", layout=layout)
        button.add_class("kit-resume-button")
        button.on_click(partial(self._pressed, entry=entry))
        line = self._lines[entry["name"]] = w.HTML(style.wrap(row(entry)))
        return w.HBox([button, line], layout=w.Layout(align_items="center"))

    def _redrawn(self, run: Run, now: dict[str, Any]) -> None:
        if run.name in self._lines:
            self._lines[run.name].value = style.wrap(row({**now, "name": run.name}))

    def _pressed(self, button: Any, entry: Entry) -> None:
        button.disabled = True
        if entry["at_work"]:
            self.attach(Run(entry["choice"]))
        else:
            self._go(entry["choice"])

    def _go(self, choice: str | Path) -> None:
        self.do(lambda: self.attach(self._resume(choice)), "Going on from the last checkpoint…")


def entries(where: str | Path | None) -> list[Entry]:
    """The latest runs in a folder or a store. Raises `UserError` if it cannot be read."""
    runs = list_runs(where) if where is not None else RunList()
    here = isinstance(runs, RunList)
    return [
        {**now, "choice": f"{str(where).rstrip('/')}/{now['name']}", "at_work": here and now["state"] in WORKING}
        for now in runs.to_dicts()[:SHOWN]
    ]


def store_entry(w: Any, store: str | None, on_choice: Callable[[str], None]) -> Any:
    """A line to name a store in, and a button to look into it."""
    entry = w.Text(
        value=store or "", description="store", placeholder="drive:kit, hf://you/runs, s3://bucket/runs, a path",
        continuous_update=False, layout=w.Layout(width="100%", max_width="450px"),
    )  # fmt: skip
    look = w.Button(description="Look", icon="search", layout=w.Layout(flex="0 0 auto", width="96px"))
    look.add_class("kit-look-button")

    def pressed(_: Any) -> None:
        if url := entry.value.strip():
            on_choice(url)

    look.on_click(pressed)
    view = w.HBox([entry, look], layout=w.Layout(max_width="560px"))
    view.add_class("kit-store-picker")
    return view


def row(now: Entry) -> str:
    """One run as a line of HTML: name, bar, how far, success, state, age."""
    colour, word = style.state(now)
    success = f"{style.percent(now['success_rate'])} success" if now["success_rate"] is not None else ""
    when = style.ago(now["updated"]) if now["updated"] else ""
    return (
        f"<div class='kit-run'><span class='kit-name'>{html.escape(now['name'])}</span>{style.bar(now)}"
        f"<span>{style.percent(style.share(now))} of {now['total_steps'] or 0:,}</span><span>{success}</span>"
        f"<span style='color:{colour}'>{html.escape(word)}</span><span class='kit-dim'>{when}</span></div>"
    )


def line(now: Entry) -> str:
    """The same as plain text."""
    share = style.share(now)
    bar = ("█" * round(20 * share)).ljust(20, "░")
    return f"{now['name']:<38} {bar} {100 * share:3.0f} % of {now['total_steps'] or 0:,}  {now['state']}"
