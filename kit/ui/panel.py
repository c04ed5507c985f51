"""The training panel: choose, see how long it will take, press Train, watch."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from kit.config import RunConfig
from kit.errors import UserError
from kit.machine import host
from kit.measure import advice, speed
from kit.measure.auto import resolve
from kit.runs import directory
from kit.runs.api import launch, resume_existing
from kit.runs.finding import local_runs
from kit.runs.run import Run
from kit.ui import as_code, style
from kit.ui.dashboard import Dashboard
from kit.ui.form import Form
from kit.ui.headless import follow, nobody_there
from kit.ui.task import task

MEASURING = "Measuring this machine for a few seconds… you can press Train already."
SETTLE_S = 0.4
"""After the last key stroke, before anything costly begins."""


class Panel(Dashboard):
    """A dashboard that begins the run as well. With `end_session` the machine is given back when the run is finished
    and has arrived in its store."""

    def __init__(self, end_session: bool = False) -> None:
        super().__init__()
        self.end_session = end_session
        if end_session:
            host.can_end_session()

    def show(self) -> Self:
        """Display the panel. With nobody there (papermill), do the work now; only then raises `RunFailed`."""
        if not nobody_there():
            return super().show()
        self.run = self._begin()
        follow(self.run)
        self._end(self.run)
        return self

    def _begin(self) -> Run:
        raise NotImplementedError

    def _end(self, run: Run) -> None:
        if not self.end_session:
            return
        if trouble := not_safe(run):
            sentence = f"The session goes on: {trouble}."
            print(sentence) if nobody_there() else self.say(sentence, bad=True)
        else:
            host.end_session()


def not_safe(run: Run) -> str | None:
    """Why the machine of `run` cannot go yet, or None."""
    now = run.status()
    held = (now["store"] or {}).get("step")
    if now["state"] != "finished":
        return f"the run is {now['state']}"
    if held is None or held < now["step"]:
        return f"step {now['step']:,} has not arrived in a store" if run.config.store else "the run has no store"
    return None


class TrainPanel(Panel):
    """A form for a RunConfig with Train, Pause, Stop and Checkpoint now, and the dashboard of the run below it.

    >>> panel = kit.ui.TrainPanel(config).show()

    Training is a process of its own: closing the tab or restarting the kernel does not end it. A panel that is shown
    while a run of its `runs_dir` is at work picks that run up again.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        dollars_per_hour: float | None = None,
        end_session: bool = False,
        **fields: Any,
    ) -> None:
        """`dollars_per_hour` is what this machine costs, for the estimate; by default as last documented."""
        super().__init__(end_session)
        self.config = (config or RunConfig()).replace(**fields)
        self.dollars_per_hour = dollars_per_hour

    def _begin(self) -> Run:
        if os.environ.get("KIT_GO_ON") and (run := resume_existing(self.config)):
            return run
        return launch(self.config)

    def _build(self, w: Any) -> None:
        super()._build(w)
        layout = w.Layout(width="auto", min_width="96px")
        self.train_button = w.Button(description="Train", icon="play", button_style="primary", layout=layout)
        self.train_button.add_class("kit-train-button")
        self.train_button.on_click(lambda _: self._train())
        self.label = w.HTML("", layout=w.Layout(margin="2px 0 4px 0"))
        self.label.add_class("kit-label")
        self.form = Form(self.config, self._edited, self.dollars_per_hour)
        self.estimator = Estimator(self._tell, self.form.hyper.show)
        self.pasted = w.Textarea(
            placeholder="Paste YAML here, of a config or of a run's config.yaml, to fill the form with it.",
            continuous_update=False, layout=w.Layout(width="100%", height="72px"),
        )  # fmt: skip
        self.pasted.add_class("kit-pasted")
        self.pasted.observe(lambda change: self._paste(change["new"]), names="value")
        self.task = Fold(w, "What this task is", "kit-task", task)
        self.code = Fold(w, "As YAML, shell, Python, papermill", "kit-as-code", as_code.page, self.pasted)
        self.buttons.children = (self.train_button, *self.buttons.children)
        self.choices = w.Accordion(
            [self.form.view], selected_index=0, layout=w.Layout(max_width="920px", margin="4px 0")
        )
        self.choices.add_class("kit-choices")
        self.view.children = (self.task.view, self.choices, self.code.view, self.label, *self.view.children)
        self.view.add_class("kit-train-panel")

    def _shown(self) -> None:
        for run in local_runs(self.config.runs_dir):
            if self.config.run_name in (None, run.name) and run.is_working():
                self.form.fill(run.config)
                self.attach(run)
                self._tell(f"{run.name} is at work already: this panel shows it and steers it.", True)
                self.do(partial(self.form.hyper.show, run.config, run.config))
                return
        self._edited()

    def _edited(self) -> None:
        """After each change: the sentence of what is wrong at once, else an estimate when it is known."""
        self.estimator.cancel()
        try:
            self.config, price = self.form.read(), self.form.read_price()
            if self.config.run_name and not self.is_working:
                directory.free(self.config)
        except UserError as error:
            self._tell(str(error), False)
            return
        self._name_choices()
        self.task.choose(self.config.env, self.config.env_options)
        self.code.choose(self.config)
        if self.is_working:  # a probe beside a training would slow it and be wrong
            self._tell("", True)
        else:
            self._tell("…", True)
            self.estimator.ask(self.config, price)

    def _paste(self, text: str) -> None:
        """Fill the form with a config in YAML; a run's own takes a new name."""
        if not text.strip():
            return
        try:
            config = RunConfig.from_yaml(text)
            self.form.fill(config.replace(run_name=None))
            self.pasted.value = ""
        except UserError as error:
            self._tell(str(error), False)

    def _tell(self, sentence: str, valid: bool) -> None:
        self.form.mark("" if valid else sentence)
        self.label.value = style.wrap(style.note(sentence, bad=not valid))
        self.train_button.disabled = not valid or self.is_working

    def _changed(self) -> None:
        """While a run is at work the form is folded; when it is over, the label may speak of the next one again."""
        self.choices.selected_index = None if self.is_working else 0
        self._name_choices()
        if self.is_working:
            self.train_button.disabled = True
        else:
            name = self.form.entries["run_name"]
            if self.run is not None and name.value == self.run.name:
                name.value = ""  # it is taken now; the next run is named by time
            self._edited()

    def _name_choices(self) -> None:
        c = self.config
        self.choices.set_title(0, f"{c.env} with {c.algo}, {c.total_steps:,} steps, seed {c.seed}")

    def _train(self) -> None:
        self.estimator.cancel()
        self._tell("", valid=False)
        self.do(lambda: self.attach(launch(self.config)), "Starting a training process…")


class Fold:
    """A page about what is chosen; drawn, in a thread, when somebody unfolds it."""

    def __init__(self, w: Any, title: str, name: str, draw: Callable[..., style.Page], *below: Any) -> None:
        self._make, self._page = draw, w.HTML()
        self.view = w.Accordion(
            [w.VBox([self._page, *below])], layout=w.Layout(max_width="920px", margin="4px 0"), selected_index=None
        )
        self.view.set_title(0, title)
        self.view.add_class(name)
        self.view.observe(lambda _: self._draw(), names="selected_index")
        self._chosen: tuple[Any, ...] | None = None
        self._drawn: tuple[Any, ...] | None = None

    def choose(self, *what: Any) -> None:
        """What is drawn from now on."""
        self._chosen = what
        self._draw()

    def _draw(self) -> None:
        chosen = self._chosen
        if self.view.selected_index is None or chosen is None or chosen == self._drawn:
            return
        self._drawn = chosen
        self._page.value = style.wrap(style.note("…"))

        def draw() -> None:
            try:
                page = self._make(*chosen)._repr_html_()
            except Exception as error:
                page = style.wrap(style.note(str(error) or type(error).__name__, bad=True))
            if chosen == self._drawn:
                self._page.value = page

        threading.Thread(target=draw, daemon=True).start()


class Estimator:
    """Tells a sentence, and whether the request is valid, and shows what it comes to. Only the newest question is
    answered, in a thread."""

    def __init__(self, tell: Callable[[str, bool], None], show: Callable[[RunConfig, RunConfig], None]) -> None:
        self._tell, self._show = tell, show
        self._question = object()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, config: RunConfig, dollars_per_hour: float | None) -> None:
        """Check `config` and estimate how long it takes and what it costs."""
        self.cancel()
        timer = threading.Timer(SETTLE_S, self._answer, (self._question, config, dollars_per_hour))
        timer.daemon = True
        timer.start()

    def cancel(self) -> None:
        """Forget the question that is being worked on."""
        self._question = object()
        if self._process is not None:
            self._process.kill()

    def _answer(self, question: object, config: RunConfig, dollars_per_hour: float | None) -> None:
        def say(sentence: str, valid: bool) -> None:
            if question is self._question:
                self._tell(sentence, valid)

        try:
            resolved = resolve(config)
            if question is self._question:
                self._show(config, resolved)
            known = speed.cached(resolved)
            if known is None:
                say(MEASURING, True)
                self._process = process = speed.probe_apart(resolved)
                if question is not self._question:  # cancelled just now
                    process.kill()
                known = speed.answer(process, resolved)
            takes, keeps = advice.estimate(resolved, known, None, dollars_per_hour), advice.disk_use(resolved)
            worlds = f"with {resolved.n_envs} world{'' if resolved.n_envs == 1 else 's'} on {resolved.device}"
            say(f"{takes[0].upper()}{takes[1:]}, {worlds}; {keeps}.", True)
        except Exception as error:
            say(str(error) or type(error).__name__, isinstance(error, speed.NotMeasured))
