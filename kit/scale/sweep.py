"""Hyperparameter search with Optuna; every trial is an ordinary run.

    env: Reach                        # RunConfig fields for every trial
    total_steps: 50000
    at_once: 2                        # trials side by side; default: as many as fit
    sweep:
      trials: 20
      seed: 0                         # seed of Optuna's sampler
      pruner: median                  # or hyperband, or none: rule for stopping bad trials early
      space:                          # values to try for RunConfig fields, hyperparameters, network settings
        learning_rate: {min: 1.0e-4, max: 3.0e-3, log: true}
        n_steps: {min: 64, max: 512, step: 64}
        net_arch: [[64, 64], [128, 128]]

Trial 7 of sweep.yaml is the run `sweep-t007`, which can be watched, resumed and branched. Optuna records trials and
values in a journal file, `sweep.sweep/journal.log` in runs_dir, with a copy in the store. A search that is started
again, also on another machine, continues from this file, and its runs from their checkpoints. A trial's score is the
task's `score` metric (success rate or mean return) in its last evaluation.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import RunConfig, folder_name, read_yaml
from kit.errors import UserError, need
from kit.format.files import GrowingRows, write_atomic
from kit.machine import limits
from kit.machine.progress import progress_bar
from kit.runs import directory
from kit.scale.batch import Job, check_stores, slots, with_shared_runs_dir
from kit.scale.store_folder import StoreFolder
from kit.scale.work import HELD_S, POLL_S, STOPPING_S, Engine, Starter, StoredWork, Work, since, utc
from kit.stores import MissingFile, StoreError, lease, open_store
from kit.stores.pull import readable
from kit.trust import mark_source, permit

if TYPE_CHECKING:
    import optuna
    import pandas as pd

TRIALS, STARTS = 20, 3
"""Default number of trials, and the maximum number of starts of a trial's run before it counts as failed."""
SEEDS = 100_003
"""Multiplier of a search's `seed`; trial numbers are added, so that all trials of all searches have their own seed."""
DEPENDENT = {"n_envs", "n_steps", "batch_size"}
"""Fields whose valid values depend on each other; a trial with an invalid combination counts as failed."""
PRUNERS = ("median", "hyperband", "none")
SETTINGS = ("trials", "seed", "pruner", "space")
JOURNAL, JOURNAL_BYTES = "journal.log", 2**30
"""Name of Optuna's journal file, and its maximum size in bytes when read from a store."""


@dataclass(frozen=True)
class Plan:
    """The settings of a search, read from its file."""

    name: str
    base: RunConfig
    """The config that all trials share."""
    space: dict[str, Any]
    """Name -> values to choose from: a list, or {min, max, log, step}."""
    trials: int = TRIALS
    seed: int = 0
    pruner: str = "median"
    kinds: tuple[RunConfig, ...] = ()
    """Example configs, resolved: one for each device on which a trial might train."""

    @property
    def folder(self) -> Path:
        return Path(self.base.runs_dir).expanduser() / f"{self.name}.sweep"

    @property
    def score(self) -> str:
        """Name of the evaluation metric to maximise, chosen by the task."""
        from kit import envs

        return str(getattr(envs.find(self.base.env), "score", "mean_return"))

    @property
    def eval_every(self) -> int:
        """Steps between evaluations; trials are compared at its multiples."""
        every = self.base.eval_every
        return every if isinstance(every, int) and every > 0 else max(1, self.base.total_steps // 10)

    def config(self, values: Mapping[str, Any], run_name: str | None = None) -> RunConfig:
        """Return the base config with a trial's `values`, which may come from a journal in a store (`kit.trust`)."""
        from kit.trainers.arguments import nested

        own = {name: value for name, value in values.items() if name in RunConfig().to_dict()}
        own = mark_source(own, self.folder / JOURNAL, of_run=True)
        overrides = {name: value for name, value in values.items() if name not in own}
        return self.base.replace(
            **{"overrides": nested({**self.base.overrides, **overrides}), **own, "run_name": run_name}
        )


def plan(
    path: str | Path | Mapping[str, Any], name: str | None = None, trust: bool = False, **resources: Any
) -> tuple[Plan, Engine]:
    """Read a search from a file or a mapping; `resources` take precedence over the file's. Raises `UserError`."""
    from kit.trainers import planning

    content = dict(path) if isinstance(path, Mapping) else read_yaml(path)
    path = (name or "sweep") if isinstance(path, Mapping) else path
    settings = content.pop("sweep", None) if isinstance(content, dict) else None
    if not isinstance(settings, dict) or not isinstance(settings.get("space"), dict) or not settings["space"]:
        raise UserError(f"{path} has no `sweep:` with a `space:` of names and choices; see `kit.scale.sweep`.")
    for name in settings.keys() - set(SETTINGS):
        raise UserError(f"{path}: sweep {name}={settings[name]!r} is unknown; valid are {', '.join(SETTINGS)}.")
    engine = Engine.of(content, **resources)
    content = with_shared_runs_dir(content) if engine.on else content
    search = Plan(name or folder_name(Path(path).stem), RunConfig.from_dict(mark_source(content, path)), **settings)
    if search.pruner not in PRUNERS:
        raise UserError(f"{path}: pruner={search.pruner!r} is unknown; valid are {', '.join(PRUNERS)}.")
    if isinstance(search.trials, bool) or not isinstance(search.trials, int) or search.trials < 1:
        raise UserError(f"{path}: trials={search.trials!r} must be a whole number of at least 1.")
    values = {
        name: [mark_source({name: value}, path)[name] for value in _values(name, choice)]
        for name, choice in search.space.items()
    }
    samples = [{name: choices[0] for name, choices in values.items()}]
    samples += [{name: value} for name in values.keys() - DEPENDENT for value in values[name]]
    kinds = {}
    for config in map(search.config, samples):
        permit(config, trust)
        resolved = planning.plan(config).config
        kinds[resolved.device] = resolved
    return replace(search, kinds=tuple(kinds.values())), engine


def _values(name: str, choice: Any) -> list[Any]:
    """Return the values of a list, or the two ends of a range. Raises `UserError` if `choice` is neither."""
    if isinstance(choice, list) and choice:
        return choice
    is_range = isinstance(choice, dict) and {"min", "max"} <= choice.keys() <= {"min", "max", "log", "step"}
    if (
        not is_range
        or not all(type(choice[end]) in (int, float) for end in ("min", "max"))
        or choice["min"] > choice["max"]
    ):
        raise UserError(
            f"sweep {name}={choice!r} is not valid; write a list of values, or a range such as "
            "{min: 1.0e-4, max: 1.0e-2, log: true}."
        )
    return [choice["min"], choice["max"]]


def suggest(trial: optuna.Trial, space: Mapping[str, Any]) -> dict[str, Any]:
    """Let Optuna choose a value for each name of `space`."""
    values = {}
    for name, choice in space.items():
        if isinstance(choice, list):  # as JSON text, because Optuna's categories cannot be lists such as [64, 64]
            values[name] = json.loads(trial.suggest_categorical(name, [json.dumps(value) for value in choice]))
        else:
            whole = all(isinstance(choice[end], int) for end in ("min", "max"))
            suggest_number = trial.suggest_int if whole else trial.suggest_float
            step = {"step": choice["step"]} if "step" in choice else {}
            values[name] = suggest_number(name, choice["min"], choice["max"], log=bool(choice.get("log")), **step)
    return values


@dataclass
class TrialJob(Job):
    """The run of a trial; its row also has `scores`, those of its evaluations: [[step, score], ...]."""

    score: str = "mean_return"
    _metrics: GrowingRows | None = field(default=None, repr=False)

    def row(self) -> dict[str, Any]:
        name = f"eval/{self.score}"
        if self._metrics is None:
            self._metrics = GrowingRows(self.path / "metrics.jsonl", ("step", name))
        self._metrics.read()
        scores = [[row["step"], float(row[name])] for row in self._metrics.rows if name in row and row["step"] > 0]
        return super().row() | {"scores": scores}


@dataclass
class _RunningTrial:
    """A trial whose run has started."""

    trial: optuna.Trial
    work: Work
    starts: int = 1
    reported: int = 0
    """Number of scores reported to Optuna."""
    stopped: bool = False
    """Whether the trial was stopped early: pruned, or because of a score that is not finite."""

    def set_note(self, note: str) -> None:
        """Write why the trial waits into the journal, from which `kit batch status` reads it."""
        if note != self.trial.user_attrs.get("message", ""):
            self.trial.set_user_attr("message", note)


class Sweep:
    """A search in its current state: `table()` of trials, `best` config, and Optuna's `study`."""

    def __init__(self, plan: Plan, study: optuna.Study | None = None) -> None:
        """`study` default: one in memory, read from the journal, for use while another process runs the search."""
        self.plan, self.study = plan, study or _study(plan, _MemoryJournal(journal(plan)))

    def __repr__(self) -> str:
        return f"Sweep({self.plan.name!r}: {len(self.study.trials)} of {self.plan.trials} trials)"

    @property
    def best(self) -> RunConfig | None:
        """Config of the completed trial with the highest score, or None; other seeds may reach other scores."""
        done = {t.value: t for t in reversed(self.study.trials) if t.state.name == "COMPLETE" and t.value is not None}
        return self.plan.config(values_of(done[max(done)])) if done else None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per trial: its run, state, score, number of steps, and chosen values."""
        score = f"eval {self.plan.score}"
        return [
            {"trial": t.number, "run": run_name(self.plan, t.number), "state": t.state.name.lower(), score: t.value,
             "steps": t.user_attrs.get("steps"), **values_of(t), "message": t.user_attrs.get("message", "")}
            for t in self.study.trials
        ]  # fmt: skip

    def table(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.rows())


def values_of(trial: Any) -> dict[str, Any]:
    """Return the values that `suggest` chose for an Optuna trial."""
    return {name: json.loads(value) if isinstance(value, str) else value for name, value in trial.params.items()}


def run_name(plan: Plan, number: int) -> str:
    return f"{plan.name}-t{number:03d}"


def trials(search: Sweep) -> list[TrialJob]:
    """Return the runs of all trials so far, as jobs."""
    configs = [search.plan.config(values_of(t), run_name(search.plan, t.number)) for t in search.study.trials]
    return [TrialJob(config, config.non_defaults()) for config in configs]


def journal(plan: Plan) -> bytes:
    """Return the complete lines of Optuna's journal, from this machine or, if another machine wrote last, the store.

    Raises `UserError`.
    """
    content = b""
    with contextlib.suppress(FileNotFoundError):
        content = (plan.folder / JOURNAL).read_bytes()
    if plan.base.store is not None:
        store = open_store(plan.base.store)
        with readable(store), contextlib.suppress(MissingFile):
            _, last = lease.read(store, plan.folder.name)
            if last is not None and last.owner != lease.known_owner(plan.folder):
                content = store.read(f"{plan.folder.name}/{JOURNAL}", JOURNAL_BYTES)
    return content[: content.rfind(b"\n") + 1]


class _MemoryJournal:
    """Optuna journal backend in memory, filled with the content of a journal file."""

    def __init__(self, content: bytes) -> None:
        self._logs: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._logs += logs


def writable(plan: Plan) -> Sweep:
    """Open the search to continue it, from the journal here or in the store. The caller holds the folder's lock."""
    optuna: Any = need("optuna", "scale")
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_atomic(plan.folder / JOURNAL, journal(plan))  # without an incomplete last line, which would corrupt the next
    return Sweep(plan, _study(plan, optuna.storages.journal.JournalFileBackend(str(plan.folder / JOURNAL))))


def _study(plan: Plan, backend: Any) -> optuna.Study:
    optuna: Any = need("optuna", "scale")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    steps, kinds = plan.base.total_steps, optuna.pruners
    pruners = {
        "median": lambda: kinds.MedianPruner(n_startup_trials=4, n_warmup_steps=steps // 4),  # early scores are noisy
        "hyperband": lambda: kinds.HyperbandPruner(min_resource=max(1, steps // 9), max_resource=steps),
        "none": kinds.NopPruner,
    }
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(backend), study_name=plan.name, direction="maximize",
        load_if_exists=True, pruner=pruners[plan.pruner](),
    )  # fmt: skip


def sweep(
    path: str | Path | Mapping[str, Any],
    *,
    at_once: int | None = None,
    on: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    name: str | None = None,
    trust: bool = False,
    on_progress: Callable[[Sweep], None] | None = None,
) -> Sweep:
    """Search hyperparameters as described by the YAML file at `path`, or by the same content as a mapping (see above).

    Run names start with `name` (default: the file's). Trials run here or `on` a cluster, as in `kit.batch`. Ctrl-C
    stops all trials with a checkpoint; call `sweep` again to continue. `on_progress` is called twice a second with the
    search; default: a progress bar. `trust` as in `kit.train`. Raises `UserError`.
    """
    import warnings

    need("optuna", "scale")
    planned, engine = plan(path, name, trust, at_once=at_once, on=on, cpus=cpus, gpus=gpus)
    check_stores([planned.base.store])
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Optuna warns that multivariate TPE and the journal are experimental
        if engine.on is None:
            room, place = slots(planned.kinds, planned.trials, engine.at_once), _on_this_machine
        else:
            from kit.scale.cluster import cluster

            ray_cluster = stack.enter_context(cluster(engine))
            room, place = engine.at_once or ray_cluster.room, ray_cluster.remote
        planned.folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(directory.lock(planned.folder))
        search, store_folder = stack.enter_context(_leased_search(planned))
        _search(search, room, place, stack.enter_context(_progress(search, on_progress)), store_folder)
    return search


@contextlib.contextmanager
def _leased_search(plan: Plan) -> Iterator[tuple[Sweep, StoreFolder | None]]:
    """Wait until no other machine runs the search; yield it, and its folder in the store (None without a store)."""
    if plan.base.store is None:
        yield writable(plan), None
        return
    started = time.time()
    with readable(open_store(plan.base.store)):
        while (held_s := lease.held_for(plan.base.store, plan.folder.name, plan.folder)) > 0:
            until = utc(time.time() + held_s)
            print(since(f"another machine runs the search {plan.name!r} (until {until})", started), flush=True)
            time.sleep(min(held_s, HELD_S))
    search = writable(plan)
    store_folder = StoreFolder(plan.base.store, plan.folder, plan.folder.name, f"search {plan.name}")
    try:
        yield search, store_folder
    finally:
        if error := store_folder.finish({JOURNAL: (plan.folder / JOURNAL).read_bytes()}):
            print(f"{plan.folder / JOURNAL}: {error}", flush=True)


def _on_this_machine(job: StoredWork) -> Work:
    return job


def _search(
    search: Sweep,
    at_once: int,
    place: Callable[[StoredWork], Work],
    on_progress: Callable[[Sweep], None],
    store_folder: StoreFolder | None,
) -> None:
    """Run all trials, `at_once` side by side. `place` makes a job that runs here or on the cluster.

    The journal with a trial's values is copied to the store before its run starts. Otherwise another machine could
    choose other values for the same trial, whose name the run in the store has already.
    """
    import optuna

    study, planned, threads = search.study, search.plan, max(1, limits.usable_cores() // at_once)
    unfinished = [optuna.Trial(study, t._trial_id) for t in study.trials if t.state.name == "RUNNING"]
    running: list[_RunningTrial] = []
    try:
        while True:
            while len(running) < at_once and (unfinished or len(study.trials) < planned.trials):
                trial = unfinished.pop(0) if unfinished else _next_trial(search)
                values = suggest(trial, planned.space)
                if store_folder is not None:
                    store_folder.put(JOURNAL, now=True)
                started = _start(search, trial, values, place, threads, on_progress)
                running += [started] if started else []
            on_progress(search)
            if store_folder is not None:
                store_folder.put(JOURNAL)
            if not running:
                return
            running = [each for each in running if not _update(search, each, threads)]
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        for each in running:
            each.work.stop()
        for each in running:
            each.work.wait(STOPPING_S)
        raise


def _next_trial(search: Sweep) -> optuna.Trial:
    """Create the next trial; its values depend only on its number and on earlier scores."""
    import optuna

    seed = SEEDS * search.plan.seed + len(search.study.trials)
    search.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
    return search.study.ask()


def _start(
    search: Sweep,
    trial: optuna.Trial,
    values: Mapping[str, Any],
    place: Callable[[StoredWork], Work],
    threads: int,
    on_progress: Callable[[Sweep], None],
) -> _RunningTrial | None:
    """Start or resume the run of `trial`; on an error, record the trial as failed and return None."""
    plan = search.plan
    try:
        config = plan.config(values, run_name(plan, trial.number))
        running = _RunningTrial(trial, place(TrialJob(config, config.non_defaults(), score=plan.score)))
        starter = Starter()
        while not starter.begin(running.work, threads, 1):
            running.set_note(running.work.note)
            on_progress(search)
            time.sleep(POLL_S)
    except (UserError, StoreError) as error:
        _record(search, trial, "FAIL", None, 0, str(error))
        return None
    return running


def at_common_steps(scores: Sequence[Sequence[float]], every: int) -> list[tuple[int, float]]:
    """Round the steps in `scores`, [[step, score], ...], down to multiples of `every`, so that trials can be compared.

    A trial evaluates at the end of the iteration (n_steps × n_envs steps) that reaches a multiple of `every`. If one
    iteration passes several multiples, all but the last get the previous score.
    """
    common: list[tuple[int, float]] = []
    for step, score in scores:
        last, reached = (common[-1] if common else (0, 0.0)), int(step // every * every)
        common += [(between, last[1]) for between in range(last[0] + every, reached, every) if common]
        common += [(reached, score)] if reached > last[0] else []
    return common


def _update(search: Sweep, running: _RunningTrial, threads: int) -> bool:
    """Report a trial's new scores to Optuna and stop the trial if Optuna prunes it; return whether it has ended."""
    trial, work = running.trial, running.work
    ended = not work.is_working()
    now = work.row()
    running.set_note(now["message"] if now["state"] == "waiting" else "")
    scores, steps = now.get("scores", []), now["step"]
    broken = next((f"its score was {score} at step {step:,}" for step, score in scores if not math.isfinite(score)), "")
    behind = False
    for step, score in [] if broken else at_common_steps(scores, search.plan.eval_every)[running.reported :]:
        running.reported += 1
        trial.report(score, step)
        behind = behind or (not ended and trial.should_prune())
    if (broken or behind) and not ended and not running.stopped:
        running.stopped = True
        work.stop()
    if not ended:
        return False
    if broken:  # Optuna's sampler cannot use scores that are not finite
        _record(search, trial, "FAIL", None, steps, broken)
    elif now["state"] == "finished" and scores:
        _record(search, trial, "COMPLETE", scores[-1][1], steps)
    elif running.stopped:
        _record(search, trial, "PRUNED", None, steps, f"behind the others at step {steps:,}")
    elif now["state"] == "interrupted" and running.starts < STARTS:  # killed, or at its session limit: resume it
        running.starts += 1
        work.start(threads, 1)
        return False
    else:
        _record(search, trial, "FAIL", None, steps, now["message"] or "it was never evaluated")
    return True


def _record(search: Sweep, trial: optuna.Trial, state: str, score: float | None, steps: int, message: str = "") -> None:
    """Write a trial's final state, score, steps and message into the study."""
    import optuna

    trial.set_user_attr("steps", steps)
    trial.set_user_attr("message", message)
    search.study.tell(trial, score, state=optuna.trial.TrialState[state])


@contextlib.contextmanager
def _progress(search: Sweep, on_progress: Callable[[Sweep], None] | None) -> Iterator[Callable[[Sweep], None]]:
    """Yield `on_progress` or, if it is None, a function that updates a progress bar over trials."""
    if on_progress is not None:
        yield on_progress
        return
    with progress_bar(total=search.plan.trials, unit="trial") as shown:

        def show(now: Sweep) -> None:
            states = [trial.state.name for trial in now.study.trials]
            pruned, failed = states.count("PRUNED"), states.count("FAIL")
            done = states.count("COMPLETE") + pruned + failed
            best = max((t.value for t in now.study.trials if t.value is not None), default=None)
            text = f"{pruned} pruned" + (f", {failed} failed" if failed else "")
            waiting = [t.user_attrs.get("message") for t in now.study.trials if t.state.name == "RUNNING"]
            text += "".join(f"; one waiting: {note}" for note in waiting if note)
            shown.set_description_str(text + (f", best {best:.3g}" if best is not None else ""), refresh=False)
            shown.update(done - shown.n)

        yield show
