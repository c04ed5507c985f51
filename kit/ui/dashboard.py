"""The dashboard: a live view of one run, with buttons.

All state is in the run directory. Therefore a new dashboard for the same run can be created at any time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from kit.config import seconds
from kit.errors import explain, need
from kit.format.files import GrowingRows
from kit.runs.api import resume
from kit.runs.divergence import recordings, video_path
from kit.runs.finding import is_branch, local_runs
from kit.runs.run import Run
from kit.ui import cells, heartbeat, style, videos
from kit.ui.chart import HEIGHT, ROW, WIDTH, Line, chart, line_chart
from kit.ui.fold import focus
from kit.ui.headless import follow, nobody_there, shell_of_notebook
from kit.ui.learning import COLUMNS, TERMS, TRAINING_TERMS, Curve, reward_terms, series, smoothed
from kit.ui.metric_charts import MetricCharts
from kit.ui.notice import Notice
from kit.ui.plots import term_colours

REFRESH_S = 0.5
PAUSE_BUTTON = {
    "Pause": "Pause training; the process stays in memory, and Continue goes on at once",
    "Continue": "Continue training",
    "Resume": "Start a new process, which continues from the last checkpoint",
}
"""Label of the first button -> its tooltip."""
MOST_TERMS = 6
"""Number of reward terms that are shown beside the curves; All metrics shows the others, too."""
REDRAW_FACTOR = 20
"""Pause between two drawings of the curves, as a multiple of the duration of a drawing: a few seconds for long runs."""


class Dashboard:
    """A run's state, progress, learning curves and latest video, with the buttons Pause, Stop and Checkpoint now.

    >>> kit.ui.Dashboard(kit.runs()[0]).show()

    Each click is handled in its own thread. Errors are shown in the dashboard.
    """

    def __init__(self, run: Run | None = None) -> None:
        self.run = run
        self.on_change: list[Callable[[Run], None]] = []
        """Functions called with the run: when watching it starts, when it ends, and when its last video is ready."""
        self.reports: list[Callable[[Run], None]] = []
        """Like `on_change`, for other cells: if this panel's cell runs again, its newer panel takes them over."""
        self._newer: Self | None = None
        self.video_error = ""
        """Why the last video of the run could not be recorded."""
        self._watching: threading.Thread | None = None
        self._closed = False
        self._redraw_now = threading.Event()
        self._last_pressed: Any = None  # the button that was pressed last: it keeps the keyboard's focus where possible
        self._acting = set[Any]()  # buttons whose action is not finished
        self._shown_videos: list[Path] = []

    def show(self) -> Self:
        """Display the dashboard below the cell. In a notebook executed without a user, wait until the run has ended."""
        if shell_of_notebook() is not None and nobody_there() and self.run is not None:
            follow(self.run)
            return self
        self._build(need("ipywidgets", "notebook"))
        display_widget(self.view, f"{type(self).__name__}: run this cell to see it.")
        heartbeat.add(self._alive, self._beat)
        if (older := cells.replaced_by(self)) not in (None, self):
            older._newer, self.reports = self, older.reports
        cells.when_run_again(self.close)
        self._closed = False
        self._on_show()
        return self

    @property
    def newest(self) -> Self:
        """This panel, or the one that a newer run of its cell has shown in its place."""
        return self if self._newer is None else self._newer.newest

    def _build(self, w: Any) -> None:
        self._w = w
        css = w.HTML(f"<style>{style.CSS}</style>", layout=w.Layout(display="none"))
        # shared, because a layout and a style are widgets too: each is a message to the browser
        self._button_layout = w.Layout(width="auto", min_width="96px")
        self._html_layout, self._html_style = w.Layout(overflow="visible", margin="0"), css.style
        stop = "Save a checkpoint and end the training process; Resume continues the run"
        save = "Save a checkpoint at the end of this iteration and continue training"
        self.pause_button = self._button("Pause", "pause", PAUSE_BUTTON["Pause"], self._pause)
        self.stop_button = self._button("Stop", "stop", stop, self._stop)
        self.save_button = self._button("Checkpoint now", "save", save, self._save)
        buttons = [self.pause_button, self.stop_button, self.save_button]
        self.buttons = w.HBox(buttons, layout=w.Layout(flex_flow="row wrap"))
        self._head, self._message = self._html("kit-head"), self._html("kit-message")
        self._curves, self._video = self._html("kit-curves"), self._html("kit-video")
        body = w.HBox([self._curves, self._video], layout=w.Layout(flex_flow="row wrap", max_width="920px"))
        self.metrics = MetricCharts(w)
        self._alive, self.notice = self._html("kit-alive"), Notice(w)
        below = [self.metrics.fold.view, self.notice.view, self._alive]
        children = [self.buttons, css, self._head, self._message, body, *below]
        self.view = w.VBox(children, _dom_classes=("kit-dashboard",))

    def _on_show(self) -> None:
        if self.run is not None:
            self.attach(self.run)

    def attach(self, run: Run) -> None:
        """Start to watch `run`, instead of the current run. May be called from any thread."""
        self.run, self.video_error = run, ""
        self.say("")
        watching = threading.Thread(target=self._watch, args=(run,), name=f"watch-{run.name}", daemon=True)
        self._watching = watching
        watching.start()

    def close(self) -> None:
        """Stop watching the run, which continues, and leave the display as it is."""
        self._watching, self._closed = None, True
        self._redraw_now.set()

    def _watches(self, run: Run) -> bool:
        """Whether the present thread is still the one that watches `run`."""
        return self.run is run and self._watching is threading.current_thread()

    def leave(self) -> None:
        """Stop watching the run, which continues, and clear the display."""
        self.run = None
        if self._watching is not None and self._watching is not threading.current_thread():
            self._watching.join()  # it draws at most once more; a last video is finished first
        for box in (self._head, self._message, self._curves, self._video):
            box.value = ""
        self._shown_videos = []
        self.metrics.attach(None)
        self.notice.show("")
        self._draw_buttons("")
        self._on_change()

    @property
    def is_working(self) -> bool:
        return self.run is not None and self.run.is_working()

    def say(self, message: str, bad: bool = False) -> None:
        """Show a message below the run's values, in red if `bad`; "" removes it."""
        self._message.value = style.wrap(style.note(message, bad)) if message else ""

    def do(self, work: Callable[[], object], message: str = "") -> None:
        """Run `work` in its own thread. Show `message`; if `work` fails, show the error."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.say(explain(error), bad=True)
                if self.run is not None:
                    self._draw_buttons(self.run.status()["state"])
                self._on_change()
            finally:
                self._redraw_now.set()

        self.keep_open()
        self.say(message)
        threading.Thread(target=guarded, name="button", daemon=True).start()

    def keep_open(self) -> None:
        """Called when a button is pressed. For subclasses."""

    def _on_change(self) -> None:
        """Called after the run has started, failed to start, or ended. For subclasses."""

    def _end(self, run: Run) -> None:
        """Called after the run's process has ended and its last video is shown. For subclasses."""

    def _beat(self) -> None:
        """Called every few seconds."""
        self._watch_again()

    def _watch_again(self) -> None:
        """Watch the shown run if another panel or program has resumed it."""
        if self._closed or self.run is None or (self._watching is not None and self._watching.is_alive()):
            return
        if self.is_working:
            self.attach(self.run)

    def _on_redraw(self, run: Run, now: dict[str, Any]) -> None:
        """Called after the status `now` was drawn. For subclasses."""

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self, run: Run) -> None:
        """Redraw until the run's process has ended; if the run is finished, record a last video."""
        recorder, rows, draw_next = videos.Recorder(run), GrowingRows(run.path / "metrics.jsonl", COLUMNS), 0.0
        family = {"parent": run.parent, "branches": [r.name for r in local_runs(run.path.parent) if is_branch(r, run)]}
        try:
            self._call_on_change(run)
            self._on_change()
            self.metrics.attach(run)
            working = True
            while working and self._watches(run):
                now = run.status()
                working = run.is_working(now)
                left = session_left_s(run, now) if working else None
                self._head.value = style.wrap(style.head(run.name, now | family | {"session_left_s": left}))
                self._draw_buttons(now["state"])
                self.notice.show(style.percent(style.progress(now)))
                self._on_redraw(run, now)
                started = time.monotonic()
                if (started >= draw_next or not working) and (rows.read() or not draw_next):
                    self._curves.value = charts(rows.rows, now["total_steps"])
                    self.metrics.draw()
                    draw_next = started + REDRAW_FACTOR * (time.monotonic() - started)
                recorder.poll(now)
                self._show_video(run)
                if working:
                    self._redraw_now.wait(REFRESH_S)
                    self._redraw_now.clear()
            if self._watches(run):
                recorder.close()
                self.say("")
                self.notice.show(now["state"], f"{run.name}: {now['message'] or now['state']}")
                self._on_change()
                self._call_on_change(run)
                if now["state"] == "finished" and videos.missing_video(run):
                    self.say("Recording a video of the policy…")
                    error = videos.record_last(run)
                    if not self._watches(run):  # the user has started another run meanwhile
                        return
                    self.say(error, bad=True)
                    self.video_error = error
                    self._show_video(run)
                    self._call_on_change(run)
                self._end(run)
        except Exception as error:
            message = f"The display stopped ({explain(error)}); this does not affect the run."
            self.say(message, bad=True)
        finally:
            recorder.close()

    def _call_on_change(self, run: Run) -> None:
        for callback in [*self.on_change, *self.reports]:
            callback(run)

    def _show_video(self, run: Run) -> None:
        newest = [*run.videos[-1:], *[path for found in recordings(run)[-1:] if (path := video_path(found)).exists()]]
        if newest != self._shown_videos:
            with contextlib.suppress(OSError):
                self._video.value = style.wrap(*(videos.tag(path, videos.caption(path, run), 210) for path in newest))
                self._shown_videos = newest

    def _draw_buttons(self, state: str) -> None:
        resumable = state in ("interrupted", "failed")
        pause = self.pause_button
        pause.description = "Continue" if state == "paused" else "Resume" if resumable else "Pause"
        pause.icon, pause.button_style = ("pause", "") if pause.description == "Pause" else ("play", "primary")
        pause.tooltip = PAUSE_BUTTON[pause.description]
        starts = state == "starting" and self._last_pressed is pause  # a disabled button would lose the focus
        pause.disabled = not resumable and not starts and state not in ("running", "paused")
        self.stop_button.disabled = state not in ("running", "paused", "starting")
        self.save_button.disabled = state != "running"  # a checkpoint is written between iterations
        if self._last_pressed is self.stop_button and resumable:
            self._last_pressed = None
            focus(pause)

    # -- buttons ---------------------------------------------------------------------------------------------------

    def _pause(self, run: Run) -> None:
        now = run.status()
        if now["state"] == "running":
            run.pause()
            self.say("Pausing…")
            with contextlib.suppress(TimeoutError):  # another program may have withdrawn the pause
                run.wait(600, until=lambda now: now["state"] != "running")  # an evaluation may take minutes
        elif now["state"] == "paused":
            run.unpause()
        elif not run.is_working(now):
            self.say("Resuming from the last checkpoint…")
            self.newest.attach(resume(run.path, background=True))
            return
        self.say("")

    def _stop(self, run: Run) -> None:
        self.say("Saving and stopping…")
        run.stop()

    def _save(self, run: Run) -> None:
        requested_at = time.time()
        self.say("Saving at the end of this iteration…")
        run.checkpoint()

        def is_done(now: dict[str, Any]) -> bool:
            return (now["checkpoint"] or {"time": 0})["time"] >= requested_at or not run.is_working(now)

        saved = run.wait(until=is_done)["checkpoint"]
        self.say(f"Saved step {saved['step']:,}." if saved else "")

    def _button(self, label: str, icon: str, tooltip: str, action: Callable[[Run], None]) -> Any:
        button = self._w.Button(
            description=label, icon=icon, tooltip=tooltip, disabled=True, layout=self._button_layout,
            _dom_classes=(f"kit-{icon}-button",),
        )  # fmt: skip

        def act(run: Run) -> None:
            try:
                action(run)
            finally:
                self._acting.discard(button)

        def pressed(_: Any) -> None:
            if self.run is not None and button not in self._acting:
                self._acting.add(button)
                self._last_pressed = button
                self.do(partial(act, self.run))

        button.on_click(pressed)
        return button

    def _html(self, name: str) -> Any:
        return self._w.HTML("", layout=self._html_layout, style=self._html_style, _dom_classes=(name,))


def display_widget(view: Any, saved_text: str) -> None:
    """Display a widget below the cell. A saved notebook keeps only `saved_text`."""
    from IPython.display import display

    cells.answer_meanwhile(view)
    display(view._repr_mimebundle_() | {"text/plain": saved_text}, raw=True)


def session_left_s(run: Run, now: dict[str, Any]) -> float | None:
    """Return the seconds until `session_limit` ends this session, or None without a limit."""
    limit = run.config.session_limit
    if limit is None or not now["started"] or now["state"] == "starting":  # then it is the start of the last session
        return None
    return max(0.0, seconds("session_limit", limit) - (time.time() - float(now["started"])))


def charts(rows: list[dict[str, Any]], total_steps: int) -> str:
    """Return charts as HTML: success rate (if the task has one), mean return, and reward terms (if it names some)."""
    drawn = [chart(curve, total_steps) for curve in Curve.of(rows)]
    for title in (TRAINING_TERMS, TERMS):  # runs of older versions have only those of evaluations
        if terms := reward_terms(rows, title):
            drawn.append(_terms_chart(title, terms))
            break
    return style.wrap(style.flex(f"<div>{each}</div>" for each in drawn), _stage_note(rows))


def _stage_note(rows: list[dict[str, Any]]) -> str:
    """Return a note about the stage of the curriculum, where the curves may fall; "" without a curriculum."""
    stages = series(rows, "rollout/stage")
    if not len(stages):
        return ""
    since = stages[stages[:, 1] == stages[-1, 1]][0, 0]
    stage = f"stage {stages[-1, 1]:.0f}, harder, since step {since:,.0f}" if stages[-1, 1] else "stage 0, the easiest"
    return style.note(f"Curriculum: {stage}. Evaluations use the last stage.")


def _terms_chart(title: str, terms: dict[str, np.ndarray]) -> str:
    """Return a chart of the largest reward terms as HTML; `terms` begins with them."""
    shown, live = list(terms.items())[:MOST_TERMS], title == TRAINING_TERMS
    colours = term_colours(terms)
    lines = [
        Line(name, colours[name], smoothed(points) if live else points, dots=not live) for name, points in sorted(shown)
    ]
    last = max(points[-1, 0] for _, points in shown)
    size = WIDTH, HEIGHT + ROW * (len(lines) // 3)  # the legend of many terms has more rows
    rest = style.note("All metrics also shows the smaller terms.") if len(terms) > len(shown) else ""
    return line_chart(title, lines, (0, last or 1), size=size) + rest
