"""Batches: many runs side by side, each in its own process on this machine, or on a Ray cluster.

    env: Reach                      # RunConfig fields for every job
    total_steps: 100000
    seeds: 5                        # five runs per job, with seeds 0 to 4; or a list of seeds
    at_once: 2                      # maximum number of runs side by side; default: as many as fit
    cpus: 4                         # CPU cores per job on a cluster (kit.scale.cluster); likewise gpus
    jobs:
      - {algo: PPO}
      - {algo: A2C, overrides: {learning_rate: 0.001}}
      - {start_from: runs/reach@best, env_options: {...}}      # starts from another run's policy

A batch has no state besides its run directories. If the batch is started again, it skips finished runs, waits for runs
that are still training, and resumes the others. As with `kit.launch`, the training processes go on if the process that
started the batch is killed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig, folder_name, read_yaml
from kit.errors import UserError
from kit.machine import limits
from kit.runs import api, worker
from kit.runs.run import Run, opened
from kit.runs.warm_start import warm_start
from kit.scale.background import Background, JobRow, job_rows
from kit.scale.work import KEYS, Engine, Results, StoredWork, bar, run_all
from kit.stores import absolute, lease, list_runs, open_store
from kit.stores.redact import may_be_unredacted, redact
from kit.trust import mark_source, permit

RUN_BYTES = 1_000_000_000
"""Memory assumed per run. Measured by tests/bench/memory.py: 0.6 GB with PPO, 0.95 GB with SAC and 1e6 transitions."""


@dataclass
class Job(StoredWork):
    """One run of a batch."""

    config: RunConfig
    """The config, with its run_name."""
    requested: dict[str, Any]
    """The fields that the user set, from which `config` was made."""
    start_from: str | None = None
    trust: bool = False
    """As in `kit.resume`."""
    run: Run | None = None
    """The run; None until `start`, `look` or `fetch` has set it."""

    @property
    def path(self) -> Path:
        return Path(self.config.runs_dir).expanduser() / str(self.config.run_name)

    @property
    def exists(self) -> bool:
        return (self.path / "config.yaml").is_file()

    @property
    def run_path(self) -> Path | None:
        return self.path if self.exists else None

    @cached_property
    def _is_done_before(self) -> bool:
        """Whether an earlier call of the batch has finished the run."""
        status = Run(self.path).status() if self.exists else {}
        return status.get("state") == "finished" and int(status["step"]) >= self.config.total_steps

    def changes(self) -> dict[str, Any]:
        """Return the requested fields that differ from the existing run's config.

        Raises `UserError` for a field that may not change on resume. A run from a store gets its secrets in
        `env_options` back.
        """
        run, changes = Run(self.path), {}
        existing, asked, wanted = (_values(config) for config in (run.config, run.requested, self.config))
        # whether the run knows which values were asked for; else defaults and values that kit chose look alike
        is_known = run.knows_request and self.start_from is None
        names = wanted.keys() - {"run_name", "runs_dir", "threads"}
        for name in sorted(names, key=lambda name: name not in self.requested):  # errors name a requested field first
            value, current, may_change = wanted[name], existing[name], name in MAY_CHANGE_ON_RESUME
            if (name not in self.requested or value == "auto") and (may_change or not is_known):
                continue
            same_keys = {key: current.get(key) for key in value} if isinstance(value, dict) else current
            if value in (current if is_known else same_keys, asked[name]):
                continue
            if name == "env_options" and value and may_be_unredacted(value, same_keys):
                changes[name] = {**existing[name], **value}
            elif may_change:
                changes[name] = value
            else:
                conflict = redact(f"{self.path} exists with {name}={asked[name]!r}, not {value!r}")
                raise UserError(f"{conflict}; choose another name for the batch or the job.")
        return changes

    def start(self, threads: int) -> None:
        """Start or resume the run, unless it is already training; a finished run only if `total_steps` changes."""
        permit(self.config, self.trust)
        self.run = api.existing_run(self.config)
        if self.run is None:
            requested = self.requested.get("threads", "auto")
            fields = {**self.requested, "threads": threads if requested == "auto" else requested}
            self.run = api.create(None, fields, self.start_from, self.trust, other_process=True)
            worker.start(self.run)
            return
        changes = self.changes()
        if not self.run.is_working() and (self.run.status()["state"] != "finished" or "total_steps" in changes):
            self.run = api.resume(self.path, background=True, trust=self.trust, **changes)

    def is_working(self) -> bool:
        return self.run is not None and self.run.is_working()

    def held_for(self) -> float:
        return lease.held_for(self.config.store, str(self.config.run_name), self.path)

    def stop(self) -> None:
        if self.run is not None:
            self.run.stop()

    def wait(self, seconds: float) -> None:
        if self.run is not None:
            with contextlib.suppress(TimeoutError):  # the run goes on to its checkpoint
                self.run.wait(seconds)

    def look(self) -> dict[str, Any]:
        if self.exists:
            self.run = Run(self.path)
        stored = {} if self.exists or not self.config.store else runs_in_store(self.config.store)
        row = self.row() | {key: value for key, value in stored.get(self.path.name, {}).items() if key in KEYS}
        asked = self.config.total_steps if "total_steps" in self.requested else 0
        message = "fewer steps than requested; `kit batch` continues it"
        unfinished = {"state": "interrupted", "total_steps": asked, "message": message}
        return row | (unfinished if row["state"] == "finished" and row["step"] < asked else {})

    def fetch(self) -> None:
        self.run = api.existing_run(self.config)

    def row(self) -> dict[str, Any]:
        total = {"name": self.config.run_name, "total_steps": self.config.total_steps}
        if self.run is None and self._is_done_before:
            self.run = Run(self.path)
        if self.run is None:
            state = {"state": "failed" if self.error else "waiting", "step": 0, "message": self.error or self.note}
            return {**dict.fromkeys(KEYS), **state, **total}
        status = self.run.status()
        failed_start = {"state": "failed", "message": self.error} if self.error and not self.is_working() else {}
        return {key: status.get(key) for key in KEYS} | total | failed_start


def _values(config: RunConfig) -> dict[str, Any]:
    """Return the fields of `config`, to compare them with those of another: a store's folder is absolute."""
    return config.to_dict() | {"store": config.store and absolute(config.store)}


@lru_cache
def runs_in_store(url: str) -> dict[str, dict[str, Any]]:
    """Return name -> summary of the runs in a store. The result of the first call is cached."""
    return {run["name"]: run for run in list_runs(open_store(url))}


def batch(
    jobs: str | Path | Sequence[RunConfig | Mapping[str, Any]] | RunConfig | Mapping[str, Any],
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
    """Train all `jobs`: a YAML file, a list of configs or mappings, or one of them with `seeds`.

    Run names consist of the batch's `name` (default: the file's name, or "batch"), env, algo and seed, unless a job has
    a run_name. If a job fails, the others continue. Ctrl-C stops all runs with a checkpoint; call `batch` again to
    continue. `on="ray"` or "ray://HOST:PORT" trains on a Ray cluster, with `cpus` and `gpus` per job. `on_progress` is
    called twice a second with the state of all jobs; default: a progress bar. `trust` as in `kit.train` and
    `kit.resume`. Raises `UserError` for an invalid job before any file is written.
    """
    return run_batch(*_planned(jobs, seeds, name, trust, at_once=at_once, on=on, cpus=cpus, gpus=gpus), on_progress)


def launch_batch(
    jobs: str | Path | Sequence[RunConfig | Mapping[str, Any]] | RunConfig | Mapping[str, Any],
    *,
    seeds: int | Sequence[int] | None = None,
    name: str | None = None,
    trust: bool = False,
    **resources: Any,
) -> Background[Results]:
    """Like `kit.batch`, but return at once: a thread starts the jobs. `kit.ui.runs` shows them, `wait()` waits.

    `resources`: at_once, on, cpus and gpus, as in `kit.batch`.
    """
    planned, resolved, engine = _planned(jobs, seeds, name, trust, **resources)

    def rows(latest: Results | None) -> list[JobRow]:
        on_cluster = engine.on is not None and latest is not None
        return job_rows(planned, latest if latest and on_cluster else [job.row() for job in planned])

    name = name or (folder_name(Path(jobs).stem) if isinstance(jobs, str | Path) else "batch")
    title = f"batch {name} in {planned[0].config.runs_dir}"
    work, key = partial(run_batch, planned, resolved, engine), [(job.config, job.start_from) for job in planned]
    return Background(title, rows, work, partial(bar, "step"), key).start()


def _planned(
    jobs: str | Path | Sequence[RunConfig | Mapping[str, Any]] | RunConfig | Mapping[str, Any],
    seeds: int | Sequence[int] | None,
    name: str | None,
    trust: bool,
    **resources: Any,
) -> tuple[list[Job], list[RunConfig], Engine]:
    """Return the jobs of a batch, their resolved configs, and where they run.

    Raises `UserError` for an invalid job or an unusable store.
    """
    if isinstance(jobs, str | Path):
        planned, engine = read_jobs(jobs, seeds, name, trust=trust, **resources)
    else:
        listed = [jobs] if isinstance(jobs, RunConfig | Mapping) else list(jobs)
        if not listed or not all(isinstance(job, RunConfig | Mapping) for job in listed):
            raise UserError(f"jobs={jobs!r} is not a list of configs or mappings such as {{'algo': 'PPO'}}.")
        fields = [job.non_defaults() if isinstance(job, RunConfig) else dict(job) for job in listed]
        engine = Engine.of({}, **resources)
        planned = plan_jobs(fields, seeds, name or "batch", engine.on is not None, trust)
    resolved = check(planned, engine.on is not None)
    check_stores(job.config.store for job in planned)
    return planned, resolved, engine


def with_shared_folder(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` with an absolute `store` (without one: `runs_dir`), because other machines read it.

    With a store, each machine has a `runs_dir` of its own.
    """
    store, runs_dir = fields.get("store"), fields.get("runs_dir", "runs")
    if store and isinstance(store, str):
        return {**fields, "store": absolute(store)}
    if store or not isinstance(runs_dir, str):  # RunConfig raises for a value that is not a string
        return fields
    return {**fields, "runs_dir": str(Path(runs_dir).expanduser().absolute())}


def run_batch(
    jobs: Sequence[StoredWork],
    configs: Sequence[RunConfig],
    engine: Engine,
    on_progress: Callable[[Results], None] | None = None,
    unit: str = "step",
) -> Results:
    """Run all `jobs` on this machine or on `engine`'s cluster.

    `configs`: the jobs' resolved configs. `unit`: what the progress bar counts.
    """
    if engine.on is None:
        return run_all(jobs, slots(configs, len(jobs), engine.at_once), on_progress, unit)
    from kit.scale.cluster import cluster

    with cluster(engine) as ray_cluster:
        return run_all([ray_cluster.remote(job) for job in jobs], engine.at_once or len(jobs), on_progress, unit)


def read_jobs(
    path: str | Path,
    seeds: int | Sequence[int] | None = None,
    name: str | None = None,
    elsewhere: bool = False,
    trust: bool = False,
    **resources: Any,
) -> tuple[list[Job], Engine]:
    """Read a YAML file of jobs; `seeds` and `resources` override those of the file. Raises `UserError`.

    `elsewhere` as in `plan_jobs`.
    """
    jobs, shared = _read(Path(path))
    engine = Engine.of(shared, **resources)
    file_seeds = shared.pop("seeds", None)
    seeds = file_seeds if seeds is None else seeds
    name = name or folder_name(Path(path).stem)
    fields = [mark_source({**shared, **job}, path) for job in jobs]
    return plan_jobs(fields, seeds, name, elsewhere or engine.on is not None, trust), engine


def _read(path: Path) -> tuple[list[Any], dict[str, Any]]:
    content = read_yaml(path)
    content = {"jobs": content} if isinstance(content, list) else content
    if not isinstance(content, dict):
        raise UserError(
            f"{path} holds {type(content).__name__}, not jobs; write `jobs:` and a list of RunConfig fields."
        )
    for kind, function in (("sweep", "kit.sweep"), ("notebook", "kit.notebooks")):
        if kind in content:
            raise UserError(f"{path} holds a {kind}; run it with `kit batch {path}` or {function}({str(path)!r}).")
    jobs = content.pop("jobs", [{}])
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise UserError(f"{path}: jobs={jobs!r} is not a list of mappings such as {{algo: PPO}}.")
    return jobs, content


def plan_jobs(
    jobs: list[dict[str, Any]],
    seeds: int | Sequence[int] | None,
    name: str,
    elsewhere: bool = False,
    trust: bool = False,
) -> list[Job]:
    """Return one job, with a unique name, for each combination of an entry of `jobs` and a seed. Raises `UserError`.

    `elsewhere`: the jobs may run on other machines.
    """
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = range(seeds)
    if seeds is not None and (isinstance(seeds, str) or not isinstance(seeds, Sequence) or not seeds):
        raise UserError(f"seeds={seeds!r} is neither a number of seeds nor a list of them.")
    taken: Counter[str] = Counter()
    given: list[dict[str, Any]] = []
    planned = []
    for fields in jobs:
        if seeds is not None and "seed" in fields:
            raise UserError(f"seed={fields['seed']!r} has no effect beside seeds; leave one of them out.")
        for seed in [{}] if seeds is None else [{"seed": seed} for seed in seeds]:
            requested = {**fields, **seed}
            if requested in given:
                both = f"jobs {given.index(requested) + 1} and {len(given) + 1}"
                raise UserError(f"{both} are the same run ({requested}); change a seed or remove one.")
            given.append(dict(requested))
            start_from = requested.pop("start_from", None)
            requested = with_shared_folder(requested) if elsewhere else requested
            config = RunConfig.from_dict(requested)
            if start_from is not None:
                config = warm_start(start_from, trust, config.runs_dir, config.algo).make_config(None, requested)
            stem = config.run_name or f"{name}-{config.env}-{config.algo}".lower()
            if config.run_name is None or seed:
                stem = folder_name(f"{stem}-s{config.seed}")
            taken[stem] += 1
            config = config.replace(run_name=stem if taken[stem] == 1 else f"{stem}-{taken[stem]}")
            permit(config, trust)
            planned.append(Job(config, {**requested, "run_name": config.run_name}, start_from, trust))
    for job in planned:
        if job.exists:
            job.changes()
    return planned


def check(jobs: Sequence[Job], elsewhere: bool = False) -> list[RunConfig]:
    """Return the resolved configs of `jobs`. Raises `UserError` for the first job that cannot be trained.

    `elsewhere`: the jobs may run on other machines, so this machine's GPU is ignored.
    """
    from kit.trainers.planning import plan

    resolved = []
    for job in jobs:
        config = job.config.replace(device="cpu") if elsewhere else job.config
        try:
            if job.exists:
                opened(job.path, job.trust)
            # a run that exists, here or in its store, may keep settings that are refused for new runs
            may_exist = job.exists or config.store is not None
            resolved.append(plan(config, new=not may_exist).config)
        except UserError as error:
            raise UserError(f"job {config.run_name}: {error}") from None
    return resolved


def check_stores(stores: Iterable[str | None]) -> None:
    """Raise `UserError` for the first store that cannot be written, or that does not answer."""
    for store in {store: None for store in stores if store is not None}:
        open_store(store, write=True)


def slots(configs: Sequence[RunConfig], count: int, at_once: int | None) -> int:
    """Return how many of `count` runs may train at the same time. `configs` are resolved.

    The result is `at_once` if it is set. Else it is 1 if any run uses a GPU, or as many as cores and memory allow.
    Raises `UserError` if `at_once` is more than the cores or the memory allow. `Engine` checks that it is whole.
    """
    cores, free = limits.usable_cores(), limits.memory_free_bytes()
    processes = max((config.processes for config in configs), default=1)
    run_bytes = processes * RUN_BYTES
    if at_once is None:
        on_gpu = any(config.device != "cpu" for config in configs)
        return 1 if on_gpu else max(1, min(count, cores // processes, free // run_bytes))
    if at_once > cores:
        raise UserError(f"at_once={at_once!r} is more than the {cores} cores of this machine.")
    if at_once * run_bytes > free:
        needed = f"needs about {at_once * run_bytes / 1e9:.0f} GB of memory and {free / 1e9:.1f} GB are free"
        raise UserError(f"at_once={at_once} {needed}; run fewer side by side.")
    return at_once
