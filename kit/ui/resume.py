"""The resume panel: a list of runs with their progress and a Resume button each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kit.config import RunConfig
from kit.runs.api import resume
from kit.runs.finding import RunList, list_runs
from kit.runs.run import Run
from kit.runs.status import EMPTY
from kit.scale.background import JobRow
from kit.ui import style
from kit.ui.panel import Panel
from kit.ui.rows import Line, RowReader, row, title

MAX_RUNS = 12
"""Number of runs in the list, the latest first."""


class ResumePanel(Panel):
    """A list of the runs in `runs_dir` and in `store`, with a Resume button for each that can be resumed.

    >>> panel = kit.ui.ResumePanel().show()

    `run` (a name, a path, or a URL in a store) is resumed at once. `changes`: RunConfig fields to change on resume, and
    `trust` and `max_gb` as in `kit.resume`. In a notebook executed without a user, the panel resumes `run`; default:
    the latest unfinished run on this machine or, if there is none, in the store.
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
        fields = {name: value for name, value in self.changes.items() if name not in ("trust", "max_gb")}
        RunConfig.from_dict(fields)  # raises for a wrong one
        self._stored: list[Line] = []
        self._lines: dict[str, tuple[Any, Line]] = {}
        """Run name -> the widget with its row, and what it shows."""

    def _start_run(self) -> Run:
        for line in list_lines(self.runs_dir) + list_lines(self.store):
            print(title(line))
        return self._resume(self.choice)

    def _resume(self, choice: str | Path | None) -> Run:
        return resume(choice, runs_dir=self.runs_dir, background=True, **self.changes)

    # -- in a notebook with a user ---------------------------------------------------------------------------------

    def _build(self, w: Any) -> None:
        super()._build(w)
        self.table = w.VBox([])
        self._listed: list[tuple[str, str]] = []
        self._reader = RowReader()
        self.view.children = (store_entry(w, self.store, self._list_store), self.table, *self.view.children)
        self.view.add_class("kit-resume-panel")

    def _on_show(self) -> None:
        self._on_change()
        if self.choice is not None:
            self._start_resume(self.choice)
        elif self.store is not None:
            self._list_store(self.store)

    def _list_store(self, store: str) -> None:
        """Add the runs of `store` to the list. Runs resumed from now on are copied to this store."""
        if not store:
            self._on_change()
            return

        def list_store() -> None:
            self._stored = list_lines(store)
            self.store = self.changes["store"] = store
            self.say("")
            self._on_change()

        self.do(list_store, f"Listing the runs in {store}…")

    def _beat(self) -> None:
        """Redraw the texts of the runs; if another program has started or ended one, the whole list."""
        super()._beat()
        local = list_lines(self.runs_dir, self._reader)
        if [(line.name, line.now["state"]) for line in local] != self._listed:
            self._on_change()
            return
        for line in local:
            text, _ = self._lines[line.name]
            text.value = style.wrap(row(line))
            self._lines[line.name] = text, line

    def _on_change(self) -> None:
        """Redraw the list of runs; stop showing a run whose folder was deleted."""
        if self.run is not None and not self.run.path.exists():
            self.leave()  # calls `_on_change` again, without a run
            return
        local = list_lines(self.runs_dir, self._reader)
        self._listed = [(line.name, line.now["state"]) for line in local]
        known = {line.name for line in local}
        shown = local + [line for line in self._stored if line.name not in known]
        text = f"The latest runs in {self.runs_dir}" + (f" and {self.store}:" if self._stored else ":")
        if not shown:
            text = f"No runs in {self.runs_dir} yet: train one with 01_train, or enter the store that holds your runs."
        self.table.children = [self._w.HTML(style.wrap(style.note(text))), *map(self._row, shown)]
        self.buttons.layout.display = "none" if self.run is None else ""

    def _row(self, line: Line) -> Any:
        w, now = self._w, line.now
        longer = now["state"] == "finished" and int(self.changes.get("total_steps", 0)) > now["step"]
        label, icon = "Done", "check"
        if line.is_working:
            label, icon = "Watch", "eye"
        elif now["state"] in ("interrupted", "failed") or longer:
            label, icon = "Resume", "play"
        layout = w.Layout(flex="0 0 auto", width="96px")
        button = w.Button(description=label, icon=icon, disabled=label == "Done", layout=layout)
        button.add_class("kit-resume-button")
        button.on_click(partial(self._pressed, line=line))
        text = w.HTML(style.wrap(row(line)), layout=w.Layout(flex="1 1 auto"))
        self._lines[line.name] = text, line
        return w.HBox([button, text], layout=w.Layout(align_items="center", max_width="920px"))

    def _on_redraw(self, run: Run, now: dict[str, Any]) -> None:
        if run.name in self._lines:
            text, line = self._lines[run.name]
            text.value = style.wrap(row(replace(line, now=now, run=run)))

    def _pressed(self, button: Any, line: Line) -> None:
        button.disabled = True
        if line.is_working:
            self.attach(Run(line.choice))
        else:
            self._start_resume(line.choice)

    def _start_resume(self, choice: str | Path) -> None:
        self.do(lambda: self.newest.attach(self._resume(choice)), "Resuming from the last checkpoint…")


def list_lines(where: str | Path | None, reader: RowReader | None = None) -> list[Line]:
    """Return the latest runs in the folder or store `where`; [] for None. Raises `UserError` if it cannot be read.

    With the same `reader` again, only what has changed in a folder is read.
    """
    if where is None:
        return []
    runs, reader = list_runs(where), reader or RowReader()
    if isinstance(runs, RunList):
        return [reader.line(JobRow(run.name, run.path)) for run in runs[:MAX_RUNS]]
    prefix = str(where).rstrip("/")
    return [Line(now["name"], {**EMPTY, **now}, choice=f"{prefix}/{now['name']}") for now in runs[:MAX_RUNS]]


def store_entry(w: Any, store: str | None, on_choice: Callable[[str], None]) -> Any:
    """Return a text entry for a store's URL, with a button that calls `on_choice(url)`; `url` may be ""."""
    entry = w.Text(
        value=store or "", description="store", placeholder="drive:kit, hf://you/runs, s3://bucket/runs, a path",
        continuous_update=False, layout=w.Layout(width="100%", max_width="450px"),
    )  # fmt: skip
    layout = w.Layout(flex="0 0 auto", width="auto", min_width="96px")
    look = w.Button(description="List runs", icon="search", layout=layout)
    look.add_class("kit-look-button")
    look.on_click(lambda _: on_choice(entry.value.strip()))
    view = w.HBox([entry, look], layout=w.Layout(max_width="560px", flex_flow="row wrap"))
    view.add_class("kit-store-picker")
    return view
