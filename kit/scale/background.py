"""A batch or a search in a thread of this process, and its jobs as rows for `kit.ui.runs`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kit.config import RunConfig
from kit.errors import UserError, explain
from kit.machine import host
from kit.scale.work import StoredWork

Progress = TypeVar("Progress")
"""Results so far of a batch or search; once its thread has ended, its final results."""
JOIN_S = 0.2
"""Seconds between updates of the progress bar."""
NOT_STARTED = "starts when the same batch or search is started again"
"""Message of a job that still waits although the thread of its batch or search has ended."""


class JobRow(NamedTuple):
    """A job: its name, its run directory if it exists, else its config if known, and `values`.

    `values`: status keys that the run directory does not hold, such as the error of a failed start.
    """

    name: str
    path: Path | None
    config: RunConfig | None = None
    values: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Jobs(Protocol):
    """Source of the rows of a page: the jobs of a batch, or the trials of a search."""

    title: str

    def rows(self) -> list[JobRow]: ...

    def look(self) -> None:
        """Ask the store for the jobs that other machines run."""


class Background(Generic[Progress]):
    """A batch or search in a thread, started by `kit.launch_batch` or `kit.launch_sweep`; `wait()` returns its outcome.

    Runs are processes of their own. If this process ends, they go on; jobs that wait for a slot start when the batch is
    started again.
    """

    _started: dict[str, Background[Any]] = {}  # noqa: RUF012 - of this process
    """Title -> the latest `Background` with this title that this process started."""

    def __init__(
        self,
        title: str,
        rows: Callable[[Progress | None], list[JobRow]],
        work: Callable[[Callable[[Progress], None]], Progress],
        bar: Callable[[], AbstractContextManager[Callable[[Progress], None]]],
        key: object = None,
    ) -> None:
        """`work(on_progress)` does everything; `rows(latest)` lists the jobs; `bar()` yields a progress bar.

        `key`: compared to tell whether two objects have the same jobs.
        """
        self.title, self._rows, self._work, self._bar, self._key = title, rows, work, bar, key
        self.latest: Progress | None = None
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"jobs-{title}", daemon=True)

    def start(self) -> Background[Progress]:
        """Start the thread and return self; if an object of this title is still at work, return that one instead.

        The latter happens if a cell runs twice. Raises `UserError` if that one has other jobs.
        """
        known = self._started.get(self.title)
        if known is not None and known.is_working:
            if known._key != self._key:
                raise UserError(f"{self.title} is at work with other jobs; give another name, or wait until it ends.")
            return known
        self._started[self.title] = self
        self._thread.start()
        return self

    def __repr__(self) -> str:
        return f"{self.title}: {'at work' if self.is_working else 'ended'}"

    @property
    def is_working(self) -> bool:
        return self._thread.is_alive()

    @property
    def error(self) -> str:
        """Why the thread ended, "" if it works, has finished, or was stopped."""
        error = self._error
        return "" if error is None or isinstance(error, KeyboardInterrupt) else explain(error)

    def rows(self) -> list[JobRow]:
        """Return the jobs. Once the thread has ended, the message of a job that still waits is `NOT_STARTED`."""
        rows = self._rows(self.latest)
        return rows if self.is_working else [_left_over(row) for row in rows]

    def look(self) -> None:
        """Do nothing: the thread knows its jobs."""

    def stop(self) -> None:
        """Make every run save a checkpoint and stop; start no further jobs. Returns at once."""
        self._stopping.set()

    def __await__(self) -> Generator[Any, None, Progress]:
        """Wait in a notebook cell (`await batch`), like `wait`, but buttons work meanwhile.

        If the cell is interrupted, every run saves a checkpoint and stops, and `UserError` is raised.
        """
        return self._wait().__await__()

    async def _wait(self) -> Progress:
        with suppress(KeyboardInterrupt, asyncio.CancelledError):  # `_outcome` raises the `UserError`
            async with host.clicks() as handle_clicks:
                with self._progress_bar() as update:
                    while self.is_working:
                        await handle_clicks()
                        await asyncio.sleep(JOIN_S)
                        update()
                    update()
        return self._outcome()

    def wait(self) -> Progress:
        """Wait for the end and return the outcome; show a progress bar.

        On Ctrl-C, every run saves a checkpoint and stops.

        Raises what the thread raised, and `UserError` if `stop` has ended it.
        """
        with self._progress_bar() as update:
            while self.is_working:
                self._thread.join(JOIN_S)
                update()
            update()
        return self._outcome()

    @contextmanager
    def _progress_bar(self) -> Iterator[Callable[[], None]]:
        """Yield a function that updates a progress bar. If the wait is interrupted, stop all runs."""
        try:
            with self._bar() as show:
                yield lambda: show(self.latest) if self.latest is not None else None
        except (KeyboardInterrupt, asyncio.CancelledError):
            self.stop()
            self._thread.join()
            raise

    def _outcome(self) -> Progress:
        if isinstance(self._error, KeyboardInterrupt):
            raise UserError(f"{self.title} was stopped, its runs with a checkpoint; start it again to continue them.")
        if self._error is not None:
            raise self._error
        assert self.latest is not None
        return self.latest

    def _run(self) -> None:
        try:
            self.latest = self._work(self._progress)
        except BaseException as error:
            self._error = error

    def _progress(self, latest: Progress) -> None:
        self.latest = latest
        if self._stopping.is_set():
            raise KeyboardInterrupt  # as Ctrl-C does in a batch in the foreground


def _left_over(row: JobRow) -> JobRow:
    """Return the row with the message `NOT_STARTED` if its job still waits; other rows as they are."""
    is_waiting = row.path is None and row.values.get("state") == "waiting"
    return row._replace(values={**row.values, "message": NOT_STARTED}) if is_waiting else row


def job_rows(jobs: Sequence[StoredWork], rows: Sequence[dict[str, Any]]) -> list[JobRow]:
    """Return a row for each job; `rows`: the jobs' rows in a batch's results."""
    return [_job_row(job, row) for job, row in zip(jobs, rows, strict=True)]


def _job_row(job: StoredWork, row: dict[str, Any]) -> JobRow:
    path = job.run_path
    if path is None:
        return JobRow(row["name"], None, getattr(job, "config", None), row)
    error = job.error or (row["message"] if row["state"] == "failed" else "")
    return JobRow(row["name"], path, None, {"state": "failed", "message": error} if error else {})
