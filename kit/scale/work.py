"""Jobs of a batch: the interface of a job, and the loop that runs several jobs side by side."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kit.errors import UserError, check_whole, explain
from kit.machine import limits
from kit.machine.progress import add_earlier, progress_bar, set_total
from kit.runs.run import Run
from kit.runs.status import WORKING
from kit.stores.base import StoreError, Unusable

if TYPE_CHECKING:
    import pandas as pd

POLL_S = 0.5
STOPPING_S = 120.0
"""Maximum seconds to wait for each job to end after Ctrl-C."""
HELD_S = 30.0
"""Maximum seconds between checks whether another machine still holds a job's lease."""
AGAIN_S, PATIENCE_S = 5.0, 300.0
"""If a store does not answer: seconds between retries, and seconds after which the job fails."""
HELD, UNANSWERED = "another machine holds its lease", "its store does not answer"
"""Reasons why a job waits."""
KEYS = ("name", "state", "step", "total_steps", "success_rate", "mean_return", "message")


@dataclass(frozen=True)
class Engine:
    """Where jobs run: on this machine, `at_once` side by side, or on the Ray cluster `on` ("ray", "ray://HOST:PORT").

    `cpus` and `gpus` are the resources per job on a cluster; `gpus` may be a fraction.
    """

    at_once: int | None = None
    on: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.at_once is not None:
            check_whole("at_once", self.at_once, 1)
        for name, least in (("cpus", 0.1), ("gpus", 0.0)):
            value = getattr(self, name)
            if type(value) not in (int, float) or value < least:
                raise UserError(f"{name}={value!r} must be a number of at least {least:g}.")

    @classmethod
    def of(cls, content: dict[str, Any], **resources: Any) -> Engine:
        """Make an engine from the entries of `content` that are named like its fields; remove them from `content`.

        `resources` other than None override them.
        """
        in_file = {field.name: content.pop(field.name) for field in fields(cls) if field.name in content}
        return cls(**{**in_file, **{name: value for name, value in resources.items() if value is not None}})


class Work(Protocol):
    """Interface of a job: a run, or another process that can be started again.

    `should_restart`: whether the process was killed and must be started again. `held_for`: seconds until another
    machine's lease of this job ends, 0 without one. `row`: the job's state, a dict with `KEYS`.
    """

    error: str = ""
    """Why the job could not start."""
    note: str = ""
    """Why the job waits."""

    @property
    def run(self) -> Run | None: ...
    def start(self, threads: int) -> None: ...
    def is_working(self) -> bool: ...
    def stop(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def row(self) -> dict[str, Any]: ...

    def should_restart(self) -> bool:
        return False

    def held_for(self) -> float:
        return 0.0


class StoredWork(Work, Protocol):
    """Job with a folder here or in its store. `look` returns its row from either; `fetch` downloads its results."""

    @property
    def path(self) -> Path: ...
    @property
    def run_path(self) -> Path | None:
        """The directory of the job's run, None if it does not exist on this machine."""

    def look(self) -> dict[str, Any]: ...
    def fetch(self) -> None: ...


@dataclass
class Starter:
    """Starts a job once its store answers and no other machine holds its lease. `job.note` says why the job waits."""

    _next: float = 0.0
    """Monotonic time of the next attempt."""
    _unanswered: float | None = None
    """Monotonic time of the first attempt that the store did not answer; None if it answers."""
    _reason: str = ""
    _since: float = 0.0
    """Time in unix seconds at which `_reason` began."""

    def wait(self, job: Work, reason: str, details: str) -> None:
        """Set the job's note: why and since when the job waits."""
        if reason != self._reason:
            self._reason, self._since = reason, time.time()
        job.note = since(f"{reason} ({details})", self._since)

    def begin(self, job: Work, threads: int) -> bool:
        """Try to start the job; return whether it was started. If not, call `begin` again soon.

        Raises the errors of `job.start`, and the store's error if the store has not answered for `PATIENCE_S`.
        """
        now = time.monotonic()
        if now < self._next:
            return False
        try:
            held_s = job.held_for()
            pause_s = min(held_s, HELD_S)
            if pause_s <= 0:
                job.start(threads)
                job.note = ""
            else:
                self.wait(job, HELD, until(held_s))
            self._unanswered = None
        except (StoreError, Unusable) as error:
            self._unanswered = now if self._unanswered is None else self._unanswered
            if now - self._unanswered > PATIENCE_S:
                raise
            self.wait(job, UNANSWERED, str(error).rstrip("."))
            pause_s = AGAIN_S
        self._next = now + pause_s
        return pause_s <= 0


class Results(list[dict[str, Any]]):
    """List of rows (dicts with `KEYS`), one per job, in order; `runs` holds the runs that have started."""

    def __init__(self, jobs: Sequence[Work], rows: Sequence[dict[str, Any]] | None = None) -> None:
        super().__init__([job.row() for job in jobs] if rows is None else rows)
        self.runs = [job.run for job in jobs if job.run is not None]

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self)

    def of(self, state: str) -> int:
        """Return the number of jobs in `state`."""
        return sum(row["state"] == state for row in self)


def since(reason: str, moment: float) -> str:
    """Append ", since TIME" in UTC to `reason`; `moment` in unix seconds."""
    return f"{reason}, since {utc(moment)}"


def until(held_s: float) -> str:
    """Describe when another machine's lease ends, in `held_s` seconds."""
    return f"until {utc(time.time() + held_s)} unless renewed"


def utc(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(round(min(max(0.0, moment), 4e9))))  # it may be infinite


def run_all(
    jobs: Sequence[Work],
    at_once: int,
    on_progress: Callable[[Results], None] | None = None,
    unit: str = "step",
    next_job: Callable[[], Work | None] = lambda: None,
) -> Results:
    """Run all `jobs`, `at_once` side by side; call `on_progress` twice a second (default: a progress bar).

    `unit`: what the progress bar counts. `next_job`: called while a slot is free and no job waits for a slot; returns
    an additional job, or None.
    """
    if on_progress is None:
        with bar(unit) as show:
            return run_all(jobs, at_once, show, unit, next_job)
    threads = max(1, limits.usable_cores() // at_once)
    jobs, waiting, working = list(jobs), deque(jobs), list[Work]()
    starters = defaultdict[int, Starter](Starter)
    try:
        while True:
            while len(waiting) + len(working) < at_once and (job := next_job()) is not None:
                jobs.append(job)
                waiting.append(job)
            if not waiting and not working:
                break
            for _ in range(len(waiting)):
                if len(working) == at_once:
                    break
                job = waiting.popleft()
                try:
                    if not starters[id(job)].begin(job, threads):
                        waiting.append(job)
                        continue
                except Exception as error:  # a job that fails does not stop the others
                    job.error = explain(error)
                if job.is_working():
                    job.error = ""  # another process has started it
                    working.append(job)
                elif not job.error and job.should_restart():  # the process has already ended
                    waiting.append(job)
            if len(working) == at_once:
                for job in waiting:
                    if not job.note:
                        starters[id(job)].wait(job, "no slot is free", f"{at_once} at work")
            on_progress(Results(jobs))
            if waiting or working:
                time.sleep(POLL_S)
            ended = [job for job in working if not job.is_working()]
            working = [job for job in working if job not in ended]
            waiting.extend(job for job in ended if job.should_restart())
    except KeyboardInterrupt:
        for job in working:
            job.stop()
        for job in working:
            job.wait(STOPPING_S)
        raise
    results = Results(jobs)
    on_progress(results)
    return results


@contextlib.contextmanager
def bar(unit: str) -> Iterator[Callable[[Results], None]]:
    """Yield a function that updates a progress bar over the steps (or cells) of all jobs together."""
    known = set[str]()
    with progress_bar(unit=unit, unit_scale=True) as shown:

        def show(results: Results) -> None:
            for row in results:
                if row["name"] not in known and row["state"] != "waiting":
                    known.add(row["name"])
                    add_earlier(shown, min(row["step"], row["total_steps"]))
            states = Counter(row["state"] for row in results)
            text = f"{states['finished']} of {len(results)} done, {sum(states[state] for state in WORKING)} at work"
            for state, word in (("interrupted", "stopped"), ("failed", "failed")):
                text += f", {states[state]} {word}" if states[state] else ""
            notes = Counter(row["message"] for row in results if row["state"] == "waiting" and row["message"])
            text += "".join(f"; {count} waiting: {note}" for note, count in notes.most_common(2))
            if (total := sum(row["total_steps"] for row in results)) != shown.total:
                set_total(shown, total)
            shown.set_description_str(text, refresh=False)
            shown.update(sum(min(row["step"], row["total_steps"]) for row in results) - shown.n)

        yield show
