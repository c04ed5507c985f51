"""The training panel: choose, see how long it will take, press Train, watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.config import RunConfig
from kit.errors import UserError
from kit.runs.api import launch, local_runs
from kit.runs.run import Run
from kit.ui import style
from kit.ui.dashboard import Dashboard
from kit.ui.estimate import Estimator
from kit.ui.form import Form
from kit.ui.headless import follow, nobody_there


class TrainPanel:
    """A form for a RunConfig with Train, Pause, Stop and Checkpoint now, and the dashboard of the run below it.

    >>> panel = kit.ui.TrainPanel(config).show()

    Training is a process of its own: closing the tab or restarting the kernel does not end it. A panel that is shown
    while a run of its `runs_dir` is at work picks that run up again. With nobody there (papermill), `show` trains at
    once and returns when it is done.
    """

    def __init__(self, config: RunConfig | None = None, **fields: Any) -> None:
        config = config or RunConfig()
        self.config = config.replace(**fields) if fields else config
        self.run: Run | None = None
        self.on_end: list[Callable[[Run], None]] = []
        """Called with the run when it is finished."""

    def show(self) -> TrainPanel:
        """Display the panel, or train now if nobody is there to press Train. Raises `RunFailed` in that case only."""
        if nobody_there():
            self.run = launch(self.config)
            follow(self.run)
        else:
            self._build()
            self._reattach()
        return self

    # -- with somebody there ---------------------------------------------------------------------------------------

    def _build(self) -> None:
        import ipywidgets as w
        from IPython.display import display

        self.dashboard = Dashboard()
        self.dashboard.on_end.append(self._ended)
        self.dashboard.on_change.append(self._changed)
        self.train_button = w.Button(
            description="Train", icon="play", button_style="primary", layout=w.Layout(width="auto", min_width="96px")
        )
        self.train_button.add_class("kit-train-button")
        self.train_button.on_click(lambda _: self._train())
        self.label = w.HTML("", layout=w.Layout(margin="2px 0 4px 0"))
        self.label.add_class("kit-label")
        self._valid = True
        self.estimator = Estimator(self._tell)
        self.form = Form(self.config, self._edited)
        buttons = w.HBox([self.train_button, *self.dashboard.buttons])
        self.view = w.VBox([self.form.view, self.label, buttons, self.dashboard.view])
        self.view.add_class("kit-train-panel")
        display(self.view)
        self._edited()

    def _reattach(self) -> None:
        working = [run for run in local_runs(self.config.runs_dir) if run.is_working()]
        named = [run for run in working if run.name == self.config.run_name]
        if named or (working and self.config.run_name is None):
            self.run = (named or working)[0]
            self.estimator.cancel()
            self._tell(f"{self.run.name} is at work already: this panel shows it and steers it.", True)
            self.dashboard.attach(self.run)

    def _edited(self) -> None:
        """After each change: the sentence of what is wrong at once, else an estimate when it is known."""
        try:
            self.config = self.form.read()
        except UserError as error:
            self.estimator.cancel()
            self._tell(str(error), False)
            return
        if not self.dashboard.is_working:  # a probe beside a training would slow it and be wrong
            self._tell("…", True)
            self.estimator.ask(self.config)
        else:
            self._valid = True

    def _tell(self, sentence: str, valid: bool) -> None:
        self._valid = valid
        self.label.value = style.wrap(style.note(sentence) if valid else style.error(sentence))
        self._draw_train()

    def _changed(self) -> None:
        """The run has begun, or its process is gone: then the label may speak of the next one again."""
        if self.dashboard.is_working:
            self._draw_train()
        else:
            self._edited()

    def _draw_train(self) -> None:
        self.train_button.disabled = not self._valid or self.dashboard.is_working

    def _train(self) -> None:
        self.train_button.disabled = True
        self.estimator.cancel()
        self.dashboard.do(self._launch, "Starting a training process…")

    def _launch(self) -> None:
        try:
            self.run = launch(self.config)
        except BaseException as error:
            self.dashboard.say("")
            self._tell(str(error), not isinstance(error, UserError))
            return
        self._tell("", True)
        self.dashboard.attach(self.run)

    def _ended(self, run: Run) -> None:
        self.run = run
        for end in self.on_end:
            end(run)
