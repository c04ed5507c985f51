"""The page of runs: filter, sort, compare, watch, resume and delete the runs in a folder."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

from kit.errors import need
from kit.measure.speed import duration
from kit.runs.api import remove, resume
from kit.runs.finding import local_runs
from kit.runs.run import Run
from kit.ui import style
from kit.ui.comparing import compare
from kit.ui.dashboard import Dashboard
from kit.ui.headless import nobody_there

SHOWN = 50
"""Maximum number of rows."""


class Line(NamedTuple):
    """A run and what the page shows of it."""

    run: Run
    now: dict[str, Any]
    size_bytes: int

    @property
    def text(self) -> str:
        """Text that the filter searches."""
        config = self.run.config
        return f"{self.run.name} {config.env} {config.algo} {style.state(self.now)[1]}".lower()


def _or_least(value: float | None) -> float:
    return float("-inf") if value is None else value


ORDERS: dict[str, Callable[[Line], Any]] = {
    "latest": lambda line: -(line.now["updated"] or 0),
    "name": lambda line: line.run.name,
    "task": lambda line: (line.run.config.env, line.run.config.algo),
    "success rate": lambda line: -_or_least(line.now["success_rate"]),
    "mean return": lambda line: -_or_least(line.now["mean_return"]),
    "size on disk": lambda line: -line.size_bytes,
}
"""Name of an order -> sort key."""


class RunsPage:
    """The runs in `runs_dir` with their state, score, disk use and copy in a store.

    >>> page = kit.ui.runs().show()

    Tick runs to compare them, or to delete them after a second click; tick one to watch or resume it. In a notebook
    executed without a user, the page is a table.
    """

    def __init__(self, runs_dir: str = "runs") -> None:
        self.runs_dir = runs_dir
        self.ticks: dict[str, Any] = {}
        """Run name -> its checkbox, for the rows that are shown."""
        self._lines: list[Line] = []

    def show(self) -> Self:
        """Display the page below the cell."""
        from IPython.display import display

        if nobody_there():
            display(local_runs(self.runs_dir).frame())
            return self
        self._build(need("ipywidgets", "notebook"))
        display(self.view)
        return self

    def _build(self, w: Any) -> None:
        self._w = w
        self.filter = w.Text(description="filter", placeholder="name, task, algorithm, state")
        self.order = w.Dropdown(description="sort by", options=list(ORDERS))
        self.filter.observe(lambda _: self._draw(), names="value")
        self.order.observe(lambda _: self._draw(), names="value")
        self.refresh_button = self._button("Refresh", "refresh", self.refresh)
        self.compare_button = self._button("Compare", "line-chart", self._compare)
        self.open_button = self._button("Watch or resume", "play", self._open)
        self.delete_button = self._button("Delete", "trash", self._ask)
        self.sure_button = self._button("Yes, delete", "trash", self._delete)
        self.sure_button.button_style = "danger"
        self.no_button = self._button("No", "times", lambda: self._say(""))
        self._message, self._below, self._rows = w.HTML(), w.VBox(), w.VBox()
        self._message.add_class("kit-message")
        wrap = w.Layout(flex_flow="row wrap")
        buttons = (self.compare_button, self.open_button, self.delete_button, self.sure_button, self.no_button)
        self.view = w.VBox([
            w.HTML(f"<style>{style.CSS}</style>"),
            w.HBox([self.filter, self.order, self.refresh_button], layout=wrap), self._rows,
            w.HBox(buttons, layout=wrap), self._message, self._below,
        ])  # fmt: skip
        self.view.add_class("kit-runs-page")
        self.refresh()

    def refresh(self) -> None:
        """Read the runs again."""
        self._lines = [Line(run, run.status(), run.size_bytes) for run in local_runs(self.runs_dir)]
        self._draw()

    @property
    def ticked(self) -> list[Run]:
        """The runs whose checkboxes are ticked."""
        return [line.run for line in self._lines if line.run.name in self.ticks and self.ticks[line.run.name].value]

    def _draw(self) -> None:
        """Draw the rows that match the filter, in the chosen order. Ticks of rows that stay are kept."""
        words = self.filter.value.lower().split()
        found = [line for line in self._lines if all(word in line.text for word in words)]
        found.sort(key=ORDERS[self.order.value])
        before, self.ticks, rows = self.ticks, {}, []
        for line in found[:SHOWN]:
            name = line.run.name
            tick = before.get(name) or self._tick(name)
            self.ticks[name] = tick
            shown = self._w.HTML(style.wrap(row(line)))
            rows.append(self._w.HBox([tick, shown], layout=self._w.Layout(align_items="center")))
        size = sum(line.size_bytes for line in found)
        text = f"{len(found)} of {len(self._lines)} runs in {self.runs_dir}, {size / 1e6:,.0f} MB on disk"
        if len(found) > SHOWN:
            text += f"; the first {SHOWN} are shown"
        self._rows.children = [self._w.HTML(style.wrap(style.note(f"{text}."))), *rows]
        self._say("")

    def _tick(self, name: str) -> Any:
        tick = self._w.Checkbox(indent=False, layout=self._w.Layout(width="22px"), tooltip=f"choose {name}")
        tick.observe(lambda _: self._say(""), names="value")
        return tick

    def _say(self, message: str, bad: bool = False, asking: bool = False) -> None:
        """Show a message; "" removes it. Enable the buttons that fit the ticked runs."""
        self._message.value = style.wrap(style.note(message, bad)) if message else ""
        count = len(self.ticked)
        self.compare_button.disabled = self.delete_button.disabled = not count
        self.open_button.disabled = count != 1
        for button in (self.sure_button, self.no_button):
            button.layout.display = None if asking else "none"

    # -- buttons ---------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        page = self._w.HTML(compare(self.ticked)._repr_html_())
        self._below.children = [page]

    def _open(self) -> None:
        (run,) = self.ticked
        if run.status()["state"] in ("interrupted", "failed"):
            run = resume(run.path, background=True)
        board = Dashboard(run)
        board._build(self._w)
        self._below.children = [board.view]
        board.attach(run)

    def _ask(self) -> None:
        runs = self.ticked
        lines = [line for line in self._lines if line.run in runs]
        names = ", ".join(run.name for run in runs)
        only = sum(line.now["state"] != "finished" for line in lines)
        unfinished = f" {only} of them unfinished;" if only else ""
        size = sum(line.size_bytes for line in lines) / 1e6
        self._say(f"Delete {names}?{unfinished} {size:,.0f} MB; copies in stores stay.", bad=True, asking=True)

    def _delete(self) -> None:
        runs = self.ticked
        for run in runs:
            remove(run, sure=True)
            del self.ticks[run.name]
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
            self._say(str(error) or type(error).__name__, bad=True)


def runs(runs_dir: str = "runs") -> RunsPage:
    """Show the page of the runs in the folder `runs_dir`."""
    return RunsPage(runs_dir).show()


def row(line: Line) -> str:
    """Format a run as a line of HTML: name, task, progress, score, state, size on disk, copy in a store."""
    now, config = line.now, line.run.config
    colour, word = style.state(now)
    score = ""
    if now["success_rate"] is not None:
        score = f"{style.percent(now['success_rate'])} success"
    elif now["mean_return"] is not None:
        score = f"return {now['mean_return']:.4g}"
    stored = (now["store"] or {}).get("step")
    copy = "no store" if not config.store else "not stored yet" if stored is None else f"stored at {stored:,}"
    left = f", {duration(now['eta_s'])} left" if now["eta_s"] else ""
    cells = [
        f"<span class='kit-name' title='{html.escape(str(line.run.path))}'>{html.escape(line.run.name)}</span>",
        f"<span>{html.escape(config.env)}, {html.escape(config.algo)}</span>",
        f"<span>{style.percent(style.progress(now))} of {now['total_steps']:,}{left}</span>",
        f"<span>{score}</span>", f"<span style='color:{colour}'>{html.escape(word)}</span>",
        f"<span>{line.size_bytes / 1e6:,.1f} MB</span>", f"<span class='kit-dim'>{copy}</span>",
        f"<span class='kit-dim'>{style.ago(now['updated']) if now['updated'] else ''}</span>",
    ]  # fmt: skip
    return f"<div class='kit-run kit-runs-row'>{''.join(cells)}</div>"
