"""Jobs side by side: what a job is to whoever does many of them, and doing them on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from kit.errors import UserError
from kit.format.files import read_json, write_atomic
from kit.machine import limits
from kit.machine.progress import progress_bar
from kit.runs.run import Run
from kit.stores.base import StoreError, Unusable

if TYPE_CHECKING:
    import pandas as pd

POLL_S = 0.5
STOPPING_S = 120.0
HELD_S = 30.0
"""Between two looks at whether another machine still has a job."""
AGAIN_S, PATIENCE_S = 5.0, 300.0
"""Between two tries at a store that does not answer; after which its jobs count as failed."""
KEYS = ("name", "state", "step", "total_steps", "success_rate", "mean_return", "message")


@dataclass(frozen=True)
class Engine:
    """Where jobs are done: on this machine, `at_once` of them side by side, or, with `on` ("ray" or "ray://HOST:PORT"),
    on a cluster, where each gets so many cores and cards or a part of one."""

    at_once: int | None = None
    on: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("cpus", 0.1), ("gpus", 0.0)):
            value = getattr(self, name)
            if type(value) not in (int, float) or value < least:
                raise UserError(f"{name}={value!r} must be a number of at least {least:g}.")

    @classmethod
    def of(cls, content: dict[str, Any], **given: Any) -> Engine:
        """What a file says, which is taken out of it, and `given`, where that is not None, instead."""
        said = {field.name: content.pop(field.name) for field in fields(cls) if field.name in content}
        return cls(**{**said, **{name: value for name, value in given.items() if value is not None}})


class Work(Protocol):
    """What a batch does: a run, or whatever else is a process that can be begun again. `error` says why it cannot be,
    `note` what it waits for, `held_for` for how many seconds another machine still has it."""

    error: str
    note: str

    @property
    def run(self) -> Run | None: ...
    def start(self, threads: int, gpu_share: int) -> None: ...
    def is_working(self) -> bool: ...
    def again(self) -> bool: ...
    def held_for(self) -> float: ...
    def stop(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def row(self) -> dict[str, Any]: ...


class Kept(Work, Protocol):
    """Such work as a file asks for. `look` says how it stands, here or in its store; `fetch` brings it from there."""

    @property
    def path(self) -> Path: ...
    def look(self) -> dict[str, Any]: ...
    def fetch(self) -> None: ...


@dataclass
class Patience:
    """Begins a job as soon as it can be: when no other machine has it any more, and its store answers. Until then the
    job's note says what it waits for, and since when."""

    _next: float = 0.0
    _trouble: float | None = None
    """Since when the store does not answer."""
    _what: str = ""
    _since: float = 0.0
    """Unix seconds."""

    def wait(self, job: Work, what: str, details: str) -> None:
        if what != self._what:
            self._what, self._since = what, time.time()
        job.note = since(f"{what} ({details})", self._since)

    def begin(self, job: Work, threads: int, gpu_share: int) -> bool:
        """Whether it was begun; ask again soon. Raises what `job.start` does, and the store's error in the end."""
        now = time.monotonic()
        if now < self._next:
            return False
        try:
            held_s = job.held_for()
            pause_s = min(held_s, HELD_S)
            if pause_s <= 0:
                job.start(threads, gpu_share)
                job.note = ""
            else:
                self.wait(job, "another machine has it", f"until {utc(time.time() + held_s)} unless it renews")
            self._trouble = None
        except (StoreError, Unusable) as error:
            self._trouble = now if self._trouble is None else self._trouble
            if now - self._trouble > PATIENCE_S:
                raise
            self.wait(job, "its store does not answer", str(error).rstrip("."))
            pause_s = AGAIN_S
        self._next = now + pause_s
        return pause_s <= 0


class Results(list[dict[str, Any]]):
    """One row of `KEYS` for each job, in their order."""

    def __init__(self, jobs: Sequence[Work], rows: Sequence[dict[str, Any]] | None = None) -> None:
        super().__init__([job.row() for job in jobs] if rows is None else rows)
        self.runs = [job.run for job in jobs if job.run is not None]

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self)

    def of(self, state: str) -> int:
        """How many are in it."""
        return sum(row["state"] == state for row in self)


def since(reason: str, moment: float) -> str:
    return f"{reason}, since {utc(moment)}"


def utc(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(round(moment)))


class Notes:
    """What jobs wait for, in a file for other processes; it holds while the process is there that wrote it."""

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, dict[str, str]()

    @classmethod
    def beside(cls, jobs: Sequence[Kept], name: str) -> Notes:
        """Those of the batch `name`."""
        return cls(jobs[0].path.parent / f".{name}.waiting.json")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        waiting = {row["name"]: row["message"] for row in rows if row["state"] == "waiting" and row["message"]}
        if waiting != self._written:
            with contextlib.suppress(OSError):  # then nobody else sees it
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self._path, json.dumps({"process": _process(os.getpid()), "waiting": waiting}), False)
                self._written = waiting

    def read(self) -> dict[str, str]:
        """Name -> note."""
        found = read_json(self._path, {})
        process = found.get("process") or {"pid": 0}
        return found["waiting"] if process == _process(process["pid"]) else {}

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _process(pid: int) -> dict[str, Any] | None:
    """What tells this machine's process `pid` from others, before and after it; None if there is none."""
    try:
        return {"pid": pid, "host": socket.gethostname(), "created": psutil.Process(pid).create_time()}
    except psutil.Error:
        return None


def run_all(
    jobs: Sequence[Work],
    at_once: int,
    notes: Notes,
    on_progress: Callable[[Results], None] | None = None,
    unit: str = "step",
) -> Results:
    """Do all `jobs`, so many side by side. `on_progress` is told twice a second how all stand, by default a bar."""
    if on_progress is None:
        with _bar(unit) as tell:
            return run_all(jobs, at_once, notes, tell)
    threads = max(1, limits.usable_cores() // at_once)
    waiting, working = deque(jobs), list[Work]()
    patience = {id(job): Patience() for job in jobs}
    try:
        while waiting or working:
            for _ in range(len(waiting)):
                if len(working) == at_once:
                    break
                job = waiting.popleft()
                try:
                    if not patience[id(job)].begin(job, threads, at_once):
                        waiting.append(job)
                        continue
                except Exception as error:  # whatever it is, the other jobs go on
                    job.error = str(error) or type(error).__name__
                working += [job] if job.is_working() else []
            if len(working) == at_once:
                for job in waiting:
                    if not job.note:  # nothing else that keeps it
                        patience[id(job)].wait(job, "no slot is free", f"{at_once} at work")
            results = Results(jobs)
            notes.write(results)
            on_progress(results)
            if waiting or working:
                time.sleep(POLL_S)
            ended = [job for job in working if not job.is_working()]
            working = [job for job in working if job not in ended]
            waiting.extend(job for job in ended if job.again())
    except KeyboardInterrupt:
        for job in working:
            job.stop()
        for job in working:
            job.wait(STOPPING_S)
        raise
    finally:
        notes.remove()
    results = Results(jobs)
    on_progress(results)
    return results


@contextlib.contextmanager
def _bar(unit: str) -> Iterator[Callable[[Results], None]]:
    """A progress bar over all steps, or cells, of all jobs, in a notebook or a terminal."""
    with progress_bar(unit=unit, unit_scale=True) as shown:

        def tell(now: Results) -> None:
            done, failed, waiting = (now.of(state) for state in ("finished", "failed", "waiting"))
            said = f"{done} of {len(now)} done, {len(now) - done - failed - waiting} at work"
            said += f", {failed} failed" if failed else ""
            notes = Counter(row["message"] for row in now if row["state"] == "waiting" and row["message"])
            said += "".join(f"; {count} waiting: {note}" for note, count in notes.most_common(2))
            shown.total = sum(row["total_steps"] for row in now)
            shown.set_description_str(said, refresh=False)
            shown.update(sum(min(row["step"], row["total_steps"]) for row in now) - shown.n)

        yield tell
