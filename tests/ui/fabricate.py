"""Fake run directories: config, metrics and status of a run in any state, without training."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kit.config import RunConfig
from kit.format.files import read_json, write_atomic
from kit.runs import directory
from kit.runs.run import Run
from kit.runs.status import EMPTY
from kit.ui.dashboard import Dashboard

if TYPE_CHECKING:
    from kit.ui.viewing import Viewer


def make_run(
    folder: Path, name: str = "arm", rows: int = 6, config: dict[str, Any] | None = None, **status: Any
) -> Run:
    """Create a run of 1,000 steps with metrics of `rows` updates, and of an evaluation after every second one."""
    fields = {"total_steps": 1000, "n_envs": 2, "device": "cpu", "threads": 1, "eval_every": 200, **(config or {})}
    path = directory.create(RunConfig(run_name=name, runs_dir=str(folder), **fields))
    lines = []
    for i in range(1, rows + 1):
        step = 100 * i
        lines.append({"step": step, "rollout/success_rate": i / 10, "rollout/ep_rew_mean": float(i), "time/fps": 50.0})
        if i % 2 == 0:
            lines.append({"step": step, "eval/success_rate": i / 6, "eval/mean_return": i + 0.5})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = {"state": "finished", "phase": "finished", "step": 100 * rows, "total_steps": 1000, "success_rate": 0.97}
    set_status(path, **{**known, "mean_return": 4.25, **status})
    return Run(path)


def set_status(path: Path, **values: Any) -> None:
    now = {**EMPTY, **read_json(path / "status.json", {}), **values, "updated": time.time()}
    write_atomic(path / "status.json", json.dumps(now))


@contextlib.contextmanager
def at_work(run: Run, state: str = "running") -> Iterator[None]:
    """Context manager: lock the run and set its status, as if a process trained it."""
    with directory.lock(run.path):
        set_status(run.path, state=state, phase="training", steps_per_s=120.0, eta_s=42.0)
        yield
        set_status(run.path, state="finished", phase="finished", steps_per_s=None, eta_s=None)


def text_of(board: Dashboard, css_class: str) -> str:
    """Return the HTML of the dashboard widget with `css_class`: "kit-head", "kit-message" or "kit-curves"."""
    widgets = [board.view]
    for widget in widgets:
        if css_class in widget.get_state("_dom_classes")["_dom_classes"]:
            return str(widget.value)
        widgets.extend(getattr(widget, "children", ()))
    raise AssertionError(f"no part has the class {css_class}")


def watch_to_the_end(board: Dashboard) -> None:
    """Wait until the thread that watches the board's run has ended, at most 120 s."""
    for thread in threading.enumerate():
        if board.run is not None and thread.name == f"watch-{board.run.name}":
            wait_for(lambda thread=thread: thread.ident)  # it may be listed a moment before it has started
            thread.join(120)


def connect(viewer: Viewer, patch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let `viewer` play as if a browser were connected; return its camera. `test_viewing` opens a real one."""
    camera = SimpleNamespace(position=np.zeros(3), look_at=np.ones(3))
    patch.setattr(viewer._server, "get_clients", lambda: {0: SimpleNamespace(camera=camera)})
    return camera


def wait_for(condition: Any, timeout_s: float = 120) -> None:
    """Wait until `condition()` is true, for example until a background thread has updated a widget."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.02)
