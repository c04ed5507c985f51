"""A search for hyperparameters: Optuna chooses them, every trial is an ordinary run.

    env: Reach                        # fields of RunConfig that hold for every trial
    total_steps: 50000
    at_once: 2                        # trials side by side; by default what fits
    sweep:
      trials: 20
      seed: 0                         # of the choice
      pruner: median                  # or hyperband, or none: whether trials that lag behind are ended early
      space:                          # fields of RunConfig, hyperparameters, or what is said of the network
        learning_rate: {min: 1.0e-4, max: 3.0e-3, log: true}
        n_steps: {min: 64, max: 512, step: 64}
        net_arch: [[64, 64], [128, 128]]

Trial 7 of sweep.yaml is the run `sweep-t007`: it can be watched, resumed, branched from. What Optuna knows lies in
`sweep.sweep/journal.log` beside the runs, and in their store. Started again, also on another machine, a sweep goes on:
its runs from their checkpoints, its choices from the journal. A trial is judged by the task's own score in its
evaluations.
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
from kit.scale.batch import Job, reachable, seen_by_all, slots
from kit.scale.shelf import Shelf
from kit.scale.work import HELD_S, POLL_S, STOPPING_S, Engine, Kept, Patience, Work, since, utc
from kit.stores import MissingFile, StoreError, lease, open_store
from kit.stores.pull import readable
from kit.trust import mark_source, permit

if TYPE_CHECKING:
    import optuna
    import pandas as pd

TRIALS, STARTS = 20, 3
"""Trials, and how often the run of one is begun or resumed before it counts as failed."""
SEEDS = 100_003
"""From one sweep's choices to another's."""
TOGETHER = {"n_envs", "n_steps", "batch_size"}
"""Of which one decides whether another can be: a trial that chooses what cannot be counts as failed."""
PRUNERS = ("median", "hyperband", "none")
SETTINGS = ("trials", "seed", "pruner", "space")
JOURNAL, JOURNAL_BYTES = "journal.log", 2**30
"""Its name, and the most that is read of it from a store."""


@dataclass(frozen=True)
class Plan:
    """What a file asks for."""

    name: str
    base: RunConfig
    space: dict[str, Any]
    """Name -> what may be chosen: a list, or {min, max, log, step}."""
    trials: int = TRIALS
    seed: int = 0
    pruner: str = "median"
    kinds: tuple[RunConfig, ...] = ()
    """Resolved configs, one for each device that a choice trains on."""

    @property
    def folder(self) -> Path:
        return Path(self.base.runs_dir).expanduser() / f"{self.name}.sweep"

    @property
    def score(self) -> str:
        """By which evaluations judge a policy."""
        from kit import envs

        return str(getattr(envs.find(self.base.env), "score", "mean_return"))

    @property
    def eval_every(self) -> int:
        """Steps between the moments at which trials are compared."""
        every = self.base.eval_every
        return every if isinstance(every, int) and every > 0 else max(1, self.base.total_steps // 10)

    def config(self, chosen: Mapping[str, Any], run_name: str | None = None) -> RunConfig:
        """The base with what was chosen: in this file, or else by a journal, which may come from a store."""
        from kit.trainers.arguments import nested

        own = {name: value for name, value in chosen.items() if name in RunConfig().to_dict()}
        own = mark_source(own, self.folder / JOURNAL, of_run=True)
        overrides = {name: value for name, value in chosen.items() if name not in own}
        return self.base.replace(
            **{"overrides": nested({**self.base.overrides, **overrides}), **own, "run_name": run_name}
        )


def plan(
    path: str | Path | Mapping[str, Any], name: str | None = None, trust: bool = False, **given: Any
) -> tuple[Plan, Engine]:
    """What a file, or the same as a mapping, asks for, and where its trials are done, if not `given`. Raises
    `UserError`."""
    from kit.trainers import planning

    content = dict(path) if isinstance(path, Mapping) else read_yaml(path)
    path = (name or "sweep") if isinstance(path, Mapping) else path
    asked = content.pop("sweep", None) if isinstance(content, dict) else None
    if not isinstance(asked, dict) or not isinstance(asked.get("space"), dict) or not asked["space"]:
        raise UserError(f"{path} has no `sweep:` with a `space:` of names and choices; see `kit.scale.sweep`.")
    for name in asked.keys() - set(SETTINGS):
        raise UserError(f"{path}: sweep {name}={asked[name]!r} is unknown; valid are {', '.join(SETTINGS)}.")
    engine = Engine.of(content, **given)
    content = seen_by_all(content) if engine.on else content
    found = Plan(name or folder_name(Path(path).stem), RunConfig.from_dict(mark_source(content, path)), **asked)
    if found.pruner not in PRUNERS:
        raise UserError(f"{path}: pruner={found.pruner!r} is unknown; valid are {', '.join(PRUNERS)}.")
    if isinstance(found.trials, bool) or not isinstance(found.trials, int) or found.trials < 1:
        raise UserError(f"{path}: trials={found.trials!r} must be a whole number of at least 1.")
    values = {
        name: [mark_source({name: value}, path)[name] for value in _values(name, choice)]
        for name, choice in found.space.items()
    }
    tried = [{name: some[0] for name, some in values.items()}]
    tried += [{name: value} for name in values.keys() - TOGETHER for value in values[name]]
    kinds = {}
    for config in map(found.config, tried):
        permit(config, trust)
        resolved = planning.plan(config).config
        kinds[resolved.device] = resolved
    return replace(found, kinds=tuple(kinds.values())), engine


def _values(name: str, choice: Any) -> list[Any]:
    """Those of a list, the ends of a range. Raises `UserError`."""
    if isinstance(choice, list) and choice:
        return choice
    known = isinstance(choice, dict) and {"min", "max"} <= choice.keys() <= {"min", "max", "log", "step"}
    if (
        not known
        or not all(type(choice[end]) in (int, float) for end in ("min", "max"))
        or choice["min"] > choice["max"]
    ):
        raise UserError(
            f"sweep {name}={choice!r} is no choice; write a list, or {{min: 1.0e-4, max: 1.0e-2, log: true}}."
        )
    return [choice["min"], choice["max"]]


def suggest(trial: optuna.Trial, space: Mapping[str, Any]) -> dict[str, Any]:
    """One value for each name."""
    chosen = {}
    for name, choice in space.items():
        if isinstance(choice, list):  # what Optuna cannot hold, such as [64, 64], is text to it
            chosen[name] = json.loads(trial.suggest_categorical(name, [json.dumps(value) for value in choice]))
        else:
            whole = all(isinstance(choice[end], int) for end in ("min", "max"))
            ask = trial.suggest_int if whole else trial.suggest_float
            extra = {"step": choice["step"]} if "step" in choice else {}
            chosen[name] = ask(name, choice["min"], choice["max"], log=bool(choice.get("log")), **extra)
    return chosen


@dataclass
class TrialJob(Job):
    """A trial's run, whose row also says what evaluations said: `scores`, [[step, score], ...]."""

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
class _Working:
    """A trial whose run is at work, or was."""

    trial: optuna.Trial
    work: Work
    starts: int = 1
    seen: int = 0
    """Scores that are reported."""
    stopped: bool = False
    """Early, because it lags behind or its score is no number."""

    def says(self, note: str) -> None:
        """What it waits for, in the journal: for everybody who looks."""
        if note != self.trial.user_attrs.get("message", ""):
            self.trial.set_user_attr("message", note)


class Sweep:
    """A sweep as it stands: `table()`, `best` (a config, ready to train), `study` (Optuna's)."""

    def __init__(self, plan: Plan, study: optuna.Study | None = None) -> None:
        """Looked at, or `study`, which goes on. Looking reads a copy: whoever searches may be writing just now."""
        self.plan, self.study = plan, study or _study(plan, _Copy(journal(plan)))

    def __repr__(self) -> str:
        return f"Sweep({self.plan.name!r}: {len(self.study.trials)} of {self.plan.trials} trials)"

    @property
    def best(self) -> RunConfig | None:
        """Of the finished trial with the highest score; what another seed would reach is not known."""
        done = {t.value: t for t in reversed(self.study.trials) if t.state.name == "COMPLETE" and t.value is not None}
        return self.plan.config(values_of(done[max(done)])) if done else None

    def rows(self) -> list[dict[str, Any]]:
        """One per trial: its run, state, score and the steps that it used; then what was chosen."""
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
    """What was chosen, as `suggest` gave it."""
    return {name: json.loads(value) if isinstance(value, str) else value for name, value in trial.params.items()}


def run_name(plan: Plan, number: int) -> str:
    return f"{plan.name}-t{number:03d}"


def trials(found: Sweep) -> list[TrialJob]:
    """The runs of all trials so far."""
    configs = [found.plan.config(values_of(t), run_name(found.plan, t.number)) for t in found.study.trials]
    return [TrialJob(config, config.non_defaults()) for config in configs]


def journal(plan: Plan) -> bytes:
    """Optuna's journal here or, if another machine wrote there last, in the store: its whole lines. Nothing is written.
    Raises `UserError`."""
    written = b""
    with contextlib.suppress(FileNotFoundError):
        written = (plan.folder / JOURNAL).read_bytes()
    if plan.base.store is not None:
        store = open_store(plan.base.store)
        with readable(store), contextlib.suppress(MissingFile):
            _, last = lease.read(store, plan.folder.name)
            if last is not None and last.owner != lease.known_owner(plan.folder):
                written = store.read(f"{plan.folder.name}/{JOURNAL}", JOURNAL_BYTES)
    return written[: written.rfind(b"\n") + 1]


class _Copy:
    """A journal in memory, as one of Optuna's backends."""

    def __init__(self, written: bytes) -> None:
        self._logs: list[dict[str, Any]] = [json.loads(line) for line in written.splitlines()]

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._logs += logs


def writable(plan: Plan) -> Sweep:
    """The search to go on with, from where it came to here or in the store: for whoever has its folder's lock."""
    optuna: Any = need("optuna", "scale")
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_atomic(plan.folder / JOURNAL, journal(plan))  # without a line that a kill cut off: it would spoil the next
    return Sweep(plan, _study(plan, optuna.storages.journal.JournalFileBackend(str(plan.folder / JOURNAL))))


def _study(plan: Plan, backend: Any) -> optuna.Study:
    optuna: Any = need("optuna", "scale")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    steps, kinds = plan.base.total_steps, optuna.pruners
    pruners = {
        "median": lambda: kinds.MedianPruner(n_startup_trials=4, n_warmup_steps=steps // 4),  # young curves say little
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
    """Search as the YAML file at `path`, or the same as a mapping, says (see above); trials are called after `name`, by
    default the file's, and done here or `on` a cluster as `kit.batch` does. Ctrl-C stops all trials with a checkpoint;
    called again, the sweep goes on. `on_progress` is told twice a second, by default a progress bar. `trust` as in
    `kit.train`. Raises `UserError`."""
    import warnings

    need("optuna", "scale")
    given, engine = plan(path, name, trust, at_once=at_once, on=on, cpus=cpus, gpus=gpus)
    reachable([given.base.store])
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # multivariate TPE and the journal are called experimental
        if engine.on is None:
            room, place = slots(given.kinds, given.trials, engine.at_once), _here
        else:
            from kit.scale.cluster import cluster

            there = stack.enter_context(cluster(engine))
            room, place = engine.at_once or there.room, there.remote
        given.folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(directory.lock(given.folder))
        found, shelf = stack.enter_context(_opened(given))
        _search(found, room, place, stack.enter_context(_told(found, on_progress)), shelf)
    return found


@contextlib.contextmanager
def _opened(plan: Plan) -> Iterator[tuple[Sweep, Shelf | None]]:
    """The search to go on with, and its folder in its store, once no other machine has it."""
    if plan.base.store is None:
        yield writable(plan), None
        return
    begun = time.time()
    with readable(open_store(plan.base.store)):
        while (held_s := lease.held_for(plan.base.store, plan.folder.name, plan.folder)) > 0:
            until = utc(time.time() + held_s)
            print(since(f"another machine has the search {plan.name!r} (until {until})", begun), flush=True)
            time.sleep(min(held_s, HELD_S))
    found, shelf = writable(plan), Shelf(plan.base.store, plan.folder, plan.folder.name, f"search {plan.name}")
    try:
        yield found, shelf
    finally:
        if trouble := shelf.finish({JOURNAL: (plan.folder / JOURNAL).read_bytes()}):
            print(f"{plan.folder / JOURNAL}: {trouble}", flush=True)


def _here(job: Kept) -> Work:
    return job


def _search(
    found: Sweep, at_once: int, place: Callable[[Kept], Work], tell: Callable[[Sweep], None], shelf: Shelf | None
) -> None:
    """Until there are as many trials as were asked for, `at_once` side by side, each where `place` puts its run. A
    choice is on the `shelf` before its run is begun: a run in the store that nobody chose would be in the way."""
    import optuna

    study, given, threads = found.study, found.plan, max(1, limits.usable_cores() // at_once)
    left_over = [optuna.Trial(study, t._trial_id) for t in study.trials if t.state.name == "RUNNING"]
    working: list[_Working] = []
    try:
        while True:
            while len(working) < at_once and (left_over or len(study.trials) < given.trials):
                trial = left_over.pop(0) if left_over else _ask(found)
                chosen = suggest(trial, given.space)
                if shelf is not None:
                    shelf.put(JOURNAL, now=True)
                begun = _begin(found, trial, chosen, place, threads, tell)
                working += [begun] if begun else []
            tell(found)
            if shelf is not None:
                shelf.put(JOURNAL)
            if not working:
                return
            working = [at_work for at_work in working if not _over(found, at_work, threads)]
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        for at_work in working:
            at_work.work.stop()
        for at_work in working:
            at_work.work.wait(STOPPING_S)
        raise


def _ask(found: Sweep) -> optuna.Trial:
    """The next trial. Its choice hangs on its number and on what is known by then, not on when the search was begun."""
    import optuna

    seed = SEEDS * found.plan.seed + len(found.study.trials)
    found.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
    return found.study.ask()


def _begin(
    found: Sweep,
    trial: optuna.Trial,
    chosen: Mapping[str, Any],
    place: Callable[[Kept], Work],
    threads: int,
    tell: Callable[[Sweep], None],
) -> _Working | None:
    """The run of `trial`, begun or resumed; None of one that cannot be, which counts as failed."""
    plan = found.plan
    try:
        config = plan.config(chosen, run_name(plan, trial.number))
        at_work = _Working(trial, place(TrialJob(config, config.non_defaults(), score=plan.score)))
        patience = Patience()
        while not patience.begin(at_work.work, threads, 1):
            at_work.says(at_work.work.note)
            tell(found)
            time.sleep(POLL_S)
    except (UserError, StoreError) as error:
        _tell(found, trial, "FAIL", None, 0, str(error))
        return None
    return at_work


def at_common_steps(scores: Sequence[Sequence[float]], every: int) -> list[tuple[int, float]]:
    """`scores`, [[step, score], ...], at the multiples of `every`, where those of all trials can be compared: a trial
    evaluates at the first end of an iteration from there on, which is n_steps × n_envs long. Where an iteration passes
    several at once, the score before it holds for those in between."""
    found: list[tuple[int, float]] = []
    for step, score in scores:
        last, reached = (found[-1] if found else (0, 0.0)), int(step // every * every)
        found += [(between, last[1]) for between in range(last[0] + every, reached, every) if found]
        found += [(reached, score)] if reached > last[0] else []
    return found


def _over(found: Sweep, at_work: _Working, threads: int) -> bool:
    """Report what evaluations say; whether the trial is done with."""
    ended = not at_work.work.is_working()
    now = at_work.work.row()
    at_work.says(now["message"] if now["state"] == "waiting" else "")
    scores = now.get("scores", [])
    broken = next((f"its score was {score} at step {step:,}" for step, score in scores if not math.isfinite(score)), "")
    behind = False
    for step, score in [] if broken else at_common_steps(scores, found.plan.eval_every)[at_work.seen :]:
        at_work.seen += 1
        at_work.trial.report(score, step)
        behind = behind or (not ended and at_work.trial.should_prune())
    if (broken or behind) and not ended and not at_work.stopped:
        at_work.stopped = True
        at_work.work.stop()
    if not ended:
        return False
    if broken:  # no sampler can do anything with it
        _tell(found, at_work.trial, "FAIL", None, now["step"], broken)
    elif now["state"] == "finished" and scores:
        _tell(found, at_work.trial, "COMPLETE", scores[-1][1], now["step"])
    elif at_work.stopped:
        _tell(found, at_work.trial, "PRUNED", None, now["step"], f"behind the others at step {now['step']:,}")
    elif now["state"] == "interrupted" and at_work.starts < STARTS:  # killed, or out of time: it goes on
        at_work.starts += 1
        at_work.work.start(threads, 1)
        return False
    else:
        _tell(found, at_work.trial, "FAIL", None, now["step"], now["message"] or "it was never evaluated")
    return True


def _tell(found: Sweep, trial: optuna.Trial, state: str, score: float | None, steps: int, message: str = "") -> None:
    import optuna

    trial.set_user_attr("steps", steps)
    trial.set_user_attr("message", message)
    found.study.tell(trial, score, state=optuna.trial.TrialState[state])


@contextlib.contextmanager
def _told(found: Sweep, on_progress: Callable[[Sweep], None] | None) -> Iterator[Callable[[Sweep], None]]:
    """`on_progress`, or a progress bar over trials."""
    if on_progress is not None:
        yield on_progress
        return
    with progress_bar(found.plan.trials, unit="trial") as shown:

        def tell(now: Sweep) -> None:
            states = [trial.state.name for trial in now.study.trials]
            pruned, failed = states.count("PRUNED"), states.count("FAIL")
            done = states.count("COMPLETE") + pruned + failed
            best = max((t.value for t in now.study.trials if t.value is not None), default=None)
            said = f"{pruned} pruned" + (f", {failed} failed" if failed else "")
            waiting = [t.user_attrs.get("message") for t in now.study.trials if t.state.name == "RUNNING"]
            said += "".join(f"; one waiting: {note}" for note in waiting if note)
            shown.set_description_str(said + (f", best {best:.3g}" if best is not None else ""), refresh=False)
            shown.update(done - shown.n)

        yield tell
