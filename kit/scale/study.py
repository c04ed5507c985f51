"""A hyperparameter search: its settings, its trials, and their record in Optuna's journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import MAY_CHANGE_ON_RESUME, RunConfig, folder_name, read_yaml
from kit.errors import UserError, check_whole, need
from kit.format.files import GrowingRows, write_atomic
from kit.runs.control import ON_REQUEST
from kit.scale.background import JobRow
from kit.scale.batch import Job, with_shared_folder
from kit.scale.work import Engine
from kit.stores import MissingFile, lease, open_store
from kit.stores.pull import readable
from kit.stores.redact import redact
from kit.trust import mark_source, permit

if TYPE_CHECKING:
    import optuna
    import pandas as pd

TRIALS = 20
"""Default number of trials."""
MAX_STARTS = 3
"""A trial counts as failed if its run is interrupted after this many starts."""
DEPENDENT = {"n_envs", "n_steps", "batch_size"}
"""Names whose valid values depend on each other. A trial with an invalid combination counts as failed; the
search is refused if the combination of each name's first value (of a range: its minimum) is invalid."""
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
    """Name of a field or hyperparameter -> its choices: a list of values, or a range {min, max, log, step}."""
    trials: int = TRIALS
    seed: int = 0
    pruner: str = "median"
    kinds: tuple[RunConfig, ...] = field(default=(), compare=False)  # their default names contain the time
    """Resolved example configs: one for each device on which a trial may train."""

    @property
    def folder(self) -> Path:
        return Path(self.base.runs_dir).expanduser() / f"{self.name}.sweep"

    @property
    def score(self) -> str:
        """Name of the evaluation metric to maximise: the task's `score`."""
        from kit import envs

        return str(getattr(envs.find(self.base.env), "score", "mean_return"))

    @property
    def eval_every(self) -> int:
        """Steps between evaluations. Pruners compare trials at multiples of this number."""
        every = self.base.eval_every
        return every if isinstance(every, int) and every > 0 else max(1, self.base.total_steps // 10)

    def config(self, values: Mapping[str, Any], run_name: str | None = None) -> RunConfig:
        """Return the base config with a trial's `values`.

        Module names are marked as read from a file (`kit.trust`), because `values` may come from a downloaded journal.
        """
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
    """Read a search from a file or a mapping; `resources` override those of the file. Raises `UserError`."""
    from kit.trainers import planning

    content = dict(path) if isinstance(path, Mapping) else read_yaml(path)
    path = (name or "sweep") if isinstance(path, Mapping) else path
    settings = content.pop("sweep", None) if isinstance(content, dict) else None
    if not isinstance(settings, dict) or not isinstance(settings.get("space"), dict) or not settings["space"]:
        raise UserError(f"{path} has no `sweep:` with a `space:` of names and choices; see `kit.scale.sweep`.")
    for name in settings.keys() - set(SETTINGS):
        raise UserError(f"{path}: sweep {name}={settings[name]!r} is unknown; valid are {', '.join(SETTINGS)}.")
    engine = Engine.of(content, **resources)
    content = with_shared_folder(content) if engine.on else content
    search = Plan(folder_name(name or Path(path).stem), RunConfig.from_dict(mark_source(content, path)), **settings)
    if search.base.eval_every == 0:
        raise UserError(f"{path}: eval_every=0 gives a search no scores to compare; leave it out.")
    if search.pruner not in PRUNERS:
        raise UserError(f"{path}: pruner={search.pruner!r} is unknown; valid are {', '.join(PRUNERS)}.")
    check_whole(f"{path}: trials", search.trials, 1)
    check_whole(f"{path}: seed", search.seed, 0)
    values = {
        name: [mark_source({name: value}, path)[name] for value in _values(name, choice)]
        for name, choice in search.space.items()
    }
    samples = [{name: choices[0] for name, choices in values.items()}]
    samples += [{name: value} for name in values.keys() - DEPENDENT for value in values[name]]
    kinds: dict[str, RunConfig] = {}
    is_begun = search.folder.is_dir() or search.base.store is not None  # an older search goes on
    for config in map(search.config, samples):
        permit(config, trust)
        resolved = planning.plan(config, new=not is_begun).config
        kinds[resolved.device] = resolved
    return replace(search, kinds=tuple(kinds.values())), engine


def _values(name: str, choice: Any) -> list[Any]:
    """Return the values of a list, or both ends of a range. Raises `UserError` if `choice` is neither."""
    if isinstance(choice, list) and choice:
        return choice
    is_range = isinstance(choice, dict) and {"min", "max"} <= choice.keys() <= {"min", "max", "log", "step"}
    if not is_range or not _is_valid(**choice):
        raise UserError(
            f"sweep {name}={choice!r} is not valid; write a list of values, or a range such as "
            "{min: 1.0e-4, max: 1.0e-2, log: true} or {min: 64, max: 512, step: 64}."
        )
    return [choice["min"], choice["max"]]


def _is_valid(min: Any, max: Any, log: Any = False, step: Any = None) -> bool:
    """Return whether Optuna accepts the range. Does not import Optuna, because `kit cloud` works without it."""
    numbers = [min, max] if step is None else [min, max, step]
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        return False
    if log and (min <= 0 or (step is not None and not (step == 1 and _is_whole(min, max)))):
        return False
    return min <= max and (step is None or (step > 0 and (isinstance(step, int) or not _is_whole(min, max))))


def _is_whole(min: float, max: float) -> bool:
    return isinstance(min, int) and isinstance(max, int)


NOT_THE_TRAINING = {*MAY_CHANGE_ON_RESUME, "run_name", "threads"} - {"total_steps"}
"""Fields of a config that do not change what a trial's score means."""


def suggest(trial: optuna.Trial, space: Mapping[str, Any]) -> dict[str, Any]:
    """Let Optuna choose a value for each name of `space`."""
    values = {}
    for name, choice in space.items():
        if isinstance(choice, list):
            values[name] = json.loads(trial.suggest_categorical(name, _texts(choice)))
        else:
            suggest_number = trial.suggest_int if _is_whole(choice["min"], choice["max"]) else trial.suggest_float
            step = {"step": choice["step"]} if choice.get("step") else {}
            values[name] = suggest_number(name, choice["min"], choice["max"], log=bool(choice.get("log")), **step)
    return values


def check_base(search: Sweep) -> None:
    """Raise `UserError` if the file's config was edited, so that earlier trials are of another training.

    The study keeps a checksum per field, because `env_options` may hold secrets.
    """
    config = {name: value for name, value in search.plan.base.to_dict().items() if name not in NOT_THE_TRAINING}
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in config.items()}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    before = search.study.user_attrs.get("config")
    if before is None:
        search.study.set_user_attr("config", sums)
    elif edited := [name for name in sums if before.get(name, sums[name]) != sums[name]]:
        now = redact(", ".join(f"{name}={config[name]!r}" for name in edited))
        differs = f"{now} differs from the earlier trials of the search {search.plan.name}"
        raise UserError(f"{differs}; choose another name for the search.")


def check_space(search: Sweep) -> None:
    """Raise `UserError` if the file was edited so that Optuna cannot use the search's earlier trials."""
    for trial in search.study.get_trials(deepcopy=False):
        for name in trial.distributions.keys() & search.plan.space.keys():
            before, choice = trial.distributions[name], search.plan.space[name]
            if isinstance(choice, list):
                is_same = getattr(before, "choices", None) == tuple(_texts(choice))
            else:
                kind = "IntDistribution" if _is_whole(choice["min"], choice["max"]) else "FloatDistribution"
                is_same = type(before).__name__ == kind and getattr(before, "log", None) == bool(choice.get("log"))
            if not is_same:
                differs = f"sweep {name}={choice!r} differs from the earlier trials of the search {search.plan.name}"
                raise UserError(f"{differs}; choose another name for the search.")


def _texts(values: list[Any]) -> list[str]:
    """Return the values as JSON, because Optuna's choices cannot be lists such as [64, 64]."""
    return [json.dumps(value) for value in values]


@dataclass
class TrialJob(Job):
    """The run of a trial. Its row also has the scores of its evaluations: `scores`, [[step, score], ...]."""

    score: str = "mean_return"
    starts: int = 0
    stopped: bool = False
    """Whether the trial was stopped early: it was pruned, or a score was not finite."""
    _metrics: GrowingRows | None = field(default=None, repr=False)

    def start(self, threads: int) -> None:
        self.starts += 1
        super().start(threads)

    def should_restart(self) -> bool:
        """Return whether the run must be resumed, because it was killed or reached its session limit.

        A trial that the user has stopped, for example on the page of runs, is not resumed: it counts as failed.
        """
        row = self.row()
        by_user = str(row["message"]).startswith(ON_REQUEST)
        return self.starts < MAX_STARTS and not self.stopped and row["state"] == "interrupted" and not by_user

    def row(self) -> dict[str, Any]:
        name = f"eval/{self.score}"
        if self._metrics is None:
            self._metrics = GrowingRows(self.path / "metrics.jsonl", ("step", name))
        self._metrics.read()
        scores = [[row["step"], float(row[name])] for row in self._metrics.rows if name in row and row["step"] > 0]
        return super().row() | {"scores": scores}


class Sweep:
    """A search in its current state: `table()` of trials, `best` config, and Optuna's `study`."""

    def __init__(self, plan: Plan, study: optuna.Study | None = None) -> None:
        """`study`: by default made in memory from a copy of the journal, which another process may be writing."""
        self.plan, self.study = plan, study or _study(plan, _MemoryJournal(journal(plan)))

    def __repr__(self) -> str:
        return f"Sweep({self.plan.name!r}: {len(self.study.trials)} of {self.plan.trials} trials)"

    @property
    def best(self) -> RunConfig | None:
        """Config of the completed trial with the highest score, or None. With other seeds its score may differ."""
        done = {t.value: t for t in reversed(self.study.trials) if t.state.name == "COMPLETE" and t.value is not None}
        return self.plan.config(values_of(done[max(done)])) if done else None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per trial: run, state, score, number of steps, chosen values, and message."""
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
    configs = [search.plan.config(values_of(t), run_name(search.plan, t.number)) for t in search.study.trials]
    return [TrialJob(config, config.non_defaults()) for config in configs]


def trial_rows(search: Sweep) -> list[JobRow]:
    """Return a row for each trial: its run, or why it has none, failed, or was stopped early."""
    return [_trial_row(search.plan, trial) for trial in search.study.get_trials(deepcopy=False)]


def _trial_row(plan: Plan, trial: Any) -> JobRow:
    name, state = run_name(plan, trial.number), trial.state.name
    path = plan.folder.parent / name
    message = {"message": text} if (text := trial.user_attrs.get("message")) else {}
    values = {"FAIL": {"state": "failed", **message}, "PRUNED": {"phase": "pruned", **message}}.get(state, {})
    if (path / "config.yaml").is_file():
        return JobRow(name, path, None, values)
    waiting = {"state": "finished" if state == "COMPLETE" else "waiting", "total_steps": plan.base.total_steps}
    step = {"step": trial.user_attrs.get("steps", 0)}
    return JobRow(name, None, plan.base, {**waiting, **step, **message, **values})


def journal(plan: Plan) -> bytes:
    """Return the complete lines of Optuna's journal: the store's if another machine wrote last, else this machine's.

    Raises `UserError` if the store cannot be read.
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
    """Open the search for writing, from the result of `journal`. The caller holds the folder's lock."""
    optuna: Any = need("optuna", "scale")
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_atomic(plan.folder / JOURNAL, journal(plan))  # an incomplete last line would corrupt the next line
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
