"""Live page of runs: filter, sort, compare, watch, pause, stop, resume, rename and delete runs or a batch's jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from kit.errors import UserError, explain, need
from kit.runs.api import remove, rename, resume
from kit.runs.finding import is_url, run_folders
from kit.runs.run import Run
from kit.scale.background import Background, JobRow, Jobs
from kit.scale.files import FileJobs
from kit.scale.study import Sweep, trial_rows
from kit.ui import cells, heartbeat, style
from kit.ui.comparing import compare
from kit.ui.dashboard import Dashboard, display_widget
from kit.ui.headless import nobody_there
from kit.ui.rows import Line, RowReader, head, row

SHOWN = 50
"""Maximum number of rows."""
REFRESH_S = 2.0
"""Seconds between refreshes while a run works."""


ORDERS: dict[str, Callable[[Line], Any]] = {
    "latest": lambda line: (not line.is_working, -(line.now["started" if line.is_working else "updated"] or 0)),
    "name": lambda line: line.name,
    "task": lambda line: (line.config.env, line.config.algo) if line.config else ("", ""),
    "success rate": lambda line: ((rate := line.now["success_rate"]) is None, -(rate or 0.0)),
    "mean return": lambda line: ((score := line.now["mean_return"]) is None, -(score or 0.0)),
    "size on disk": lambda line: -(line.size_bytes or 0),
}
"""Name of an order -> sort key."""
SCORES = ("success rate", "mean return")
"""Names of the orders whose sort keys begin with whether the run has no score."""
FITTING = {
    "pause": ("running",), "continue": ("paused", "interrupted", "failed"),
    "stop": ("starting", "running", "paused"), "save": ("running",),
}  # fmt: skip
"""Name of a button -> states of a run in which it applies."""
QUIET = 5
"""Number of refreshes without a working run after which refreshing ends; between two jobs of a batch, no run works."""


class FolderJobs:
    """The runs in a folder as rows."""

    def __init__(self, runs_dir: str | Path) -> None:
        self.title = str(runs_dir)

    def rows(self) -> list[JobRow]:
        return [JobRow(path.name, path.absolute()) for path in run_folders(self.title)]

    def look(self) -> None:
        """Do nothing: `rows` lists the folder."""


class SweepJobs:
    """The trials of a search as rows."""

    def __init__(self, search: Sweep) -> None:
        self.search, self.title = search, f"search {search.plan.name} in {search.plan.base.runs_dir}"

    def rows(self) -> list[JobRow]:
        return trial_rows(self.search)

    def look(self) -> None:
        """Read the journal again, also from the store."""
        self.search = Sweep(self.search.plan)


Source = str | Path | Background[Any] | Sweep


def jobs_of(source: Source) -> Jobs:
    """Return the rows' source: a folder of runs, a YAML file of `kit batch`, a batch or a search."""
    if isinstance(source, Background):
        return source
    if isinstance(source, Sweep):
        return SweepJobs(source)
    if is_url(source):
        raise UserError(f"{source} is a store; kit.runs({str(source)!r}) lists its runs, and kit.resume fetches one.")
    is_file = Path(source).suffix in (".yaml", ".yml") and not Path(source).is_dir()
    return FileJobs(source) if is_file else FolderJobs(source)


def is_background_at_work(jobs: Jobs) -> bool:
    return isinstance(jobs, Background) and jobs.is_working


class RunsPage:
    """Live page of runs, or of the jobs of a batch or search, with buttons for the rows that are ticked.

    >>> page = kit.ui.runs().show()

    While a run works, a thread refreshes the rows. A newer page of the same source takes over. In a notebook executed
    without a user, the page is a table, and waits for a batch or search that `source` runs in the background.

    The name of a run with a store or with branches cannot change, because they refer to it; write a note instead.
    """

    _live: dict[str, RunsPage] = {}  # noqa: RUF012 - of this process
    """Title of the source -> its newest page."""

    def __init__(self, source: Source = "runs") -> None:
        self.source = source
        self.ticks: dict[str, Any] = {}
        """Run name -> its checkbox, for the rows that are shown."""
        self._chosen: list[str] = []  # names of the ticked runs
        self._texts: dict[str, Any] = {}
        """Run name -> the widget with its row."""
        self._lines: list[Line] = []
        self._reader, self._lock = RowReader(), threading.RLock()
        self._thread: threading.Thread | None = None
        self._board: Dashboard | None = None

    def show(self) -> Self:
        """Display the page below the cell."""
        if nobody_there():
            from IPython.display import display

            display(self._table())
            return self
        self._build(need("ipywidgets", "notebook"))
        display_widget(self.view, "The page of runs: run this cell to see it.")
        heartbeat.add(self._alive, self._beat)
        cells.when_run_again(self.close)
        return self

    def close(self) -> None:
        """Stop refreshing the rows, and the dashboard below them."""
        if self._live.get(self._jobs.title) is self:
            del self._live[self._jobs.title]
        if self._board is not None:
            self._board.close()

    def _table(self) -> style.Page:
        """Return all rows as a table of texts, once a batch or search that runs in the background has ended."""
        import pandas as pd

        if isinstance(self.source, Background):
            self.source.wait()
        lines = [self._reader.line(job) for job in jobs_of(self.source).rows()]
        if not lines:
            return style.Page("No runs yet.", style.note("No runs yet."))
        lines.sort(key=next(iter(ORDERS.values())))
        frame = pd.DataFrame([
            {"name": line.name, "state": style.state(now)[1], "step": f"{now['step']:,} of {now['total_steps']:,}",
             "success": "" if now["success_rate"] is None else style.percent(now["success_rate"]),
             "return": "" if now["mean_return"] is None else f"{now['mean_return']:.4g}",
             "message": "" if now["state"] == "finished" else now["message"]}
            for line in lines for now in [line.now]
        ])  # fmt: skip
        return style.Page(frame.to_string(index=False), style.table(frame, index=False))

    def _build(self, w: Any) -> None:
        self._w, self._jobs = w, jobs_of(self.source)
        self.filter = w.Text(description="filter", placeholder="name, task, algorithm, state, note")
        self.order = w.Dropdown(description="sort by", options=list(ORDERS))
        self.filter.observe(lambda _: self._draw(), names="value")
        self.reverse = w.ToggleButton(description="reversed", icon="sort", tooltip="Show the last row first")
        for field in (self.order, self.reverse):
            field.observe(lambda _: self._draw(), names="value")
        self.refresh_button = self._button("Refresh", "refresh", self._look)
        self.all_tick = self._checkbox("choose all rows", self._tick_all)
        actions = (
            ("pause", "Pause", "pause", partial(self._each, "pause", Run.pause)),
            ("continue", "Continue", "play", partial(self._each, "continue", go_on)),
            ("stop", "Stop", "stop", partial(self._each, "stop", Run.stop)),
            ("save", "Checkpoint now", "save", partial(self._each, "save", Run.checkpoint)),
            ("compare", "Compare", "line-chart", self._compare), ("open", "Open", "eye", self._open),
            ("delete", "Delete", "trash", self._ask),
        )  # fmt: skip
        self.buttons = {name: self._button(label, icon, action) for name, label, icon, action in actions}
        self.stop_all_button = self._button("Stop all jobs", "stop", self._stop_all)
        self.sure_button = self._button("Yes, delete", "trash", self._delete)
        self.sure_button.button_style = "danger"
        self.no_button = self._button("No", "times", lambda: self._say(""))
        wide = w.Layout(width="calc(100% - 4px)", max_width="560px")
        placeholder = "tick one run to rename it"
        self.new_name = w.Text(description="name", placeholder=placeholder, continuous_update=False, layout=wide)
        self.new_name.observe(lambda change: self._pressed(None, partial(self._rename, change["new"])), names="value")
        self.note = w.Text(description="note", continuous_update=False, layout=wide)
        self.note.observe(lambda change: self._pressed(None, partial(self._write_note, change["new"])), names="value")
        self._message, self._below, self._rows, self._head = w.HTML(), w.VBox(), w.VBox(), w.HTML()
        self._alive = w.HTML()
        self._message.add_class("kit-message")
        self._alive.add_class("kit-alive")
        wrap = w.Layout(flex_flow="row wrap")
        columns = w.HTML(style.wrap(head()), layout=w.Layout(flex="1 1 auto"))
        buttons = (*self.buttons.values(), self.stop_all_button, self.sure_button, self.no_button)
        self.view = w.VBox([
            w.HTML(f"<style>{style.CSS}</style>"),
            w.HBox([self.filter, self.order, self.reverse, self.refresh_button], layout=wrap),
            self._head, w.HBox([self.all_tick, columns], layout=w.Layout(align_items="center", max_width="920px")),
            self._rows,
            w.HBox(buttons, layout=wrap), self.new_name, self.note, self._message, self._below, self._alive,
        ])  # fmt: skip
        self.view.add_class("kit-runs-page")
        self.view.add_class("kit-dashboard")
        self._take_over()
        self.refresh()
        self._choose()

    # -- rows ------------------------------------------------------------------------------------------------------

    def refresh(self, keep_order: bool = False) -> None:
        """Read the runs again, and draw them in the chosen order, or in their places if `keep_order`."""
        with self._lock:
            self._lines = [self._reader.line(job) for job in self._jobs.rows()]
            self._draw(keep_order)
        self._start_following()

    def _start_following(self) -> None:
        if self._is_at_work() and not (self._thread and self._thread.is_alive()):
            self._take_over()
            self._thread = threading.Thread(target=self._follow, name=f"page-{self._jobs.title}", daemon=True)
            self._thread.start()

    def _take_over(self) -> None:
        """Become the page that refreshes; say so on the page of the same source that did until now."""
        older = self._live.get(self._jobs.title, self)
        self._live[self._jobs.title] = self
        if older is not self:
            older._say("A newer page shows these runs, and this one no longer changes; press Refresh to use this one.")

    def _beat(self) -> None:
        """While nothing refreshes the rows, look for runs that other programs have started."""
        if self._live.get(self._jobs.title) is self and not (self._thread and self._thread.is_alive()):
            self.refresh(keep_order=True)

    def _look(self) -> None:
        self._jobs.look()
        self.refresh()

    def _is_at_work(self) -> bool:
        return is_background_at_work(self._jobs) or any(line.is_working for line in self._lines)

    def _follow(self) -> None:
        """Refresh until no run works or another page takes over. Rows keep their places."""
        quiet = 0
        try:
            while quiet < QUIET and self._live.get(self._jobs.title) is self:
                time.sleep(REFRESH_S)
                self.refresh(keep_order=True)
                quiet = 0 if self._is_at_work() else quiet + 1
        except Exception as error:
            self._say(f"The page stopped ({type(error).__name__}: {error}); this does not affect the runs.", bad=True)

    @property
    def ticked(self) -> list[Run]:
        """The runs whose checkboxes are ticked."""
        return [line.run for line in self._ticked_lines() if line.run is not None]

    def _ticked_lines(self) -> list[Line]:
        return [line for line in self._lines if line.run and line.name in self.ticks and self.ticks[line.name].value]

    def _draw(self, keep_order: bool = False) -> None:
        """Draw the rows that match the filter. Rows that stay keep their ticks."""
        with self._lock:
            words = self.filter.value.lower().split()
            found = [line for line in self._lines if all(word in line.text for word in words)]
            order = ORDERS[self.order.value]
            found.sort(key=order, reverse=self.reverse.value)
            if self.order.value in SCORES:
                found.sort(key=lambda line: order(line)[0])  # runs without a score come last in both directions
            if keep_order:  # new rows first
                places = {name: place for place, name in enumerate(self.ticks)}
                found.sort(key=lambda line: places.get(line.name, -1))
            size = sum(line.size_bytes or 0 for line in found)
            text = f"{self._jobs.title}: {shown_of(len(found), len(self._lines))}, {size / 1e6:,.0f} MB on disk"
            if isinstance(self._jobs, FolderJobs) and not Path(self._jobs.title).expanduser().is_dir():
                text = f"{self._jobs.title} is not a folder; correct its name, or train a run first"
            if words and not found:
                text += f"; no run matches {self.filter.value.strip()!r}"
            if len(found) > SHOWN:
                text += f"; the first {SHOWN} are shown"
            error = self._jobs.error if isinstance(self._jobs, Background) else ""
            failure = style.note(error, bad=True) if error else ""
            self._head.value = style.wrap(style.note(f"{text}."), failure)
            shown = found[:SHOWN]
            names = [line.name for line in shown]
            if names != list(self.ticks):
                self._place(names)
                if [line.name for line in self._ticked_lines()] != self._chosen:  # a ticked row is gone
                    self._choose()
            for line in shown:
                self._texts[line.name].value = style.wrap(row(line))
                self.ticks[line.name].disabled = line.run is None
            if not keep_order:
                self._say("")
            self._draw_buttons()

    def _place(self, names: list[str]) -> None:
        """Put the rows `names` below each other; make those that are new."""
        w = self._w
        self.ticks = {name: self.ticks.get(name) or self._checkbox(f"choose {name}", self._choose) for name in names}
        self._texts = {name: self._texts.get(name) or w.HTML(layout=w.Layout(flex="1 1 auto")) for name in names}
        boxes = {box.children[0]: box for box in self._rows.children}
        layout = w.Layout(align_items="center", max_width="920px")
        self._rows.children = [
            boxes.get(tick) or w.HBox([tick, self._texts[name]], layout=layout) for name, tick in self.ticks.items()
        ]

    def _checkbox(self, tooltip: str, action: Callable[[], None]) -> Any:
        tick = self._w.Checkbox(indent=False, layout=self._w.Layout(width="22px", flex="0 0 auto"), tooltip=tooltip)
        tick.observe(lambda _: action(), names="value")
        return tick

    def _tick_all(self) -> None:
        for tick in self.ticks.values():
            tick.value = self.all_tick.value and not tick.disabled

    def _choose(self) -> None:
        """Called when a tick changes: show name and note of a single ticked run."""
        self._say("")
        chosen = self._ticked_lines()
        self._chosen = [line.name for line in chosen]
        self.new_name.disabled = len(chosen) != 1 or not isinstance(self._jobs, FolderJobs)
        self.new_name.value = chosen[0].name if len(chosen) == 1 else ""
        self.note.disabled = len(chosen) != 1
        self.note.value = chosen[0].note if len(chosen) == 1 else ""
        self.note.placeholder = "a note on the ticked run" if len(chosen) == 1 else "tick one run to write a note on it"

    def _say(self, message: str, bad: bool = False, asking: bool = False) -> None:
        """Show a message; "" removes it."""
        self._message.value = style.wrap(style.note(message, bad)) if message else ""
        for button in (self.sure_button, self.no_button):
            button.layout.display = None if asking else "none"
        self._draw_buttons()

    def _draw_buttons(self) -> None:
        """Enable the buttons that fit the ticked runs."""
        lines = self._ticked_lines()
        fit = {"compare": bool(lines), "delete": bool(lines), "open": len(lines) == 1}
        for name, button in self.buttons.items():
            button.disabled = not fit[name] if name in fit else not any(fits(name, line.now) for line in lines)
        self.stop_all_button.layout.display = None if is_background_at_work(self._jobs) else "none"

    # -- buttons ---------------------------------------------------------------------------------------------------

    def _each(self, name: str, action: Callable[[Run], object]) -> None:
        """Call `action` for the ticked runs in whose state the button `name` applies; then show all errors."""
        errors = []
        for line in self._ticked_lines():
            if line.run is not None and fits(name, line.now | {"state": line.run.status()["state"]}):
                try:
                    action(line.run)
                except UserError as error:
                    errors.append(str(error))
        self.refresh()
        self._say(" ".join(errors), bad=True)

    def _compare(self) -> None:
        page = self._w.HTML(compare(self.ticked)._repr_html_())
        self._show_below(page, None)

    def _show_below(self, view: Any, board: Dashboard | None) -> None:
        """Show `view`, of the dashboard `board` or of none, in place of the view below the buttons."""
        if self._board is not None:
            self._board.close()
        self._board = board
        self._below.children = [view]

    def _open(self) -> None:
        """Show the dashboard of the ticked run, which has a button to resume it."""
        (run,) = self.ticked
        board = Dashboard(run)
        board._build(self._w)
        self._show_below(board.view, board)
        board.attach(run)
        self.refresh()

    def _stop_all(self) -> None:
        if isinstance(self._jobs, Background):
            self._jobs.stop()
            self._say("All runs stop with a checkpoint, and no more start; run the cell again to continue.")

    def _write_note(self, text: str) -> None:
        chosen = self._ticked_lines()
        if len(chosen) == 1 and chosen[0].run is not None and text != chosen[0].note:
            chosen[0].run.write_note(text)
            self.refresh()

    def _rename(self, name: str) -> None:
        chosen = self._ticked_lines()
        if len(chosen) == 1 and chosen[0].run is not None and name not in ("", chosen[0].name):
            try:
                rename(chosen[0].run, name)
            except UserError:
                self.new_name.value = chosen[0].name
                raise
            self.refresh()
            if name in self.ticks:  # the filter may hide it
                self.ticks[name].value = True
            self._say(f"{chosen[0].name} is named {name} now.")

    def _ask(self) -> None:
        lines = self._ticked_lines()
        if working := [line.name for line in lines if line.is_working]:
            raise UserError(f"still training: {', '.join(working)}; stop them first, or untick them.")
        names = ", ".join(line.name for line in lines)
        only = sum(line.now["state"] != "finished" for line in lines)
        of_several = f" {only} of them unfinished;" if only else ""
        unfinished = " It is unfinished;" if only == len(lines) == 1 else of_several
        size = sum(line.size_bytes or 0 for line in lines) / 1e6
        self._say(f"Delete {names}?{unfinished} {size:,.1f} MB; copies in stores stay.", bad=True, asking=True)

    def _delete(self) -> None:
        runs = self.ticked
        for run in runs:
            remove(run, sure=True)
            if tick := self.ticks.get(run.name):  # a refresh may have dropped the row
                tick.value = False
        self.refresh()
        self._say(f"Deleted: {', '.join(run.name for run in runs)}.")

    def _button(self, label: str, icon: str, action: Callable[[], None]) -> Any:
        button = self._w.Button(description=label, icon=icon, layout=self._w.Layout(width="auto"))
        button.on_click(partial(self._pressed, action=action))
        return button

    def _pressed(self, _: Any, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._say(explain(error), bad=True)


def runs(source: Source = "runs") -> RunsPage:
    """Show the live page of runs in a folder, or of the jobs of a batch or search.

    `source`: a folder, a YAML file of `kit batch`, a search, or what `kit.launch_batch` or `kit.launch_sweep` returned.
    """
    return RunsPage(source).show()


def shown_of(found: int, known: int) -> str:
    """Describe how many runs match, such as "1 run", "12 runs" or "3 of 12 runs"."""
    runs = f"{known} run{'' if known == 1 else 's'}"
    return runs if found == known else f"{found} of {runs}"


def fits(name: str, now: dict[str, Any]) -> bool:
    """Whether the button `name` applies to a run of status `now`. Its search has ended a pruned trial for good."""
    return now["state"] in FITTING[name] and now["phase"] != "pruned"


def go_on(run: Run) -> None:
    """Continue a paused run; resume an ended one from its last checkpoint."""
    run.unpause() if run.is_working() else resume(run.path, background=True)
