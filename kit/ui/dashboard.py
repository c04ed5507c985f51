"""A live view of one run with its buttons. Holds no state of its own: make it again for the same run at any time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kit.config import seconds
from kit.errors import need
from kit.runs import metrics
from kit.runs.api import resume
from kit.runs.run import Run
from kit.ui import players, style
from kit.ui.curve import Line, chart
from kit.ui.filming import Filming
from kit.ui.learning import Learning

REFRESH_S = 0.5


class Dashboard:
    """State, progress, learning curves and the latest video of a run; Pause, Stop, Checkpoint now.

    >>> kit.ui.Dashboard(kit.runs()[0]).show()

    Every button works from a thread of its own, so no click ever waits for another; the panel says what goes wrong.
    """

    def __init__(self, run: Run | None = None) -> None:
        self._w = w = need("ipywidgets", "notebook")
        self.run: Run | None = None
        self.pause_button = self._button("Pause", "pause", "Stand still and keep everything in memory", self._pause)
        self.stop_button = self._button("Stop", "stop", "Save and end; resume goes on from there", self._stop)
        self.save_button = self._button("Checkpoint now", "save", "Save at the end of this iteration", self._save)
        self.buttons = [self.pause_button, self.stop_button, self.save_button]
        self._style = w.HTML(f"<style>{style.CSS}</style>", layout=w.Layout(display="none"))
        self._head = self._html("kit-head")
        self._curves = self._html("kit-curves")
        self._video = self._html("kit-video")
        self._message = self._html("kit-message")
        side_by_side = w.Layout(display="flex", flex_flow="row wrap", max_width="920px")
        body = w.Box([self._curves, self._video], layout=side_by_side)
        self.view = w.VBox([self._style, self._head, self._message, body], layout=w.Layout(overflow="visible"))
        self.view.add_class("kit-dashboard")
        self.on_end: list[Callable[[Run], None]] = []
        """Called with the run when it is finished."""
        self.on_change: list[Callable[[], None]] = []
        """Called when the run starts or ends."""
        self._watching: threading.Thread | None = None
        self._drawn: tuple[Any, ...] = ()
        self._shown_video = ""
        self._draw_buttons(None)
        if run is not None:
            self.attach(run)

    def show(self) -> Dashboard:
        """Display it under the running cell."""
        from IPython.display import display

        display(self._w.VBox([self._w.HBox(self.buttons), self.view]))
        return self

    def attach(self, run: Run) -> None:
        """Watch `run` from now on, from any thread."""
        self.run, self._drawn, self._shown_video = run, (), ""
        self.say("")
        watching = threading.Thread(target=self._watch, args=(run,), name=f"watch-{run.name}", daemon=True)
        watching.start()
        self._watching = watching

    def wait(self, timeout: float | None = None) -> None:
        """Until the run has ended and everything about it is shown."""
        if self._watching is not None:
            self._watching.join(timeout)

    @property
    def is_working(self) -> bool:
        return self.run is not None and self.run.is_working()

    def say(self, sentence: str, bad: bool = False) -> None:
        """One sentence under the figures."""
        self._message.value = "" if not sentence else style.wrap(style.error(sentence) if bad else style.note(sentence))

    def do(self, work: Callable[[], object], sentence: str = "") -> None:
        """Run `work` in a thread of its own and show what goes wrong."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.say(str(error) or type(error).__name__, bad=True)
                self._draw_buttons(self.run.status() if self.run else None)

        if sentence:
            self.say(sentence)
        threading.Thread(target=guarded, name="button", daemon=True).start()

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self, run: Run) -> None:
        """Redraw until the run's process has ended; then once more, with a last video."""
        filming = Filming(run)
        for call in self.on_change:
            call()
        try:
            while self.run is run:
                now = run.status()
                working = run.is_working(now)
                self._draw(run, now | {"session_left_s": session_left_s(run, now) if working else None})
                filming.poll(now, working)
                self._show_video(filming)
                if not working:
                    break
                time.sleep(REFRESH_S)
            if self.run is run:
                self.say("")
                self._ended(run, filming)
        except Exception as error:
            self.say(f"The display stopped ({type(error).__name__}: {error}); the run does not depend on it.", bad=True)
        finally:
            filming.close()

    def _ended(self, run: Run, filming: Filming) -> None:
        """The process is gone. A run that is done gets its last video; one that was stopped waits for Resume."""
        for call in self.on_change:
            call()
        if run.status()["state"] != "finished":
            return
        if filming.wanted:
            self.say("Filming the policy…")
            filming.finish()
            self.say(filming.error, bad=True)
            self._show_video(filming)
        for end in self.on_end:
            end(run)

    def _draw(self, run: Run, now: dict[str, Any]) -> None:
        self._set(self._head, style.wrap(style.head(run.name, now)))
        self._draw_buttons(now)
        path = run.path / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if self._drawn != (run.path, size):
            self._drawn = (run.path, size)
            self._set(self._curves, style.wrap(curves(metrics.read(run.path), now["total_steps"])))

    def _show_video(self, filming: Filming) -> None:
        path = filming.latest
        if path is not None and str(path) != self._shown_video:
            with contextlib.suppress(OSError):
                self._video.value = style.wrap(players.tag(path, caption=players.caption(path), width=210))
                self._shown_video = str(path)

    def _draw_buttons(self, now: dict[str, Any] | None) -> None:
        state = now["state"] if now else ""
        at_work = state in ("running", "paused", "starting")
        resumable = state in ("interrupted", "failed")
        label, icon = ("Resume", "play") if state == "paused" or resumable else ("Pause", "pause")
        self._set_button(self.pause_button, not (state in ("running", "paused") or resumable), label, icon)
        self._set_button(self.stop_button, not at_work)
        self._set_button(self.save_button, state not in ("running", "paused"))

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

        now = run.wait(60, until=is_over)
        self.say(f"Saved step {now['checkpoint']['step']:,}." if now["checkpoint"] else "")

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

    @staticmethod
    def _set(widget: Any, value: str) -> None:
        if widget.value != value:
            widget.value = value

    @staticmethod
    def _set_button(button: Any, disabled: bool, label: str | None = None, icon: str | None = None) -> None:
        button.disabled = disabled
        if label is not None and button.description != label:
            button.description, button.icon = label, icon


def session_left_s(run: Run, now: dict[str, Any]) -> float | None:
    """Until `session_limit` ends this session, or None without a limit."""
    limit = run.config.session_limit
    if limit is None or not now["started"]:
        return None
    return max(0.0, seconds("session_limit", limit) - (time.time() - float(now["started"])))


def curves(rows: list[dict[str, Any]], total_steps: int) -> str:
    """The live charts: success rate where the task has one, and mean return."""
    learning = Learning.of(rows)
    charts = []
    for title, training, evaluation, percent in (
        ("Success rate", learning.success, learning.eval_success, True),
        ("Mean return", learning.returns, learning.eval_returns, False),
    ):
        if percent and not learning.has_success and rows:
            continue
        lines = [
            Line("train", list(training.steps), list(training.values), style.BLUE),
            Line("eval", list(evaluation.steps), list(evaluation.values), style.ORANGE, dots=True),
        ]
        scale = ((0.0, 1.0), style.percent) if percent else ()
        charts.append(f"<div>{chart(title, lines, total_steps, *scale)}</div>")
    return f"<div class='kit-flex'>{''.join(charts)}</div>"
