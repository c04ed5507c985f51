"""A live view of one run with its buttons. Holds no state of its own: make it again for the same run at any time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from kit.config import seconds
from kit.errors import need
from kit.format.files import GrowingRows
from kit.runs.api import resume
from kit.runs.finding import is_branch, local_runs
from kit.runs.run import Run
from kit.ui import style, videos
from kit.ui.chart import chart
from kit.ui.headless import follow, nobody_there, shell_of_notebook
from kit.ui.learning import COLUMNS, Curve

REFRESH_S = 0.5
SPARING = 20
"""Curves are drawn again after so many times as long as drawing takes: of a very long run, every few seconds."""


class Dashboard:
    """State, progress, learning curves and the latest video of a run; Pause, Stop, Checkpoint now.

    >>> kit.ui.Dashboard(kit.runs()[0]).show()

    Every button works from a thread of its own, so no click ever waits for another; the panel says what goes wrong.
    """

    def __init__(self, run: Run | None = None) -> None:
        self.run = run
        self.on_change: list[Callable[[Run], None]] = []
        """Called with a run that begins to be watched, that has ended, and that has been filmed then."""
        self._watching: threading.Thread | None = None
        self._played: list[Path] = []

    def show(self) -> Self:
        """Display it under the running cell. In a notebook with nobody there (papermill), wait for the run."""
        if shell_of_notebook() is not None and nobody_there() and self.run is not None:
            follow(self.run)
            return self
        from IPython.display import display

        self._build(need("ipywidgets", "notebook"))
        shown = self.view._repr_mimebundle_() | {"text/plain": f"{type(self).__name__}: run this cell to see it."}
        display(shown, raw=True)  # what is left of it in a saved notebook is the sentence
        self._shown()
        return self

    def _build(self, w: Any) -> None:
        """Make `view`, with ipywidgets."""
        self._w = w
        self.pause_button = self._button("Pause", "pause", "Stand still and keep everything in memory", self._pause)
        self.stop_button = self._button("Stop", "stop", "Save and end; resume goes on from there", self._stop)
        self.save_button = self._button("Checkpoint now", "save", "Save at the end of this iteration", self._save)
        self.buttons = w.HBox([self.pause_button, self.stop_button, self.save_button])
        self.buttons.layout.flex_flow = "row wrap"
        css = w.HTML(f"<style>{style.CSS}</style>", layout=w.Layout(display="none"))
        self._head, self._message = self._html("kit-head"), self._html("kit-message")
        self._curves, self._video = self._html("kit-curves"), self._html("kit-video")
        body = w.HBox([self._curves, self._video], layout=w.Layout(flex_flow="row wrap", max_width="920px"))
        self.view = w.VBox([self.buttons, css, self._head, self._message, body])

    def _shown(self) -> None:
        if self.run is not None:
            self.attach(self.run)

    def attach(self, run: Run) -> None:
        """Watch `run` from now on, from any thread."""
        self.run = run
        self.say("")
        watching = threading.Thread(target=self._watch, args=(run,), name=f"watch-{run.name}", daemon=True)
        watching.start()
        self._watching = watching

    @property
    def is_working(self) -> bool:
        return self.run is not None and self.run.is_working()

    def say(self, sentence: str, bad: bool = False) -> None:
        """One sentence under the figures."""
        self._message.value = style.wrap(style.note(sentence, bad)) if sentence else ""

    def do(self, work: Callable[[], object], sentence: str = "") -> None:
        """Run `work` in a thread of its own and show what goes wrong."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.say(str(error) or type(error).__name__, bad=True)
                if self.run is not None:
                    self._draw_buttons(self.run.status()["state"])
                self._changed()

        self.say(sentence)
        threading.Thread(target=guarded, name="button", daemon=True).start()

    def _changed(self) -> None:
        """The run has begun, or could not, or its process is gone."""

    def _end(self, run: Run) -> None:
        """The run's process is gone, and all that can be shown is shown."""

    def _redrawn(self, run: Run, now: dict[str, Any]) -> None:
        """The status that is shown is `now`."""

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self, run: Run) -> None:
        """Redraw until the run's process has ended; one that is done gets a last video."""
        filming, rows, draw_next = videos.Filming(run), GrowingRows(run.path / "metrics.jsonl", COLUMNS), 0.0
        kin = {"parent": run.parent, "branches": [r.name for r in local_runs(run.path.parent) if is_branch(r, run)]}
        try:
            self._tell_others(run)
            self._changed()
            working = True
            while working and self.run is run:
                now = run.status()
                working = run.is_working(now)
                left = session_left_s(run, now) if working else None
                self._head.value = style.wrap(style.head(run.name, now | kin | {"session_left_s": left}))
                self._draw_buttons(now["state"])
                self._redrawn(run, now)
                begun = time.monotonic()
                if (begun >= draw_next or not working) and (rows.read() or not draw_next):
                    self._curves.value = charts(rows.rows, now["total_steps"])
                    draw_next = begun + SPARING * (time.monotonic() - begun)
                filming.poll(now)
                self._play(run)
                if working:
                    time.sleep(REFRESH_S)
            if self.run is run:
                filming.close()
                self.say("")
                self._changed()
                self._tell_others(run)
                if now["state"] == "finished" and videos.wanted(run):
                    self.say("Filming the policy…")
                    self.say(videos.finish(run), bad=True)
                    self._play(run)
                    self._tell_others(run)
                self._end(run)
        except Exception as error:
            self.say(f"The display stopped ({type(error).__name__}: {error}); the run does not depend on it.", bad=True)
        finally:
            filming.close()

    def _tell_others(self, run: Run) -> None:
        for tell in self.on_change:
            tell(run)

    def _play(self, run: Run) -> None:
        """Show the newest video, unless it is shown already."""
        newest = run.videos[-1:]
        if newest != self._played:
            with contextlib.suppress(OSError):
                self._video.value = style.wrap(*(videos.tag(path, videos.caption(path), 210) for path in newest))
                self._played = newest

    def _draw_buttons(self, state: str) -> None:
        resumable = state in ("interrupted", "failed")
        pause = self.pause_button
        pause.description, pause.icon = ("Resume", "play") if state == "paused" or resumable else ("Pause", "pause")
        pause.disabled = not resumable and state not in ("running", "paused")
        self.stop_button.disabled = state not in ("running", "paused", "starting")
        self.save_button.disabled = state not in ("running", "paused")

    # -- buttons ---------------------------------------------------------------------------------------------------

    def _pause(self, run: Run) -> None:
        now = run.status()
        if now["state"] == "running":
            run.pause()
            self.say("Pausing…")
            run.wait(30, until=lambda now: now["state"] != "running")
        elif now["state"] == "paused":
            run.unpause()
        elif not run.is_working(now):
            self.say("Going on from the last checkpoint…")
            self.attach(resume(run.path, background=True))
            return
        self.say("")

    def _stop(self, run: Run) -> None:
        self.say("Saving and stopping…")
        run.stop()

    def _save(self, run: Run) -> None:
        asked = time.time()
        self.say("Saving at the end of this iteration…")
        run.checkpoint()

        def is_over(now: dict[str, Any]) -> bool:
            return (now["checkpoint"] or {"time": 0})["time"] >= asked or not run.is_working(now)

        saved = run.wait(60, until=is_over)["checkpoint"]
        self.say(f"Saved step {saved['step']:,}." if saved else "")

    def _button(self, label: str, icon: str, tooltip: str, action: Callable[[Run], None]) -> Any:
        layout = self._w.Layout(width="auto", min_width="96px")
        button = self._w.Button(description=label, icon=icon, tooltip=tooltip, disabled=True, layout=layout)
        button.add_class(f"kit-{icon}-button")

        def pressed(_: Any) -> None:
            if self.run is not None:
                button.disabled = True  # answers the click at once; the next redraw says what can be pressed
                self.do(partial(action, self.run))

        button.on_click(pressed)
        return button

    def _html(self, name: str) -> Any:
        box = self._w.HTML("", layout=self._w.Layout(overflow="visible", margin="0"))
        box.add_class(name)
        return box


def session_left_s(run: Run, now: dict[str, Any]) -> float | None:
    """Until `session_limit` ends this session, or None without a limit."""
    limit = run.config.session_limit
    if limit is None or not now["started"]:
        return None
    return max(0.0, seconds("session_limit", limit) - (time.time() - float(now["started"])))


def charts(rows: list[dict[str, Any]], total_steps: int) -> str:
    """The live charts: success rate where the task has one, and mean return."""
    return style.wrap(style.flex(f"<div>{chart(curve, total_steps)}</div>" for curve in Curve.of(rows)))
