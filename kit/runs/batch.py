"""Several runs on one machine: side by side as cores and memory allow, each in a process of its own.

    env: Reach                      # fields of RunConfig that hold for every job
    total_steps: 100000
    seeds: 5                        # each job five times, with seeds 0 to 4; or a list of seeds
    at_once: 2                      # at most so many at a time; by default what fits
    jobs:
      - {algo: PPO}
      - {algo: A2C, overrides: {learning_rate: 0.001}}
      - {start_from: runs/reach@best, env_options: {...}}      # begins with another run's policy

The run directories are all the state there is: started again, a batch passes over runs that are finished, watches those
that are still at work and resumes the others. Its processes outlive it, as those of `kit.launch` do.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig, read_yaml
from kit.errors import UserError
from kit.machine import limits
from kit.runs import api, worker
from kit.runs.beginning import beginning
from kit.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

RUN_BYTES = 1_000_000_000
"""Of memory that a run takes: 0.6 GB with PPO, 0.95 with SAC and a replay of a million (tests/bench/memory.py)."""
POLL_S = 0.5
STOPPING_S = 120.0
KEYS = ("name", "state", "step", "total_steps", "success_rate", "mean_return", "message")


class Work(Protocol):
    """What a batch does: a run, or whatever else is a process that can be begun again."""

    error: str

    @property
    def run(self) -> Run | None: ...
    def start(self, threads: int, card_share: int) -> None: ...
    def is_working(self) -> bool: ...
    def again(self) -> bool: ...
    def stop(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def row(self) -> dict[str, Any]: ...


@dataclass
class Job:
    """One run of a batch."""

    config: RunConfig
    """With its run_name."""
    asked: dict[str, Any]
    """The fields that were asked for, of which its config is made."""
    start_from: str | None = None
    run: Run | None = None
    """Once it was begun."""
    error: str = ""
    """Why it could not be."""
    found_at_work: bool = False
    """Its process is of an earlier time, and may be about to die with that."""

    @property
    def path(self) -> Path:
        return Path(self.config.runs_dir).expanduser() / str(self.config.run_name)

    @property
    def is_there(self) -> bool:
        """From an earlier time."""
        return (self.path / "config.yaml").is_file()

    def changes(self) -> dict[str, Any]:
        """What is asked of the run that is there and it was not made for. Raises `UserError` if that may not change."""
        had, changes = Run(self.path).config.to_dict(), {}
        for name in self.asked.keys() - {"run_name", "runs_dir", "threads"}:
            value, known = self.config.to_dict()[name], had[name]
            if isinstance(value, dict):
                known = {key: known.get(key) for key in value}
            if value not in (known, "auto"):
                if name not in MAY_CHANGE_ON_RESUME:
                    where = f"{self.path} exists with {name}={known!r}, not {value!r}"
                    raise UserError(f"{where}; name the batch or the job otherwise.")
                changes[name] = value
        return changes

    def start(self, threads: int, card_share: int) -> None:
        """Begin or resume it, unless it is at work or finished already."""
        if not self.is_there:
            own = self.asked.get("threads", "auto")
            fields = {**self.asked, "threads": threads if own == "auto" else own}
            self.run = api.create(None, fields, self.start_from, elsewhere=True, card_share=card_share)
            worker.start(self.run)
            return
        self.run, changes = Run(self.path), self.changes()
        self.found_at_work = self.run.is_working()
        if not self.found_at_work and (self.run.status()["state"] != "finished" or "total_steps" in changes):
            self.run = api.resume(self.path, background=True, **changes)

    def is_working(self) -> bool:
        return self.run is not None and self.run.is_working()

    def again(self) -> bool:
        """Whether its process, which was of an earlier time, was killed with that: it is to be begun once more."""
        return self.found_at_work and self.row()["state"] == "interrupted"

    def stop(self) -> None:
        if self.run is not None:
            self.run.stop()

    def wait(self, seconds: float) -> None:
        if self.run is not None:
            self.run.wait(seconds)

    def row(self) -> dict[str, Any]:
        total = {"name": self.config.run_name, "total_steps": self.config.total_steps}
        if self.run is None:
            state = {"state": "failed" if self.error else "waiting", "step": 0, "message": self.error}
            return {**dict.fromkeys(KEYS), **state, **total}
        now = self.run.status()
        return {key: now.get(key) for key in KEYS} | total


class Results(list[dict[str, Any]]):
    """One row of `KEYS` for each job, in their order."""

    def __init__(self, jobs: Sequence[Work]) -> None:
        super().__init__(job.row() for job in jobs)
        self.runs = [job.run for job in jobs if job.run is not None]

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self)

    def of(self, state: str) -> int:
        """How many are in it."""
        return sum(row["state"] == state for row in self)


def batch(
    jobs: str | Path | Sequence[RunConfig | Mapping[str, Any]] | RunConfig,
    *,
    seeds: int | Sequence[int] | None = None,
    at_once: int | None = None,
    name: str | None = None,
    on_progress: Callable[[Results], None] | None = None,
) -> Results:
    """Train all `jobs`: a YAML file (see above), a list of configs or of their fields, or one config with `seeds`.

    Runs are called after the batch's `name` (by default the file's), env, algo and seed. A job that fails does not stop
    the others. Ctrl-C stops them all with a checkpoint; called again, the batch goes on. `on_progress` is told twice a
    second how all stand, by default a progress bar. Raises `UserError` before anything is created if any job cannot be.
    """
    shared: dict[str, Any] = {}
    if isinstance(jobs, str | Path):
        name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", Path(jobs).stem)
        jobs, shared = _of_file(Path(jobs))
    elif isinstance(jobs, RunConfig):
        jobs = [jobs]
    seeds = shared.pop("seeds", None) if seeds is None else seeds
    at_once = shared.pop("at_once", None) if at_once is None else at_once
    listed = _planned([{**shared, **_fields(job)} for job in jobs], seeds, name or "batch")
    return run_all(listed, slots([job.config for job in listed], len(listed), at_once), on_progress)


def _of_file(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Its jobs, and what holds for all of them."""
    content = read_yaml(path)
    if isinstance(content, list):
        return content, {}
    if not isinstance(content, dict):
        raise UserError(
            f"{path} holds {type(content).__name__}, not jobs; write `jobs:` and a list of RunConfig fields."
        )
    for what, how in (("sweep", "kit.sweep"), ("notebook", "kit.notebooks")):
        if what in content:
            raise UserError(f"{path} holds a {what}; `kit batch {path}` and {how}({str(path)!r}) do what it says.")
    listed = content.pop("jobs", [{}])
    if not isinstance(listed, list) or not listed or not all(isinstance(job, dict) for job in listed):
        raise UserError(f"{path}: jobs={listed!r} is not a list of mappings such as {{algo: PPO}}.")
    return listed, content


def _fields(job: RunConfig | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(job, RunConfig):
        return dict(job)
    return job.told()


def _planned(jobs: list[dict[str, Any]], seeds: int | Sequence[int] | None, name: str) -> list[Job]:
    """The jobs with every seed and a name each. Raises `UserError` for the first that cannot be trained."""
    from kit.measure.auto import resolve

    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = range(seeds)
    if seeds is not None and (isinstance(seeds, str) or not isinstance(seeds, Sequence) or not seeds):
        raise UserError(f"seeds={seeds!r} is neither a number of seeds nor a list of them.")
    taken: Counter[str] = Counter()
    planned = []
    for fields in jobs:
        for seed in [{}] if seeds is None else [{"seed": seed} for seed in seeds]:
            asked = {**fields, **seed}
            start_from = asked.pop("start_from", None)
            begins = None if start_from is None else beginning(start_from, False, None, asked)
            config = RunConfig.from_dict(asked) if begins is None else begins.config
            stem = config.run_name or f"{name}-{config.env}-{config.algo}".lower()
            if config.run_name is None or seed:
                stem = re.sub(r"[^A-Za-z0-9._]+", "-", f"{stem}-s{config.seed}")
            taken[stem] += 1
            config = config.replace(run_name=stem if taken[stem] == 1 else f"{stem}-{taken[stem]}")
            try:
                resolve(config, fits=lambda asked: int(asked.n_envs))
            except UserError as error:
                raise UserError(f"job {config.run_name}: {error}") from None
            planned.append(Job(config, {**asked, "run_name": config.run_name}, start_from))
    for job in planned:
        if job.is_there:
            job.changes()
    return planned


def slots(configs: Sequence[RunConfig], count: int, at_once: int | None) -> int:
    """How many of `count` runs, of kinds `configs`, go side by side. Raises `UserError` for more than there is room."""
    cores, free = limits.usable_cores(), limits.memory_free_bytes()
    if at_once is None:
        on_card = any(config.device not in ("auto", "cpu") for config in configs)
        return 1 if on_card else max(1, min(count, cores, free // RUN_BYTES))
    if isinstance(at_once, bool) or not isinstance(at_once, int) or not 1 <= at_once <= cores:
        raise UserError(f"at_once={at_once!r} must be a whole number from 1 to {cores}, the cores of this machine.")
    if at_once * RUN_BYTES > free:
        needed = f"needs about {at_once * RUN_BYTES / 1e9:.0f} GB of memory and {free / 1e9:.1f} GB are free"
        raise UserError(f"at_once={at_once} {needed}; run fewer side by side.")
    return at_once


def run_all(
    jobs: Sequence[Work], at_once: int, on_progress: Callable[[Results], None] | None = None, unit: str = "step"
) -> Results:
    """Do all `jobs`, so many side by side. `on_progress` is told twice a second how all stand, by default a bar."""
    if on_progress is None:
        with _bar(unit) as tell:
            return run_all(jobs, at_once, tell)
    threads = max(1, limits.usable_cores() // at_once)
    waiting, working = deque(jobs), list[Work]()
    try:
        while waiting or working:
            while waiting and len(working) < at_once:
                job = waiting.popleft()
                try:
                    job.start(threads, at_once)
                except Exception as error:  # whatever it is, the other jobs go on
                    job.error = str(error) or type(error).__name__
                working += [job] if job.is_working() else []
            on_progress(Results(jobs))
            if working:
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
    results = Results(jobs)
    on_progress(results)
    return results


@contextlib.contextmanager
def _bar(unit: str) -> Iterator[Callable[[Results], None]]:
    """A progress bar over all steps, or cells, of all jobs, in a notebook or a terminal."""
    from tqdm.auto import tqdm

    with tqdm(unit=unit, unit_scale=True, dynamic_ncols=True) as shown:

        def tell(now: Results) -> None:
            done, failed, waiting = (now.of(state) for state in ("finished", "failed", "waiting"))
            said = f"{done} of {len(now)} done, {len(now) - done - failed - waiting} at work"
            shown.total = sum(row["total_steps"] for row in now)
            shown.set_description_str(said + (f", {failed} failed" if failed else ""), refresh=False)
            shown.update(sum(min(row["step"], row["total_steps"]) for row in now) - shown.n)

        yield tell
