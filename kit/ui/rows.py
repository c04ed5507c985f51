"""Rows of the lists of runs: reads a run's values incrementally; formats them as HTML with a tiny learning curve."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kit.config import RunConfig
from kit.errors import UserError
from kit.format.files import GrowingRows
from kit.measure.speed import duration
from kit.runs.run import Run
from kit.runs.status import EMPTY, WORKING
from kit.scale.background import JobRow
from kit.ui import style
from kit.ui.learning import series

POINTS, WIDTH, HEIGHT = 24, 64, 18
"""A sparkline has fewer than twice `POINTS` points, and is `WIDTH` × `HEIGHT` pixels large."""

MEASURES = ("rollout/success_rate", "eval/success_rate", "rollout/ep_rew_mean", "eval/mean_return")
"""Columns of metrics.jsonl; a sparkline shows the first that a run has."""
COLUMNS = ("name", "task", "curve", "progress", "score", "state", "speed or age", "disk and copy")
"""Heads of the columns of a row."""


@dataclass(frozen=True)
class Line:
    """The values shown in the row of a run, or of a job without a run."""

    name: str
    now: dict[str, Any]
    """The run's status; of a run in a store, only its summary."""
    config: RunConfig | None = None
    run: Run | None = None
    """None for a job without a run, and for a run in a store."""
    choice: str = ""
    """Argument of `kit.resume`."""
    size_bytes: int | None = None
    note: str = ""
    curve: str = ""
    """Sparkline as SVG."""

    @property
    def is_working(self) -> bool:
        return self.run is not None and self.now["state"] in WORKING

    @property
    def text(self) -> str:
        """Text that the filter searches."""
        task = f"{self.config.env} {self.config.algo}" if self.config else ""
        return f"{self.name} {task} {style.state(self.now)[1]} {self.note}".lower()


class RowReader:
    """Returns the current `Line` of a job or run. Of metrics.jsonl, it reads the rows added since the last call."""

    def __init__(self) -> None:
        self._runs: dict[Path, _RunReader] = {}

    def line(self, job: JobRow) -> Line:
        """Return the current line of a job or run."""
        if job.path is None:
            now = {**EMPTY, "state": "waiting", "phase": "", **job.values}
            return Line(job.name, now, job.config)
        try:
            line = self._reader(job.path).line()
        except (UserError, FileNotFoundError) as error:  # deleted, or of a newer version of kit
            self._runs.pop(job.path, None)
            return Line(job.name, {**EMPTY, "state": "failed", "message": str(error)})
        if line.is_working or line.now["state"] == "finished":
            return line
        return replace(line, now=line.now | job.values)

    def _reader(self, path: Path) -> _RunReader:
        mtime_ns = (path / "config.yaml").stat().st_mtime_ns  # a resume writes the config again
        known = self._runs.get(path)
        if known is None or known.mtime_ns != mtime_ns:
            known = self._runs[path] = _RunReader(path, mtime_ns)
        return known


class _RunReader:
    def __init__(self, path: Path, mtime_ns: int) -> None:
        self.mtime_ns = mtime_ns
        self._run, self._metrics = Run(path), GrowingRows(path / "metrics.jsonl", ("step", *MEASURES))
        self._curve, self._size = "", 0
        self._measured: tuple[Any, ...] = ()

    def line(self) -> Line:
        now = self._run.status()
        if self._metrics.read():
            self._curve = sparkline(self._metrics.rows)
        measured = (now["state"], (now["checkpoint"] or {}).get("step"))
        if measured != self._measured:  # walking through a run's files takes longer than all the rest
            self._size, self._measured = self._run.size_bytes, measured
        run = self._run
        return Line(run.name, now, run.config, run, str(run.path), self._size, run.note, self._curve)


def sparkline(rows: Sequence[dict[str, Any]]) -> str:
    """Return a learning curve as a few hundred bytes of SVG: the success rate, else the mean return."""
    curves = ((name, series(rows, name)) for name in MEASURES)
    name, points = next(((name, points) for name, points in curves if len(points) > 1), ("", None))
    if points is None:
        return ""
    shown = points[:: -max(1, len(points) // POINTS)][::-1]
    steps, values = shown.T
    low, high = (0.0, 1.0) if name.endswith("success_rate") else (values.min(), values.max())
    across, up = (WIDTH - 2) / ((steps[-1] - steps[0]) or 1), (HEIGHT - 2) / ((high - low) or 1.0)
    path = " ".join(f"{1 + across * (x - steps[0]):.0f},{HEIGHT - 1 - up * (y - low):.1f}" for x, y in shown)
    return (
        f"<svg width='{WIDTH}' height='{HEIGHT}' fill='none' stroke='{style.BLUE}' stroke-width='1.5'>"
        f"<title>{name}, up to step {steps[-1]:,.0f}</title><polyline points='{path}'/></svg>"
    )


def head() -> str:
    """Return the heads of the columns as HTML, for the place above the rows."""
    return f"<div class='kit-run kit-run-head'>{''.join(f'<span>{name}</span>' for name in COLUMNS)}</div>"


def row(line: Line) -> str:
    """Format a line as HTML: name, task, curve, progress, score, state, speed or age, disk use and copy; message, note.

    Ages are in whole minutes, so that the HTML of a run that has ended changes at most once a minute.
    """
    now, config = line.now, line.config
    colour, word = style.state(now)
    task = f"{config.env}, {config.algo}" if config else now.get("task") or ""
    done = f"{style.percent(style.progress(now))} of {now['total_steps'] or 0:,}{style.bar(now)}"
    cells = [
        f"<span class='kit-name' title='{html.escape(line.choice or line.name)}'>{html.escape(line.name)}</span>",
        f"<span title='{html.escape(task)}'>{html.escape(task)}</span>", f"<span>{line.curve}</span>",
        f"<span title='progress'>{done}</span>", f"<span title='score'>{_score(now)}</span>",
        f"<span title='state' style='color:{colour}'>{html.escape(word)}</span>",
        f"<span title='speed or age' class='kit-dim'>{_speed(now) if line.is_working else _age(now['updated'])}</span>",
        f"<span title='disk and copy' class='kit-dim'>{_kept(line)}</span>",
    ]  # fmt: skip
    if now.get("message") and now["state"] in ("failed", "interrupted", "waiting"):
        look = "kit-bad" if now["state"] == "failed" else "kit-dim"
        cells.append(f"<span class='kit-row-text {look}'>{html.escape(now['message'])}</span>")
    if line.note:
        cells.append(f"<span class='kit-row-text'>{html.escape(line.note)}</span>")
    return f"<div class='kit-run'>{''.join(cells)}</div>"


def title(line: Line) -> str:
    """Format a line as text: name, state, step, success rate."""
    rate = line.now["success_rate"]
    success = f", {style.percent(rate)} success" if rate is not None else ""
    return f"{line.name} ({style.state(line.now)[1]}, {line.now['step']:,} steps{success})"


def _score(now: dict[str, Any]) -> str:
    if now["success_rate"] is not None:
        return f"{style.percent(now['success_rate'])} success"
    return "" if now.get("mean_return") is None else f"return {now['mean_return']:.4g}"


def _speed(now: dict[str, Any]) -> str:
    speed = f"{now['steps_per_s']:,.0f} steps/s" if now["steps_per_s"] else ""
    left = f"{duration(now['eta_s'])} left" if now["eta_s"] else ""
    return ", ".join(filter(None, (speed, left)))


def _age(moment: float | None) -> str:
    """Format unix seconds as an age in whole minutes, hours or days."""
    if not moment:
        return ""
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"


def _kept(line: Line) -> str:
    """Describe disk use and the copy in a store."""
    if line.config is None or line.size_bytes is None:
        return ""
    stored = (line.now["store"] or {}).get("step")
    copy = "no store" if not line.config.store else "not stored yet" if stored is None else f"stored at {stored:,}"
    return f"{line.size_bytes / 1e6:,.1f} MB, {copy}"
