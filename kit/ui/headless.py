"""Is somebody there? If not (papermill, nbconvert, a script), panels start their work at once and wait for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.measure.speed import duration
from kit.ui import style

if TYPE_CHECKING:
    from kit.runs.run import Run


class RunFailed(RuntimeError):
    """A run that a notebook waited for ended with an error; its message and the end of its log are in the text."""


def nobody_there() -> bool:
    """Whether no person can press a button: no notebook, or one executed by papermill or nbconvert.

    A front end with a person allows a cell to ask for input; the executors do not. KIT_HEADLESS=1 or 0 overrules this.
    """
    forced = os.environ.get("KIT_HEADLESS", "")
    if forced:
        return forced != "0"
    shell = shell_of_notebook()
    return shell is None or not getattr(shell.kernel, "_allow_stdin", True)


def shell_of_notebook() -> Any:
    """IPython's shell if this is a notebook's kernel, else None."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return shell if hasattr(shell, "kernel") else None


def follow(run: Run) -> dict[str, Any]:
    """Wait for `run`, showing a bar and a line for each tenth of the way; the last status.

    Raises `RunFailed` if it failed. Interrupting the wait (the notebook's stop button, a time limit) stops the run
    cleanly first, so that it can be resumed.
    """
    bar, told = Bar(), -1

    def show(now: dict[str, Any]) -> None:
        nonlocal told
        bar.show(run.name, now)
        tenth = 10 * now["step"] // max(1, now["total_steps"])
        if now["step"] and tenth > told:
            told = tenth
            print(line(now), flush=True)

    try:
        now = run.wait(on_progress=show)
    except KeyboardInterrupt:
        run.stop()
        now = run.wait(timeout=30)
        show(now)
        raise
    if now["state"] == "failed":
        raise RunFailed(f"{run.name} failed: {now['message']}\n{run.log(20)}")
    if now["state"] == "interrupted":
        print(now["message"])
    return now


def line(now: dict[str, Any]) -> str:
    """A status in one line of text, such as " 40 %   40,000 steps   success 81 %   1,450 steps/s   42 s left"."""
    share = min(100, 100 * now["step"] // max(1, now["total_steps"]))
    parts = [f"{share:3d} %", f"{now['step']:>11,} steps"]
    if now["success_rate"] is not None:
        parts.append(f"success {100 * now['success_rate']:3.0f} %")
    elif now["mean_return"] is not None:
        parts.append(f"return {now['mean_return']:8.2f}")
    if now["steps_per_s"]:
        parts.append(f"{now['steps_per_s']:7,.0f} steps/s")
    if now["eta_s"]:
        parts.append(f"{duration(now['eta_s'])} left")
    return "   ".join(parts)


class Bar:
    """One progress bar in the output of the running cell, redrawn in place. Outside a notebook it shows nothing."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last: Page | None = None

    def show(self, name: str, now: dict[str, Any]) -> None:
        if shell_of_notebook() is None:
            return
        from IPython.display import display

        page = Page(style.page(style.head(name, now)), f"{name}: {now['state']}")
        if page == self._last:
            return
        self._last = page
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


@dataclass(frozen=True)
class Page:
    """An output for notebooks, and the text that stands for it in logs."""

    html: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html
