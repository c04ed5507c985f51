"""What to do after a run: likely causes of a poor result, and buttons to train longer, branch, compare or export."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kit import envs
from kit.errors import explain, need
from kit.runs.api import branch, resume
from kit.runs.export import export
from kit.runs.finding import local_runs
from kit.runs.publish import push
from kit.runs.run import Run
from kit.ui import cells, diagnosis, heartbeat, style
from kit.ui.comparing import compare
from kit.ui.dashboard import Dashboard
from kit.ui.panel import TrainPanel

GOOD_RATE = 0.8
"""A run with at least this success rate gets no advice."""
NEEDS = {"View in 3-D": ("view", "viser", "mjviser"), "Export": ("deploy", "onnx", "onnxruntime")}
"""Name of a button -> pip extra of kit, and the packages of it that the button needs."""


def advice(run: Run, improved: bool) -> list[str]:
    """Return the task's reference score and the likely causes of a poor result; [] for a good result.

    `improved`: whether the return rose; decides for tasks that define no success.
    """
    rate = run.status()["success_rate"]
    good = improved if rate is None else rate >= GOOD_RATE
    if good:
        return []
    return [text for text in (diagnosis.known(run), *diagnosis.causes(run)) if text]


def _more_steps(run: Run) -> int:
    """Return the number of steps that the button trains to.

    A stopped run's own; of a finished run the task's usual number or, if it has as many, twice its own.
    """
    if not _is_finished(run):
        return run.config.total_steps
    own, usual = run.config.total_steps, diagnosis.usual_steps(run) or 0
    return usual if usual > own else 2 * own


def _is_finished(run: Run) -> bool:
    return bool(run.status()["state"] == "finished")


def _has_scene(env: str) -> bool:
    """Return whether the env is a MuJoCo task of kit's kind, the only one that the viewer shows in 3-D."""
    try:
        found = envs.find(env)
    except Exception:  # it cannot be imported here: the button, once pressed, says why
        return True
    return isinstance(found, type) and issubclass(found, envs.MujocoTask)


class NextSteps:
    """Buttons for a run that has ended. `dashboard` shows the run that a button starts; default: one below them."""

    def __init__(self, dashboard: Dashboard | None = None) -> None:
        w = self._w = need("ipywidgets", "notebook")
        self._first_dashboard, self._is_above = dashboard or Dashboard(), dashboard is not None
        if not self._is_above:
            self.dashboard._build(w)
            cells.when_run_again(self.dashboard.close)
        self.run: Run | None = None
        self._started: Path | None = None  # the run that a button here has started
        self._viewer: Any = None
        whose = "the form's settings" if isinstance(self.dashboard, TrainPanel) else "this run's settings"
        fork = f"Start a new run from the best policy of this run, with {whose}"
        longer = "Resume: a stopped run to its end, a finished one to the task's usual steps or twice its own"
        self.buttons = {
            "Train longer": ("forward", longer, self._longer),
            "Branch from the best": ("code-fork", fork, self._branch),
            "Compare": ("line-chart", "Compare with the other runs of this task", self._compare),
            "View in 3-D": ("cube", "Play the policy live in its scene", self._view),
            "Export": ("download", "Write the policy as an ONNX file, for use without kit", self._export),
        }
        self.target = w.Text(placeholder="hf://you/model, or a folder", layout=w.Layout(width="200px"))
        push = self._button("Push", "cloud-upload", "Publish policy, scores, video and model card", self._push)
        row = [self._button(name, *rest) for name, rest in self.buttons.items()]
        self._longer_button, self._view_button = row[0], row[list(self.buttons).index("View in 3-D")]
        self.message, self.below = w.HTML(), w.VBox()
        self.message.add_class("kit-next-message")
        layout, wrap = w.Layout(flex_flow="row wrap", overflow="visible", display="none"), {"flex_flow": "row wrap"}
        self._box = w.HBox([*row, w.HBox([self.target, push], layout=w.Layout(**wrap))], layout=layout)
        heartbeat.cover(w, self._box)
        self.view = w.VBox([self._box, self.message, self.below])
        self.view.add_class("kit-next-steps")

    @property
    def dashboard(self) -> Dashboard:
        """The dashboard that shows the run that a button starts."""
        return self._first_dashboard.newest  # the cell of the panel above may have run again

    def choose(self, run: Run) -> None:
        """Show the buttons for `run` if it has ended with a policy, else hide them."""
        changed, ended = self.run is None or self.run.path != run.path, not run.is_working()
        is_started = run.path == self._started  # by a button, whose message stays until the run has ended
        if (is_started and ended) or (changed and not is_started):
            self._say("")
            self._started = None
        if changed:
            self._close_viewer()
            self.below.children = []
        self.run = run
        word = "Train longer" if _is_finished(run) else "Resume"
        self._longer_button.description = f"{word}, to {_more_steps(run):,} steps"
        self._view_button.layout.display = None if _has_scene(run.config.env) else "none"
        has_policy = not run.is_working() and bool(run.checkpoints() or run.best())
        self._box.layout.display = None if has_policy else "none"

    def _button(self, name: str, icon: str, tooltip: str, action: Callable[[Run], str]) -> Any:
        extra, *modules = NEEDS.get(name, ("",))
        if lacking := [module for module in modules if not find_spec(module)]:
            tooltip = f"{' and '.join(lacking)} not installed: run pip install 'kit[{extra}]', then this cell again"
        button = self._w.Button(description=name, icon=icon, tooltip=tooltip, layout=self._w.Layout(width="auto"))
        button.disabled = bool(lacking)
        button.on_click(partial(self._pressed, action=action))
        return button

    def _pressed(self, button: Any, action: Callable[[Run], str]) -> None:
        """Run `action` in a thread; show its message or its error."""
        run = self.run

        def work() -> None:
            try:
                self._say(action(run) if run is not None else "")
            except Exception as error:
                self._say(explain(error), bad=True)
            finally:
                button.disabled = False

        button.disabled = True
        self.dashboard.keep_open()
        self._say(f"{button.description}…")
        threading.Thread(target=work, daemon=True).start()

    def _say(self, message: str, bad: bool = False) -> None:
        self.message.value = style.wrap(style.note(message, bad)) if message else ""

    def _longer(self, run: Run) -> str:
        total_steps = _more_steps(run)
        longer = resume(run.path, background=True, total_steps=total_steps)
        self._started = longer.path
        where = self._watch(longer)
        self.choose(longer)  # its config has the new number of steps
        return f"{run.name} trains on, to {total_steps:,} steps: see {where}."

    def _branch(self, run: Run) -> str:
        panel = self.dashboard
        new = panel.launch(run.path) if isinstance(panel, TrainPanel) else branch(run)
        self._started = new.path
        where = self._watch(new)
        later = " When it ends, its report appears here." if self._is_above else ""
        return f"{new.name} starts from the best policy of {run.name}: see {where}.{later}"

    def _watch(self, run: Run) -> str:
        """Show `run`, which a button has started, in the dashboard; return where that is."""
        if not self._is_above:
            self._show(self.dashboard.view)
        self.dashboard.attach(run)
        return "the panel above" if self._is_above else "below"

    def _compare(self, run: Run) -> str:
        same = [each for each in local_runs(run.path.parent) if each.config.env == run.config.env]
        self._show(self._w.HTML(compare(same)._repr_html_()))
        return f"Runs of {run.config.env} in {run.path.parent}: {len(same)}"

    def _view(self, run: Run) -> str:
        from kit.ui.viewing import Viewer, frame

        if "google.colab" in sys.modules:  # a button cannot embed a page of the kernel there, a cell can
            return f"On Colab, run kit.ui.view({str(run.path)!r}) in a new cell."
        self._close_viewer()
        self._viewer = Viewer(run)
        self._show(self._w.HTML(frame(self._viewer.url)))
        port = self._viewer.port
        ssh = f"ssh -L {port}:127.0.0.1:{port} HOST"
        return f"{self._viewer}. If the frame stays empty, the kernel is on another machine; on your own, run {ssh}."

    def _close_viewer(self) -> None:
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None

    def _export(self, run: Run) -> str:
        return f"Exported: {export(run)}"

    def _push(self, run: Run) -> str:
        if not (to := self.target.value.strip()):
            return "Enter where to push: hf://you/model, or a folder."
        return f"Pushed: {push(run, to)}"

    def _show(self, widget: Any) -> None:
        self.below.children = [widget]
