"""The training panel: a form for a run, its estimated time and price, the Train button and a live dashboard."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from kit.config import RunConfig
from kit.errors import UserError
from kit.format.files import write_atomic
from kit.machine import host
from kit.runs import directory
from kit.runs.api import launch, resume_existing
from kit.runs.finding import local_runs
from kit.runs.run import Run
from kit.stores.urls import check_url
from kit.trust import named_files
from kit.ui import as_code, style
from kit.ui.dashboard import Dashboard
from kit.ui.estimate import Estimator, working_runs
from kit.ui.fold import Fold, PageFold
from kit.ui.form import Form
from kit.ui.headless import follow, nobody_there
from kit.ui.task import task

LEAVE = "Back to the form"
"""Label of the button that stops watching a run, which continues."""
NOTICE_S = 60
"""Seconds between the notice that the machine's session will end, and its end."""
SAME = ("env", "algo", "env_options", "teacher", "dataset")
"""A run that no panel has started is a panel's only if these fields equal those of the panel's cell."""
MARK = ".panel"
"""File in a run that a panel has started: the `SAME` fields of the panel's cell. The form may have changed them."""
TITLE_CHARACTERS = 60
"""Maximum number of characters of changed options and hyperparameters in the title of the folded form."""
LATE_EDITS_S = 0.5
"""Seconds that Train waits before it reads the form.

While the kernel is busy with a cell, the browser sends the second edit of an entry only when the first is processed
(ipywidgets' `msg_throttle`). It sends the press of Train at once."""


class Panel(Dashboard):
    """Base class of panels: a dashboard that can start a run. Subclasses define `_start_run`.

    `end_session=True` ends the Colab session, or stops the RunPod pod, once the run is finished and its last checkpoint
    is in the store. With a user there, a button keeps the session open during the last `NOTICE_S` seconds.
    """

    _pressed_at = 0.0
    """Time of the last press in any panel, in unix seconds. It is shared: several panels may watch one run."""

    def __init__(self, end_session: bool = False) -> None:
        super().__init__()
        self._end_session = host.session_ender() if end_session else None
        self._watched: Path | None = None  # the run that was started elsewhere and that the user watches here

    @property
    def own_run(self) -> Run | None:
        """The shown run, or None if it was started elsewhere and is only watched here."""
        return None if self.run is None or self.run.path == self._watched else self.run

    def show(self) -> Self:
        """Display the panel. In a notebook executed without a user (papermill), instead start the run and wait for its
        end. Raises `RunFailed` if the run fails."""
        if not nobody_there():
            return super().show()
        self.run = self._start_run()
        follow(self.run)
        self._end(self.run)
        return self

    def _build(self, w: Any) -> None:
        super()._build(w)
        self.keep_button = w.Button(
            description="Keep the session open", icon="hand-paper-o", button_style="warning",
            layout=w.Layout(width="auto", display="none"), _dom_classes=("kit-keep-button",),
        )  # fmt: skip
        self.keep_button.on_click(lambda _: self.keep_open())
        self.buttons.children = (*self.buttons.children, self.keep_button)

    def find_run(self) -> Run:
        """Return the run that the panel shows. Raises `UserError` if it shows none."""
        if self.run is None:
            raise UserError("this panel has no run yet; press its button first, and run this cell again.")
        return self.run

    def _start_run(self) -> Run:
        raise NotImplementedError

    def _end(self, run: Run) -> None:
        if self._end_session is None:
            return
        if reason := not_safe(run):
            message = f"The session stays open: {reason}."
            print(message) if nobody_there() else self.say(message, bad=True)
        elif nobody_there() or self._count_down(run):
            self._end_session()

    def _count_down(self, run: Run) -> bool:
        """Announce the end of the session for `NOTICE_S` seconds; return False if the user keeps it open or trains."""
        ended_at = run.status()["updated"]
        self.keep_button.layout.display = None
        kept = False
        for left_s in range(NOTICE_S, 0, -1):
            self.say(f"The run is finished and in the store; the session of this machine ends in {left_s} s.")
            time.sleep(1)
            if kept := Panel._pressed_at > ended_at or not self._watches(run) or not_safe(run) is not None:
                break
        self.keep_button.layout.display = "none"
        if self.run is run:  # else the message is about another run
            self.say("The session stays open." if kept else "The session ends.")
        return not kept

    def keep_open(self) -> None:
        """Keep the session open if it is about to end: who presses a button is there."""
        Panel._pressed_at = time.time()


def not_safe(run: Run) -> str | None:
    """Return why the machine's session must not end yet.

    None if `run` is finished and in the store, and no other run in its folder trains.
    """
    now = run.status()
    stored_step = (now["store"] or {}).get("step")
    if now["state"] != "finished":
        return f"the run is {now['state']}"
    if stored_step is None or stored_step < now["step"]:
        return f"step {now['step']:,} is not in the store yet" if run.config.store else "the run has no store"
    if others := working_runs(run.path.parent):
        return f"{others[0].name} is training"
    return None


class TrainPanel(Panel):
    """A training panel: a form for a RunConfig, the buttons Train, Pause, Stop and Checkpoint now, and a dashboard.

    >>> panel = kit.ui.TrainPanel(config).show()

    Training runs in a separate process, and continues if the tab is closed or the kernel is restarted. If a run of this
    panel is already training in `runs_dir`, or one of this notebook with the same env, algo, env_options, teacher and
    dataset that is no branch, the panel shows that run. A button shows a run that was started elsewhere.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        dollars_per_hour: float | None = None,
        end_session: bool = False,
        **fields: Any,
    ) -> None:
        """`dollars_per_hour`: price of this machine, for the estimate; default: the last known price."""
        super().__init__(end_session)
        self.config = (config or RunConfig()).replace(**fields)
        self.dollars_per_hour = dollars_per_hour
        self._cell = asked_for(self.config)
        self._starting = False
        self._unfilled: RunConfig | None = None  # what the form held before the run that this panel found filled it
        self._offered: Run | None = None  # the run that the Watch button names
        self._at_work = set[str]()  # names of the runs that were training when the form was last read
        self._files: dict[Path, int] = {}  # the user's modules that the form names, and their times

    def find_run(self) -> Run:
        """Return the panel's run, or else the latest run with a policy and with the form's run_name and `SAME` fields.

        Raises `UserError` if there is none.
        """
        c = self.config
        if self.own_run is not None:
            return self.own_run
        for run in local_runs(c.runs_dir):
            asked = run.requested
            same = all(getattr(asked, name) == getattr(c, name) for name in SAME) and c.run_name in (None, run.name)
            if same and (run.checkpoints() or run.best()):
                return run
        others = "".join(f", {name}={value!r}" for name in SAME[2:] if (value := getattr(c, name)))
        what = f"{c.env} with {c.algo}{others}"
        watched = f" {self.run.name}, which this panel shows, was started elsewhere." if self.run is not None else ""
        raise UserError(f"runs_dir={c.runs_dir!r} holds no run of {what}; press Train and wait for it.{watched}")

    def settings(self) -> RunConfig:
        """Return the settings in the form, once the last edits have arrived. Raises `UserError` for a wrong value."""
        time.sleep(LATE_EDITS_S)
        return self.form.read()

    def _start_run(self) -> Run:
        # `kit.scale.execute` sets KIT_GO_ON, so that a notebook that it executes again resumes its run
        if os.environ.get("KIT_GO_ON") and (run := resume_existing(self.config)):
            return run
        return launch(self.config)

    def _build(self, w: Any) -> None:
        super()._build(w)
        self.train_button = w.Button(
            description="Train", icon="play", button_style="primary", layout=self._button_layout,
            _dom_classes=("kit-train-button",),
        )  # fmt: skip
        self.train_button.on_click(lambda _: self._train())
        self.label = w.HTML(layout=w.Layout(margin="2px 0 4px 0"), style=self._html_style, _dom_classes=("kit-label",))
        self.form = Form(self.config, self._typed, self.dollars_per_hour)
        self.estimator = Estimator(self._show_validity, self.form.hyper.show)
        self.pasted = w.Textarea(
            placeholder="Paste a config in YAML (such as a run's config.yaml) to fill the form.",
            continuous_update=False, layout=w.Layout(width="100%", height="72px"), tooltip="a config in YAML",
            _dom_classes=("kit-pasted",),
        )  # fmt: skip
        self.pasted.observe(lambda change: self._paste(change["new"]), names="value")
        self.task = PageFold(w, "What this task is", "kit-task", task)
        self.code = PageFold(w, "As YAML, shell, Python, papermill", "kit-as-code", as_code.page, self.pasted)
        layout = w.Layout(width="auto", min_width="96px", display="none")
        self.watch_button = w.Button(layout=layout, _dom_classes=("kit-watch-button",))
        self.watch_button.on_click(lambda _: self.do(self._watch_or_leave))
        self.buttons.children = (self.train_button, *self.buttons.children, self.watch_button)
        self.choices = Fold(w, "", "kit-choices", [self.form.view], is_open=True)
        self.view.children = (self.task.view, self.choices.view, self.code.view, self.label, *self.view.children)
        self.view.add_class("kit-train-panel")

    def attach(self, run: Run) -> None:
        """Start to watch `run`; stop measuring the speed, which would come out too low beside it."""
        self.estimator.cancel()
        self.label.value = ""
        super().attach(run)

    def close(self) -> None:
        """Stop watching the run, and measuring the speed."""
        self.estimator.cancel()
        super().close()

    def _on_show(self) -> None:
        for run in working_runs(self.config.runs_dir):
            named = run.name == self.config.run_name and run.config.env == self.config.env
            if named or (self.config.run_name is None and self._is_own(run)):
                self._unfilled = self.config
                self.form.fill(run.requested)
                self.attach(run)
                self._show_label(f"{run.name} is already training: this panel shows and controls it.", True)
                self.do(partial(self.form.hyper.show, run.requested, run.config))
                return
        self._edited()
        threading.Thread(target=self._name_stopped, name="stopped", daemon=True).start()

    def _name_stopped(self) -> None:
        """Say how the latest run goes on if this panel has started it, for example before a kernel's restart."""
        latest = next(iter(local_runs(self.config.runs_dir)), None)
        if latest is not None and self._is_own(latest) and (now := latest.status())["state"] == "interrupted":
            how = f"02_resume, or `kit resume {latest.path}`, continues it"
            if self.run is None:
                self.say(f"{latest.name} stopped at step {now['step']:,}: {how}.")

    def _is_own(self, run: Run) -> bool:
        """Whether this cell's panel has started `run`, or else this notebook with the same `SAME` fields."""
        mark = run.path / MARK
        try:
            if run.notebook != host.notebook():
                return False
            if mark.exists():
                return mark.read_text() == self._cell
            is_known = host.notebook() is not None or "google.colab" in sys.modules  # Colab: one notebook per machine
            return run.parent is None and is_known and asked_for(run.requested) == self._cell
        except (UserError, OSError):  # of another version of kit, or deleted just now
            return False

    def _watch_or_leave(self) -> None:
        """Watch the run that another notebook or program trains; or, if the panel watches a run, leave it."""
        if self.watch_button.description == LEAVE:
            self._back_to_form()
        elif (run := self._offered) is not None and run.is_working():
            self._watched = None if self._is_own(run) else run.path
            self.attach(run)
            where = "was started elsewhere" if self._watched else "is shown"
            self._show_label(f"{run.name} {where}; the form keeps its own settings.", True)
        else:
            self._edited()  # that run has ended

    def _back_to_form(self) -> None:
        """Leave the shown run. If the panel has found it and filled the form, restore the form."""
        if self._unfilled is not None:
            self.form.fill(self._unfilled)
            self._unfilled = None
        self._free_name()
        self.leave()

    def _beat(self) -> None:
        super()._beat()
        run = self.run
        if run is not None and not run.path.exists() and run.path.parent.exists():
            self._back_to_form()
            self.say(f"{run.name} was deleted or renamed.")
        runs = working_runs(self.config.runs_dir)
        self._draw_watch_button(runs)
        names, files = {run.name for run in runs}, file_times(self.config)
        if not (self.is_working or self._starting) and (self._at_work, self._files) != (names, files):
            self._at_work, self._files = names, files
            self._edited()  # the estimate says which other run slows this one down; an error may be mended in its file

    def _draw_watch_button(self, runs: Sequence[Run]) -> None:
        """Name the button: leave the shown run, or watch a run that trains. `runs`: those at work.

        A shown run can be left if it trains or is not this panel's. To watch, the panel's own run comes first, then
        the latest.
        """
        is_working, is_foreign = self.is_working, self.run is not None and self.own_run is None
        self._offered = next((run for run in runs if self._is_own(run)), runs[0] if runs else None)
        if self.run is not None and (is_working or is_foreign):
            self.watch_button.description, self.watch_button.icon = LEAVE, "sign-out"
            self.watch_button.tooltip = f"Stop watching {self.run.name}, which continues, and show the form again"
        elif self._offered is not None:
            self.watch_button.description, self.watch_button.icon = f"Watch {self._offered.name}", "eye"
            self.watch_button.tooltip = f"Show and control {self._offered.name}, which is at work"
        self.watch_button.layout.display = None if is_working or is_foreign or runs else "none"

    def _typed(self) -> None:
        """Called after each edit by the user. An older message, such as why a run could not start, may be outdated."""
        self._last_pressed = None
        if not self.is_working:
            self.say("")
        self._watch_again()
        self._edited()

    def _edited(self, estimate: bool = True) -> None:
        """Show an error at once; without an error, show an estimate once it is computed, if `estimate`."""
        self.estimator.cancel()
        try:
            self.config, price = self.form.read(), self.form.read_price()
            runs = working_runs(self.config.runs_dir)
            self._at_work, self._files = {run.name for run in runs}, file_times(self.config)
            if self.config.run_name and not self.is_working:
                directory.free(self.config)
            if self.config.store:
                check_url(self.config.store)
        except UserError as error:
            self._show_validity(str(error), False)
            return
        self._update_title()
        self._draw_watch_button(runs)
        busy = self.is_working or self._starting  # measuring the speed would slow down training and give wrong values
        if busy or not estimate:
            self._show_label("", True)
        else:
            self._show_label("…", True)
            self.estimator.start(self.config, price)

    def _paste(self, text: str) -> None:
        """Fill the form from a config in YAML. Leave run_name empty, so that Train starts a new run."""
        if not text.strip():
            return
        try:
            config = RunConfig.from_yaml(text)
            self.form.fill(config.replace(run_name=None))
            self.pasted.value = ""
        except UserError as error:
            self._show_label(str(error), False)

    def _show_validity(self, message: str, valid: bool) -> None:
        """Show a message about the form. Unless `valid`, title and code say so too."""
        self._show_label(message, valid)
        if not valid and not self.is_working:
            self.choices.set_title("Settings, not valid yet")
            self.code.choose(UserError(message))

    def _show_label(self, message: str, valid: bool) -> None:
        """Show a message above the buttons. Unless `valid`, mark the entry that the message names and disable Train."""
        self.form.mark("" if valid else message)
        self.label.value = style.wrap(style.note(message, bad=not valid))
        self.train_button.disabled = not valid or self.is_working or self._starting

    def _on_change(self) -> None:
        """Fold the form when a run starts; unfold it and estimate again when the run has ended.

        After Stop or a failure, the form stays folded and the next edit starts the estimate: Resume needs none.
        """
        can_resume = self.run is not None and self.run.status()["state"] in ("interrupted", "failed")
        self.choices.is_open = not self.is_working and not can_resume
        self.train_button.button_style = "" if can_resume else "primary"  # the blue button is Resume
        self._update_title()
        self._draw_watch_button(working_runs(self.config.runs_dir))
        if self.is_working:
            self.train_button.disabled = True
        else:
            self._free_name()
            self._edited(estimate=not can_resume)

    def _free_name(self) -> None:
        """Clear the run_name that the shown run has taken; for an empty entry kit makes up a name with the time."""
        name = self.form.entries["run_name"]
        if self.run is not None and name.value == self.run.name:
            name.value = ""

    def _update_title(self) -> None:
        """Show task and settings of the run at work, which the form may have left behind, or else those of the form."""
        c = self.run.requested if self.run is not None and self.is_working else self.config
        self.task.choose(c.env, c.env_options)
        self.code.choose(c)
        changed = "".join(f", {name}={value}" for name, value in {**c.env_options, **c.overrides}.items())
        changed = changed if len(changed) <= TITLE_CHARACTERS else f"{changed[:TITLE_CHARACTERS]}…"
        self.choices.set_title(f"{c.env} with {c.algo}, {c.total_steps:,} steps, seed {c.seed}{changed}")

    def _train(self) -> None:
        self.estimator.cancel()
        self.choices.focus()  # the Train button, which had the focus, is now disabled
        self._show_label("", valid=False)
        self._starting = True
        self.do(self._start, "Starting a training process…")

    def launch(self, start_from: Path | None = None) -> Run:
        """Start a run with the form's settings, from the best policy of the run `start_from` if one is given."""
        run = launch(self.settings(), start_from=start_from)
        self._unfilled = None  # the form now holds what the user has chosen
        with contextlib.suppress(OSError):  # it trains; only a panel after a restart does not know it
            write_atomic(run.path / MARK, self._cell)
        return run

    def _start(self) -> None:
        try:
            run = self.launch()
        except UserError as error:
            self.say("")
            self._files = file_times(self.config)  # else the next beat, after an edit of a file, would hide the error
            self._show_label(str(error), valid=False)
            self.train_button.disabled = self.is_working  # the cause may lie outside the form, such as no connection
            return
        finally:
            self._starting = False
        self.newest.attach(run)  # the cell may have run again meanwhile


def asked_for(config: RunConfig) -> str:
    """Return the `SAME` fields of `config` as a text."""
    values = config.to_dict()
    return json.dumps({name: values[name] for name in SAME}, sort_keys=True, default=str)


def file_times(config: RunConfig) -> dict[Path, int]:
    """Return the files of the modules that `config` names, with the times of their last changes."""
    with contextlib.suppress(OSError):  # saved just now
        return {file: file.stat().st_mtime_ns for file in named_files(config).values()}
    return {}
