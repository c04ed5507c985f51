"""Scripts and notebooks executed without a user (papermill, nbconvert): detect them, and wait for a run."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from kit.machine import host
from kit.measure.speed import duration
from kit.runs.run import Run
from kit.ui import style


class RunFailed(RuntimeError):
    """Raised when a run fails while a notebook waits for it. The text: the run's message and the end of its log."""


def nobody_there() -> bool:
    """Return whether no user can press buttons: outside notebooks, and under papermill or nbconvert.

    Papermill and nbconvert are detected by the kernel's setting that forbids input (stdin). The environment variable
    KIT_HEADLESS overrides the detection: 1 for no user, 0 for a user.
    """
    forced = os.environ.get("KIT_HEADLESS", "")
    if forced:
        return forced != "0"
    shell = shell_of_notebook()
    return shell is None or not getattr(shell.kernel, "_allow_stdin", True)


def shell_of_notebook() -> Any:
    """Return IPython's shell if this process is a notebook's kernel, else None."""
    return host.shell() if host.kernel() is not None else None


def follow(run: Run) -> None:
    """Wait until `run` has ended; show its progress, and print a line at each tenth of its steps.

    Raises `RunFailed` if the run fails. On KeyboardInterrupt (the notebook's stop button, or a time limit), the run is
    stopped with a checkpoint and can be resumed.
    """
    printed_tenth, shown = -1, None
    handle: Any = None

    def show(now: dict[str, Any]) -> None:
        nonlocal printed_tenth, shown, handle
        page = style.Page(f"{run.name}: {now['state']}", style.head(run.name, now))
        if shell_of_notebook() is not None and page != shown:  # outside a notebook the printed lines are enough
            from IPython.display import display

            shown = page
            if handle is None:
                handle = display(page, display_id=True)
            else:
                handle.update(page)
        tenth = 10 * now["step"] // max(1, now["total_steps"])
        if now["step"] and tenth > printed_tenth:
            printed_tenth = tenth
            print(line(now), flush=True)

    try:
        now = run.wait(on_progress=show)
    except KeyboardInterrupt:
        run.stop()
        with contextlib.suppress(TimeoutError):
            show(run.wait(timeout=30))
        raise
    if now["state"] == "failed":
        raise RunFailed(f"{run.name} failed: {now['message']}\n{run.log(20)}")
    if now["state"] == "interrupted":
        print(now["message"])


def line(now: dict[str, Any]) -> str:
    """Format a status as one line, such as " 40 %   40,000 steps   success 81 %   1,450 steps/s   42 s left"."""
    parts = [f"{style.percent(style.progress(now)):>5}", f"{now['step']:>11,} steps"]
    if now["success_rate"] is not None:
        parts.append(f"success {style.percent(now['success_rate']):>5}")
    elif now["mean_return"] is not None:
        parts.append(f"return {now['mean_return']:8.2f}")
    if now["steps_per_s"]:
        parts.append(f"{now['steps_per_s']:7,.0f} steps/s")
    if now["eta_s"]:
        parts.append(f"{duration(now['eta_s'])} left")
    return "   ".join(parts)
