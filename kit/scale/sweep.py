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
values in a journal file, `sweep.sweep/journal.log` in runs_dir, with a copy in the store. If a search is started again,
also on another machine, it continues from the journal, and its runs from their checkpoints. A trial's score is the
task's `score` metric, such as success rate or mean return, in the last evaluation of its run.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import UserError, need
from kit.machine.progress import add_earlier, progress_bar
from kit.runs import directory
from kit.runs.status import Status
from kit.scale.background import Background, JobRow
from kit.scale.batch import check_stores, slots
from kit.scale.store_folder import StoreFolder
from kit.scale.study import (
    JOURNAL,
    Plan,
    Sweep,
    TrialJob,
    check_base,
    check_space,
    plan,
    run_name,
    suggest,
    trial_rows,
    writable,
)
from kit.scale.work import AGAIN_S, HELD_S, POLL_S, Engine, Results, StoredWork, Work, run_all, since, until
from kit.stores import lease, open_store
from kit.stores.pull import readable

if TYPE_CHECKING:
    import optuna

SEEDS = 100_003
"""The sampler's seed for a trial is `SEEDS` * (the search's seed) + (trial number), modulo 2**32."""


@dataclass
class _OpenTrial:
    """A trial that has not ended."""

    trial: optuna.Trial
    job: TrialJob
    work: Work
    """`job` itself or, on a cluster, the object that runs `job` there."""
    reported: int = 0
    """Number of scores reported to Optuna."""


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
    """Search hyperparameters. `path`: a YAML file (see the module), or its content as a mapping.

    Run names start with `name` (default: the file's name). Trials run on this machine or `on` a cluster, as in
    `kit.batch`. Ctrl-C stops all trials with a checkpoint; call `sweep` again to continue. `on_progress` is called
    twice a second with the search; default: a progress bar. `trust` as in `kit.train`. Raises `UserError`.
    """
    return _run(*_planned(path, name, trust, at_once=at_once, on=on, cpus=cpus, gpus=gpus), on_progress)


def launch_sweep(
    path: str | Path | Mapping[str, Any], *, name: str | None = None, trust: bool = False, **resources: Any
) -> Background[Sweep]:
    """Like `kit.sweep`, but return at once: a thread runs the search. `kit.ui.runs` shows it, `wait()` waits.

    `resources`: at_once, on, cpus and gpus, as in `kit.sweep`.
    """
    planned, engine = _planned(path, name, trust, **resources)

    def rows(latest: Sweep | None) -> list[JobRow]:
        return [] if latest is None else trial_rows(latest)

    title = f"search {planned.name} in {planned.base.runs_dir}"
    return Background(title, rows, partial(_run, planned, engine), partial(_bar, planned.trials), planned).start()


def _planned(
    path: str | Path | Mapping[str, Any], name: str | None, trust: bool, **resources: Any
) -> tuple[Plan, Engine]:
    """Read a search and check its store. Raises `UserError`."""
    need("optuna", "scale")
    planned, engine = plan(path, name, trust, **resources)
    check_stores([planned.base.store])
    return planned, engine


def _run(planned: Plan, engine: Engine, on_progress: Callable[[Sweep], None] | None) -> Sweep:
    import optuna

    # for good: `warnings.catch_warnings` in a thread would undo what the user's code sets meanwhile
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # multivariate TPE, the journal
    warnings.filterwarnings("ignore", "The reported value is ignored")  # scores are reported again after a restart
    with contextlib.ExitStack() as stack:
        if engine.on is None:
            room, place = slots(planned.kinds, planned.trials, engine.at_once), lambda job: job
        else:
            from kit.scale.cluster import cluster

            ray_cluster = stack.enter_context(cluster(engine))
            room, place = engine.at_once or ray_cluster.room, ray_cluster.remote
        planned.folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(directory.lock(planned.folder))
        on_progress = on_progress or stack.enter_context(_bar(planned.trials))
        search, store_folder = stack.enter_context(_leased_search(planned, on_progress))
        check_base(search)
        check_space(search)
        _search(search, room, place, on_progress, store_folder)
    return search


@contextlib.contextmanager
def _leased_search(plan: Plan, on_progress: Callable[[Sweep], None]) -> Iterator[tuple[Sweep, StoreFolder | None]]:
    """Wait until no other machine runs the search; yield the search, and its folder in the store (or None).

    Meanwhile `on_progress`, which may stop the search, is called with the other machine's search.
    """
    if plan.base.store is None:
        yield writable(plan), None
        return
    started = time.time()
    with readable(open_store(plan.base.store)):
        while (held_s := lease.held_for(plan.base.store, plan.folder.name, plan.folder)) > 0:
            print(since(f"another machine runs the search {plan.name!r} ({until(held_s)})", started), flush=True)
            look_again, other = time.monotonic() + min(held_s, HELD_S), Sweep(plan)
            while time.monotonic() < look_again:
                on_progress(other)
                time.sleep(POLL_S)
    search = writable(plan)
    store_folder = StoreFolder(plan.base.store, plan.folder, plan.folder.name, f"search {plan.name}")
    try:
        yield search, store_folder
    finally:
        if error := store_folder.finish({JOURNAL: (plan.folder / JOURNAL).read_bytes()}):
            print(f"{plan.folder / JOURNAL}: {error}", flush=True)


def _search(
    search: Sweep,
    at_once: int,
    place: Callable[[StoredWork], Work],
    on_progress: Callable[[Sweep], None],
    store_folder: StoreFolder | None,
) -> None:
    """Run all trials, `at_once` side by side. `place` turns a job into one that runs on this machine or the cluster.

    The journal with a trial's values is copied to the store before the trial's run starts. Otherwise another machine
    could choose other values for this trial, although the store already holds a run with the trial's name.
    """
    import optuna

    study, planned = search.study, search.plan
    unfinished = [optuna.Trial(study, t._trial_id) for t in study.trials if t.state.name == "RUNNING"]
    opened: list[_OpenTrial] = []

    def update() -> None:
        opened[:] = [each for each in opened if not _update(search, each)]

    def next_job() -> Work | None:
        update()  # so that a trial's values depend on all scores so far
        while unfinished or len(study.trials) < planned.trials:
            trial = unfinished.pop(0) if unfinished else _next_trial(search)
            values = suggest(trial, planned.space)
            # without its values in the store, another machine would draw others for this trial
            while store_folder is not None and not store_folder.put(JOURNAL, now=True):
                update()
                on_progress(search)
                time.sleep(AGAIN_S)
            try:
                config = planned.config(values, run_name(planned, trial.number))
            except UserError as error:
                _record(search, trial, "FAIL", None, 0, str(error))
                continue
            job = TrialJob(config, config.non_defaults(), score=planned.score)
            opened.append(_OpenTrial(trial, job, place(job)))
            return opened[-1].work
        return None

    def show(_: Results) -> None:
        update()
        on_progress(search)
        if store_folder is not None:
            store_folder.put(JOURNAL)

    run_all([], at_once, show, next_job=next_job)


def _next_trial(search: Sweep) -> optuna.Trial:
    """Create the next trial. Its values depend only on the seed, its number, and the scores so far."""
    import optuna

    seed = (SEEDS * search.plan.seed + len(search.study.trials)) % 2**32
    search.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
    return search.study.ask()


def _update(search: Sweep, opened: _OpenTrial) -> bool:
    """Report a trial's new scores to Optuna; stop the trial if Optuna prunes it. Return whether the trial has ended."""
    trial, job, work = opened.trial, opened.job, opened.work
    working = work.is_working()
    row = work.row()
    note = row["message"] if row["state"] == "waiting" else ""
    if note != trial.user_attrs.get("message", ""):  # `kit batch status` reads the note from the journal
        trial.set_user_attr("message", note)
    if row["state"] == "waiting":
        return False
    scores, steps = row.get("scores", []), row["step"]
    broken = next((f"its score was {score} at step {step:,}" for step, score in scores if not math.isfinite(score)), "")
    behind = False
    for step, score in [] if broken else scores[opened.reported :]:
        opened.reported += 1
        # pruners compare scores at equal steps, but an evaluation runs up to an iteration after it is due: round down
        trial.report(score, int(step // search.plan.eval_every * search.plan.eval_every))
        behind = behind or (working and trial.should_prune())
    if (broken or behind) and working and not job.stopped:
        job.stopped = True
        work.stop()
    if working or (not work.error and work.should_restart()):
        return False
    if broken:  # Optuna's sampler cannot use scores that are not finite
        _record(search, trial, "FAIL", None, steps, broken)
    elif row["state"] == "finished" and scores:
        _record(search, trial, "COMPLETE", scores[-1][1], steps)
    elif job.stopped:
        Status.mark_pruned(job.path)
        _record(search, trial, "PRUNED", None, steps, f"pruned at step {steps:,}: behind the other trials")
    else:
        _record(search, trial, "FAIL", None, steps, work.error or row["message"] or "it was never evaluated")
    return True


def _record(search: Sweep, trial: optuna.Trial, state: str, score: float | None, steps: int, message: str = "") -> None:
    import optuna

    trial.set_user_attr("steps", steps)
    trial.set_user_attr("message", message)
    search.study.tell(trial, score, state=optuna.trial.TrialState[state])


@contextlib.contextmanager
def _bar(trials: int) -> Iterator[Callable[[Sweep], None]]:
    """Yield a function that updates a progress bar over `trials`."""
    begun = False
    with progress_bar(total=trials, unit="trial") as shown:

        def show(search: Sweep) -> None:
            nonlocal begun
            states = [trial.state.name for trial in search.study.trials]
            pruned, failed = states.count("PRUNED"), states.count("FAIL")
            done = states.count("COMPLETE") + pruned + failed
            best = max((t.value for t in search.study.trials if t.value is not None), default=None)
            text = f"{pruned} pruned" + (f", {failed} failed" if failed else "")
            waiting = [t.user_attrs.get("message") for t in search.study.trials if t.state.name == "RUNNING"]
            text += "".join(f"; one waiting: {note}" for note in waiting if note)
            shown.set_description_str(text + (f", best {best:.3g}" if best is not None else ""), refresh=False)
            if not begun:
                begun = True
                add_earlier(shown, done)
            shown.update(done - shown.n)

        yield show
