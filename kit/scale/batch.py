"""Several runs: side by side as cores and memory allow, each in a process of its own, or on a cluster.

    env: Reach                      # fields of RunConfig that hold for every job
    total_steps: 100000
    seeds: 5                        # each job five times, with seeds 0 to 4; or a list of seeds
    at_once: 2                      # at most so many at a time; by default what fits
    cpus: 4                         # and gpus: what each gets on a cluster (kit.scale.cluster)
    jobs:
      - {algo: PPO}
      - {algo: A2C, overrides: {learning_rate: 0.001}}
      - {start_from: runs/reach@best, env_options: {...}}      # begins with another run's policy

The run directories are all the state there is: started again, a batch passes over runs that are finished, watches those
that are still at work and resumes the others. Its processes outlive it, as those of `kit.launch` do.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig, folder_name, read_yaml
from kit.errors import UserError
from kit.machine import limits
from kit.runs import api, worker
from kit.runs.prepare import prepare_run
from kit.runs.run import Run, opened
from kit.runs.warm_start import warm_start
from kit.scale.work import KEYS, Engine, Kept, Notes, Results, run_all
from kit.stores import StoreError, lease, list_runs, open_store
from kit.trust import mark_source, permit

RUN_BYTES = 1_000_000_000
"""Of memory that a run takes: 0.6 GB with PPO, 0.95 with SAC and a replay of a million (tests/bench/memory.py)."""


@dataclass
class Job:
    """One run of a batch."""

    config: RunConfig
    """With its run_name."""
    asked: dict[str, Any]
    """The fields that were asked for, of which its config is made."""
    start_from: str | None = None
    trust: bool = False
    """Whether the user says so, see `kit.resume`."""
    run: Run | None = None
    """Once it was begun."""
    error: str = ""
    """Why it could not be."""
    note: str = ""
    """What it waits for."""
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

    def start(self, threads: int, gpu_share: int) -> None:
        """Begin or resume it, unless it is at work or finished already."""
        permit(self.config, self.trust)
        self.run = api.existing_run(self.config)
        if self.run is None:
            own = self.asked.get("threads", "auto")
            fields = {**self.asked, "threads": threads if own == "auto" else own}
            self.run = api.create(prepare_run(None, fields, self.start_from, self.trust, True, gpu_share))
            worker.start(self.run)
            return
        changes = self.changes()
        self.found_at_work = self.run.is_working()
        if not self.found_at_work and (self.run.status()["state"] != "finished" or "total_steps" in changes):
            self.run = api.resume(self.path, background=True, trust=self.trust, **changes)

    def is_working(self) -> bool:
        return self.run is not None and self.run.is_working()

    def again(self) -> bool:
        """Whether its process, which was of an earlier time, was killed with that: it is to be begun once more."""
        return self.found_at_work and self.row()["state"] == "interrupted"

    def held_for(self) -> float:
        return lease.held_for(self.config.store, str(self.config.run_name), self.path)

    def stop(self) -> None:
        if self.run is not None:
            self.run.stop()

    def wait(self, seconds: float) -> None:
        if self.run is not None:
            self.run.wait(seconds)

    def look(self) -> dict[str, Any]:
        if self.is_there:
            self.run = Run(self.path)
        known = {} if self.is_there or not self.config.store else stored(self.config.store)
        return self.row() | {key: value for key, value in known.get(self.path.name, {}).items() if key in KEYS}

    def fetch(self) -> None:
        self.run = api.existing_run(self.config)

    def row(self) -> dict[str, Any]:
        total = {"name": self.config.run_name, "total_steps": self.config.total_steps}
        if self.run is None:
            state = {"state": "failed" if self.error else "waiting", "step": 0, "message": self.error or self.note}
            return {**dict.fromkeys(KEYS), **state, **total}
        now = self.run.status()
        return {key: now.get(key) for key in KEYS} | total


@lru_cache
def stored(url: str) -> dict[str, dict[str, Any]]:
    """The runs in a store by name, as they were when this was first asked."""
    return {run["name"]: run for run in list_runs(open_store(url))}


def batch(
    jobs: str | Path | Sequence[RunConfig | Mapping[str, Any]] | RunConfig,
    *,
    seeds: int | Sequence[int] | None = None,
    at_once: int | None = None,
    on: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    name: str | None = None,
    trust: bool = False,
    on_progress: Callable[[Results], None] | None = None,
) -> Results:
    """Train all `jobs`: a YAML file (see above), a list of configs or of their fields, or one config with `seeds`.

    Runs are called after the batch's `name` (by default the file's), env, algo and seed. A job that fails does not stop
    the others. Ctrl-C stops them all with a checkpoint; called again, the batch goes on. `on="ray"` or
    "ray://HOST:PORT" does it on a Ray cluster, each job with so many `cpus` and `gpus`. `on_progress` is told twice a
    second how all stand, by default a progress bar. `trust` as in `kit.train` and `kit.resume`. Raises `UserError`
    before anything is created if any job cannot be.
    """
    given: dict[str, Any] = {"at_once": at_once, "on": on, "cpus": cpus, "gpus": gpus}
    if isinstance(jobs, str | Path):
        name = name or folder_name(Path(jobs).stem)
        listed, engine = of_file(jobs, seeds, name, trust=trust, **given)
    else:
        name = name or "batch"
        fields = [_fields(job) for job in ([jobs] if isinstance(jobs, RunConfig) else jobs)]
        engine = Engine.of({}, **given)
        listed = planned(fields, seeds, name, engine.on is not None, trust)
    resolved = check(listed, engine.on is not None)
    reachable(job.config.store for job in listed)
    return do_all(listed, resolved, engine, name, on_progress)


def seen_by_all(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a run that another machine may do. Without a store its folder is this very one, which all machines
    have to see; with one each machine keeps runs where it likes."""
    runs_dir = Path(fields.get("runs_dir", "runs")).expanduser()
    return fields if fields.get("store") else {**fields, "runs_dir": str(runs_dir.absolute())}


def do_all(
    jobs: Sequence[Kept],
    configs: Sequence[RunConfig],
    engine: Engine,
    name: str,
    on_progress: Callable[[Results], None] | None = None,
    unit: str = "step",
) -> Results:
    """Do all `jobs` of the batch `name`, of kinds `configs`, which are resolved, where `engine` says."""
    notes = Notes.beside(jobs, name)
    if engine.on is None:
        return run_all(jobs, slots(configs, len(jobs), engine.at_once), notes, on_progress, unit)
    from kit.scale.cluster import cluster

    with cluster(engine) as found:
        return run_all([found.remote(job) for job in jobs], len(jobs), notes, on_progress, unit)


def of_file(
    path: str | Path,
    seeds: int | Sequence[int] | None = None,
    name: str | None = None,
    elsewhere: bool = False,
    trust: bool = False,
    **given: Any,
) -> tuple[list[Job], Engine]:
    """The runs that a YAML file asks for, and where, if not `given`. Raises `UserError`."""
    jobs, shared = _read(Path(path))
    engine = Engine.of(shared, **given)
    said = shared.pop("seeds", None)
    name = name or folder_name(Path(path).stem)
    fields = [mark_source({**shared, **job}, path) for job in jobs]
    return planned(fields, said if seeds is None else seeds, name, elsewhere or engine.on is not None, trust), engine


def _read(path: Path) -> tuple[list[Any], dict[str, Any]]:
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
    return job.non_defaults()


def planned(
    jobs: list[dict[str, Any]],
    seeds: int | Sequence[int] | None,
    name: str,
    elsewhere: bool = False,
    trust: bool = False,
) -> list[Job]:
    """The jobs with every seed and a name each; `elsewhere`: for other machines than this one. Raises `UserError`."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = range(seeds)
    if seeds is not None and (isinstance(seeds, str) or not isinstance(seeds, Sequence) or not seeds):
        raise UserError(f"seeds={seeds!r} is neither a number of seeds nor a list of them.")
    taken: Counter[str] = Counter()
    found = []
    for fields in jobs:
        for seed in [{}] if seeds is None else [{"seed": seed} for seed in seeds]:
            asked = {**fields, **seed}
            start_from = asked.pop("start_from", None)
            asked = seen_by_all(asked) if elsewhere else asked
            config = RunConfig.from_dict(asked)
            if start_from is not None:
                config = warm_start(start_from, trust, config.runs_dir, config.algo).make_config(None, asked)
            stem = config.run_name or f"{name}-{config.env}-{config.algo}".lower()
            if config.run_name is None or seed:
                stem = folder_name(f"{stem}-s{config.seed}")
            taken[stem] += 1
            config = config.replace(run_name=stem if taken[stem] == 1 else f"{stem}-{taken[stem]}")
            permit(config, trust)
            found.append(Job(config, {**asked, "run_name": config.run_name}, start_from, trust))
    for job in found:
        if job.is_there:
            job.changes()
    return found


def check(jobs: Sequence[Job], elsewhere: bool = False) -> list[RunConfig]:
    """Their resolved configs. Raises `UserError` for the first that cannot be trained, here or `elsewhere`."""
    from kit.trainers.planning import plan

    resolved = []
    for job in jobs:
        config = job.config.replace(device="cpu") if elsewhere else job.config
        try:
            if job.is_there:
                opened(job.path, job.trust)
            resolved.append(plan(config).config)
        except UserError as error:
            raise UserError(f"job {config.run_name}: {error}") from None
    return resolved


def reachable(stores: Iterable[str | None]) -> None:
    """Raises `UserError` for the first store that cannot be used; one that only does not answer is waited for."""
    for store in {store: None for store in stores if store is not None}:
        with contextlib.suppress(StoreError):
            open_store(store, write=True)


def slots(configs: Sequence[RunConfig], count: int, at_once: int | None) -> int:
    """How many of `count` runs, of resolved kinds `configs`, go side by side: `at_once`, or one on a GPU, or what fits.
    Raises `UserError` for more than there is room."""
    cores, free = limits.usable_cores(), limits.memory_free_bytes()
    processes = max((config.processes for config in configs), default=1)
    takes = processes * RUN_BYTES
    if at_once is None:
        on_card = any(config.device != "cpu" for config in configs)
        return 1 if on_card else max(1, min(count, cores // processes, free // takes))
    if isinstance(at_once, bool) or not isinstance(at_once, int) or not 1 <= at_once <= cores:
        raise UserError(f"at_once={at_once!r} must be a whole number from 1 to {cores}, the cores of this machine.")
    if at_once * takes > free:
        needed = f"needs about {at_once * takes / 1e9:.0f} GB of memory and {free / 1e9:.1f} GB are free"
        raise UserError(f"at_once={at_once} {needed}; run fewer side by side.")
    return at_once
