"""A search for hyperparameters: Optuna chooses them, every trial is an ordinary run. On one machine.

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
`sweep.sweep/journal.log` beside the runs. Started again, a sweep goes on: its runs from their checkpoints, its choices
from the journal. A trial is judged by the task's own score in its evaluations.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import envs
from kit.config import RunConfig, read_yaml
from kit.errors import UserError, need
from kit.format.files import GrowingRows
from kit.machine import limits
from kit.measure.auto import resolve
from kit.presets import OF_POLICY
from kit.runs import api, directory
from kit.runs.batch import POLL_S, STOPPING_S, slots
from kit.runs.run import Run

if TYPE_CHECKING:
    import optuna
    import pandas as pd

TRIALS, STARTS = 20, 3
"""Trials, and how often the run of one is begun or resumed before it counts as failed."""
SEEDS = 100_003
"""From one sweep's choices to another's."""
PRUNERS = ("median", "hyperband", "none")
SETTINGS = ("trials", "seed", "pruner", "space")


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

    @property
    def folder(self) -> Path:
        return Path(self.base.runs_dir).expanduser() / f"{self.name}.sweep"

    @property
    def score(self) -> str:
        """By which evaluations judge a policy."""
        return str(getattr(envs.find(self.base.env), "score", "mean_return"))

    def config(self, chosen: Mapping[str, Any], run_name: str | None = None) -> RunConfig:
        """The base with what was chosen."""
        fields, overrides = RunConfig().to_dict(), dict(self.base.overrides)
        own = {name: value for name, value in chosen.items() if name in fields}
        policy = {name: value for name, value in chosen.items() if name in OF_POLICY}
        overrides |= {name: value for name, value in chosen.items() if name not in own and name not in policy}
        if policy:
            overrides["policy_kwargs"] = overrides.get("policy_kwargs", {}) | policy
        return self.base.replace(**{"overrides": overrides, **own, "run_name": run_name})


def plan(path: str | Path | Mapping[str, Any], name: str | None = None) -> tuple[Plan, int | None]:
    """What a file, or the same as a mapping, asks for, and how many trials side by side. Raises `UserError`."""
    content = dict(path) if isinstance(path, Mapping) else read_yaml(path)
    path = (name or "sweep") if isinstance(path, Mapping) else path
    asked = content.pop("sweep", None) if isinstance(content, dict) else None
    if not isinstance(asked, dict) or not isinstance(asked.get("space"), dict) or not asked["space"]:
        raise UserError(f"{path} has no `sweep:` with a `space:` of names and choices; see `kit.scale.sweep`.")
    for name in asked.keys() - set(SETTINGS):
        raise UserError(f"{path}: sweep {name}={asked[name]!r} is unknown; valid are {', '.join(SETTINGS)}.")
    at_once = content.pop("at_once", None)
    given = Plan(name or re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem), RunConfig.from_dict(content), **asked)
    if given.pruner not in PRUNERS:
        raise UserError(f"{path}: pruner={given.pruner!r} is unknown; valid are {', '.join(PRUNERS)}.")
    if isinstance(given.trials, bool) or not isinstance(given.trials, int) or given.trials < 1:
        raise UserError(f"{path}: trials={given.trials!r} must be a whole number of at least 1.")
    ends: list[dict[str, Any]] = [{}, {}]
    for name, choice in given.space.items():
        low, high = _ends(name, choice)
        ends[0][name], ends[1][name] = low, high
    resolve(given.config(ends[0]), fits=lambda config: int(config.n_envs))
    for name, value in ends[1].items():  # each alone: not every combination must be possible
        with (
            contextlib.suppress(UserError) if name in ("n_envs", "n_steps", "batch_size") else contextlib.nullcontext()
        ):
            resolve(given.config({name: value}), fits=lambda config: int(config.n_envs))
    return given, at_once


def _ends(name: str, choice: Any) -> tuple[Any, Any]:
    """The first and the last value. Raises `UserError`."""
    if isinstance(choice, list) and choice:
        return choice[0], choice[-1]
    known = isinstance(choice, dict) and {"min", "max"} <= choice.keys() <= {"min", "max", "log", "step"}
    if (
        not known
        or not all(type(choice[end]) in (int, float) for end in ("min", "max"))
        or choice["min"] > choice["max"]
    ):
        raise UserError(
            f"sweep {name}={choice!r} is no choice; write a list, or {{min: 1.0e-4, max: 1.0e-2, log: true}}."
        )
    return choice["min"], choice["max"]


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
class _Working:
    """A trial whose run is at work, or was."""

    trial: optuna.Trial
    run: Run
    rows: GrowingRows
    starts: int = 1
    seen: int = 0
    """Rows that are reported."""
    score: float | None = None
    pruned: bool = False

    @property
    def steps(self) -> int:
        return int(self.run.status()["step"])


class Sweep:
    """A sweep as it stands: `table()`, `best` (a config, ready to train), `study` (Optuna's)."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.study = plan, _study(plan)

    def __repr__(self) -> str:
        return f"Sweep({self.plan.name!r}: {len(self.study.trials)} of {self.plan.trials} trials)"

    @property
    def best(self) -> RunConfig | None:
        """Of the best finished trial; its score is the task's own, the mean over all seeds not known."""
        done = [t for t in self.study.trials if t.state.name == "COMPLETE"]
        if not done:
            return None
        return self.plan.config(values_of(max(done, key=lambda trial: trial.value or 0.0)))

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


def _study(plan: Plan) -> optuna.Study:
    optuna: Any = need("optuna", "scale")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plan.folder.mkdir(parents=True, exist_ok=True)
    journal = plan.folder / "journal.log"
    if journal.exists():  # a line that a kill cut off would spoil the next
        whole = journal.read_bytes()
        if not whole.endswith(b"\n"):
            journal.write_bytes(whole[: whole.rfind(b"\n") + 1])
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
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
    name: str | None = None,
    on_progress: Callable[[Sweep], None] | None = None,
) -> Sweep:
    """Search as the YAML file at `path`, or the same as a mapping, says (see above); trials are called after `name`, by
    default the file's. Ctrl-C stops all trials with a checkpoint; called again, the sweep goes on. `on_progress` is
    told twice a second, by default a progress bar. Raises `UserError`."""
    import warnings

    need("optuna", "scale")
    given, side_by_side = plan(path, name)
    side_by_side = slots([given.base], given.trials, side_by_side if at_once is None else at_once)
    with warnings.catch_warnings():  # multivariate TPE and the journal are called experimental
        warnings.simplefilter("ignore")
        found = Sweep(given)
        with directory.lock(given.folder), _told(found, on_progress) as tell:
            _search(found, side_by_side, tell)
    return found


def _search(found: Sweep, at_once: int, tell: Callable[[Sweep], None]) -> None:
    import optuna

    study, given, threads = found.study, found.plan, max(1, limits.usable_cores() // at_once)
    left_over = [optuna.Trial(study, t._trial_id) for t in study.trials if t.state.name == "RUNNING"]
    working: list[_Working] = []
    try:
        while True:
            while len(working) < at_once and (left_over or len(study.trials) < given.trials):
                begun = _begin(found, left_over.pop(0) if left_over else _ask(found), threads)
                working += [begun] if begun else []
            tell(found)
            if not working:
                return
            working = [at_work for at_work in working if not _over(found, at_work)]
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        for at_work in working:
            at_work.run.stop()
        for at_work in working:
            at_work.run.wait(STOPPING_S)
        raise


def _ask(found: Sweep) -> optuna.Trial:
    """The next trial. Its choice hangs on its number and on what is known by then, not on when the search was begun."""
    import optuna

    seed = SEEDS * found.plan.seed + len(found.study.trials)
    found.study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
    return found.study.ask()


def _begin(found: Sweep, trial: optuna.Trial, threads: int) -> _Working | None:
    """The run of `trial`, begun or resumed; None of one that cannot be, which counts as failed."""
    chosen, name = suggest(trial, found.plan.space), run_name(found.plan, trial.number)
    try:
        config = found.plan.config(chosen, name)
        config = config.replace(threads=threads) if config.threads == "auto" else config
        path = Path(config.runs_dir).expanduser() / name
        run = Run(path) if (path / "config.yaml").is_file() else api.launch(config)
        if not run.is_working() and run.status()["state"] != "finished":
            run = api.resume(path, background=True)
    except UserError as error:
        _tell(found, trial, "FAIL", None, 0, str(error))
        return None
    return _Working(trial, run, GrowingRows(run.path / "metrics.jsonl", ("step", f"eval/{found.plan.score}")))


def _over(found: Sweep, at_work: _Working) -> bool:
    """Report what evaluations say; whether the trial is done with."""

    now = at_work.run.status()
    ended = not at_work.run.is_working(now)
    at_work.rows.read()
    name = f"eval/{found.plan.score}"
    for row in at_work.rows.rows[at_work.seen :]:
        if name in row and row["step"] > 0:
            at_work.score = float(row[name])
            at_work.trial.report(at_work.score, row["step"])
            if not ended and not at_work.pruned and at_work.trial.should_prune():
                at_work.pruned = True
                at_work.run.stop()
    at_work.seen = len(at_work.rows.rows)
    if not ended:
        return False
    if now["state"] == "finished" and at_work.score is not None:
        _tell(found, at_work.trial, "COMPLETE", at_work.score, at_work.steps)
    elif at_work.pruned:
        _tell(found, at_work.trial, "PRUNED", None, at_work.steps, f"behind the others at step {at_work.steps:,}")
    elif now["state"] == "interrupted" and at_work.starts < STARTS:  # killed, or out of time: it goes on
        at_work.starts += 1
        api.resume(at_work.run.path, background=True)
        return False
    else:
        message = now["message"] or "it was never evaluated"
        _tell(found, at_work.trial, "FAIL", None, at_work.steps, message)
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
    from tqdm.auto import tqdm

    with tqdm(total=found.plan.trials, unit="trial", dynamic_ncols=True) as shown:

        def tell(now: Sweep) -> None:
            states = [trial.state.name for trial in now.study.trials]
            pruned, failed = states.count("PRUNED"), states.count("FAIL")
            done = states.count("COMPLETE") + pruned + failed
            best = max((t.value for t in now.study.trials if t.value is not None), default=None)
            said = f"{pruned} pruned" + (f", {failed} failed" if failed else "")
            shown.set_description_str(said + (f", best {best:.3g}" if best is not None else ""), refresh=False)
            shown.update(done - shown.n)

        yield tell
