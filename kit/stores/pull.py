"""Fetch a run from a store to this machine, to resume it here. The content of the store is not trusted.

Names, sizes and the manifest are checked before files are fetched, every file's SHA-256 is checked during the transfer,
and every safetensors header after it. A new run directory gets its final name when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kit.config import RunConfig
from kit.errors import UserError
from kit.format.checkpoint import Checkpoint, committed
from kit.format.layout import FILMS, LATEST, MAX_VIDEO_BYTES, PASSED_OVER, TEXTS, folders_in
from kit.format.leftovers import temporary
from kit.format.manifest import MAX_JSON_BYTES, MAX_TOTAL_BYTES, Refused, check_tensors, parse_json, safe_name
from kit.stores import lease, urls
from kit.stores.base import MissingFile, Store, StoreError, Unusable, within
from kit.stores.loop import STATE
from kit.stores.redact import one_line
from kit.stores.urls import absolute

MAX_RUNS = 1000
MAX_VIDEOS = 20
SAME_RUN = ("env", "algo", "encoder", "seed")
"""Fields of config.yaml. Two runs with the same name are different runs if one of these fields differs."""
AT_WORK = ("starting", "running", "paused", "stopping")

Notify = Callable[[str], None]
"""Shows the user a message."""


@contextlib.contextmanager
def readable(store: Store) -> Iterator[None]:
    """Turn a `StoreError` in the block into a `UserError`."""
    try:
        yield
    except StoreError as error:
        raise Unusable(store.url, f"cannot be read ({one_line(error)}); try again later.") from None


def list_runs(store: Store, clock: Callable[[], float] = time.time) -> list[dict[str, Any]]:
    """List the runs in a store, the latest first: name, task, state, phase, step, total_steps, success_rate, updated.

    A run in a working state whose lease has expired is reported as interrupted. The step of a run that is not at work
    is that of its newest checkpoint, from which a resume goes on. Raises `UserError`.
    """
    with readable(store):
        files, now = store.list(), clock()
    runs = [_describe(store, name, files, now) for name in _names(files)]
    return sorted(runs, key=lambda run: -(run["updated"] or 0.0))


def holds(store: Store, run_name: str) -> bool:
    """Whether the store holds a checkpoint of the run, even if no `latest.json` names it. Raises `UserError`."""
    with readable(store):
        return bool(folders_in(path.removeprefix(f"{run_name}/") for path in store.list(run_name)))


def check_new(store: Store, run_dir: Path) -> None:
    """Raise `UserError` if the store has a run of this name, another machine starts one, or this takes `OPEN_S`."""
    within(urls.OPEN_S, lambda: _check_new(store, run_dir), store.url)


def _check_new(store: Store, run_dir: Path) -> None:
    name, url = run_dir.name, store.url.rstrip("/")
    if holds(store, name):
        remedy = f"`kit resume {url}/{name}` continues it, or choose another run_name"
        raise Unusable(store.url, f"holds a run {name!r} already; {remedy}.")
    with readable(store):
        lease.check_free(store, name, run_dir)


def pull(
    store: Store,
    run_name: str | None,
    dest: Path,
    notify: Notify = print,
    max_bytes: int = MAX_TOTAL_BYTES,
    check: Callable[[RunConfig], object] = lambda config: None,
    to_resume: bool = False,
) -> Path:
    """Fetch a run into the folder `dest`; return its run directory. Raises `UserError`.

    Without `run_name`: the latest unfinished run that no search has pruned, or else the latest. A checkpoint that is
    damaged, incomplete or larger than `max_bytes` is reported through `notify`, and an older one is used. If `dest` has
    the run already, only newer files are fetched. Before checkpoints are fetched, `check` may refuse the run's config,
    and `to_resume` refuses a run that another machine is training.
    """
    with readable(store):
        files = store.list()
        prefix, name = _choose(store, run_name, files)
        run_files = {path[len(prefix) :]: size for path, size in files.items() if path.startswith(prefix)}
        if to_resume:
            lease.check_free(store, prefix.rstrip("/"), Path(dest).expanduser() / name)
        return _Pull(store, prefix, run_files, notify, max_bytes, check)(name, Path(dest))


class _Pull:
    """Fetches one run. `prefix`: "<run_name>/", or "" if the store holds one run at its top; `files`: path -> size."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        files: dict[str, int],
        notify: Notify,
        max_bytes: int,
        check: Callable[[RunConfig], object],
    ) -> None:
        self.store, self.prefix, self.files, self.notify, self.max_bytes = store, prefix, files, notify, max_bytes
        self.check = check
        self.fetched: dict[str, str] = {}  # path in the run -> SHA-256
        self.passed_over: list[int] = []  # steps of damaged checkpoints

    def __call__(self, name: str, dest: Path) -> Path:
        run_dir = dest.expanduser() / name
        is_local, newest = run_dir.exists(), max((c.step for c in committed(run_dir / "checkpoints")), default=-1)
        if is_local:
            self._check_same_run(run_dir)
            if newest >= max(folders_in(self.files).values(), default=-1):
                return run_dir
        with contextlib.ExitStack() as stack:
            try:
                run_dir.parent.mkdir(parents=True, exist_ok=True)
                building = stack.enter_context(temporary(run_dir if is_local else run_dir.parent))
            except OSError as error:
                reason = f"cannot be written ({error.strerror}); choose another folder."
                raise UserError(f"runs_dir={str(dest)!r} {reason}") from None
            for text in TEXTS.keys() & self.files.keys():
                self.store.get(self.prefix + text, building / text, TEXTS[text])
            shown = f"{self.prefix}config.yaml in {self.store.url}"
            self.check(RunConfig.load(building / "config.yaml", of_run=True, shown=shown))
            checkpoint = self._fetch_checkpoint(building, newest)
            best = self._fetch_best(building)
            if self.passed_over:  # tells the copier that newer checkpoints in the store are damaged
                (run_dir if is_local else building).joinpath(PASSED_OVER).write_text(json.dumps(self.passed_over))
            if not is_local:
                self._fetch_videos(building)
                building.rename(run_dir)
            elif checkpoint:  # the checkpoint is moved last, because it refers to the other files
                shared = [path for path in self.fetched if not path.startswith(("checkpoints/", "best/"))]
                for path in [*shared, "metrics.jsonl", "status.json", *best, checkpoint.folder]:
                    if (building / path).exists() and not (run_dir / path).is_dir():
                        (run_dir / path).parent.mkdir(exist_ok=True)
                        (building / path).replace(run_dir / path)
            if checkpoint:
                self._note_copy(run_dir, checkpoint.step)
        return run_dir

    def _note_copy(self, run_dir: Path, step: int) -> None:
        """Write into .sync.json that the store holds `step`. The first copier on this machine overwrites that."""
        url = self.store.url if self.prefix else self.store.url.rstrip("/").removesuffix(f"/{run_dir.name}")
        state = {"url": absolute(url), "step": step, "time": time.time(), "state": "ok", "error": None}
        (run_dir / STATE).write_text(json.dumps(state))

    def _check_same_run(self, run_dir: Path) -> None:
        """Raise `UserError` if the run in the store is another than the one at `run_dir`."""
        stored, local = self.prefix + "config.yaml", run_dir / "config.yaml"
        here = _identity(local.read_bytes(), local) if local.is_file() else None
        if here != _identity(self.store.read(stored, TEXTS["config.yaml"]), f"{stored} in {self.store.url}"):
            raise UserError(f"{run_dir} and {self.store.url} hold different runs; choose another runs_dir.")

    def _fetch_checkpoint(self, building: Path, newer_than: int) -> Checkpoint | None:
        """Fetch and return the newest intact checkpoint and its shared files; None if none is above `newer_than`.

        Damaged ones are reported through `notify`. Raises `UserError` if all are damaged and `newer_than` is -1.
        """
        folders = {folder: step for folder, step in folders_in(self.files).items() if step > newer_than}
        refusal: Refused | None = None
        for folder, step in folders.items():
            try:
                return self._fetch_folder(folder, building)
            except (Refused, MissingFile) as error:
                refusal = error if isinstance(error, Refused) else Refused(str(error))
                self.passed_over.append(step)
                shutil.rmtree(building / folder, ignore_errors=True)
                if folder != [*folders][-1] or newer_than >= 0:
                    self.notify(f"{folder} in {self.store.url} is damaged ({error}); an older one is used.")
        if refusal is not None and newer_than < 0:
            remedy = "resume the run where it was trained, or train a new one"
            reason = str(refusal).rstrip(".")
            raise Unusable(self.store.url, f"holds no checkpoint that can be used ({reason}); {remedy}.")
        return None

    def _fetch_folder(self, folder: str, building: Path) -> Checkpoint:
        """Fetch and check one checkpoint. Raises `Refused` for a damaged one, `UserError` for a full disk."""
        path = f"{folder}/manifest.json"
        if self.files[path] > MAX_JSON_BYTES:
            raise Refused(f"{path} claims {self.files[path]:,} bytes; at most {MAX_JSON_BYTES:,} are accepted.")
        checkpoint = Checkpoint.of(folder, self.store.read(self.prefix + path, MAX_JSON_BYTES), self.max_bytes)
        entries = checkpoint.files()
        for path in checkpoint.missing_from(self.files)[:1]:
            size = self.files.get(path)
            problem = "is missing" if size is None else f"has {size:,} bytes, not {entries[path]['size']:,}"
            raise Refused(f"{path} {problem}")
        need, free = sum(entry["size"] for entry in entries.values()), shutil.disk_usage(building).free
        if need > free:
            raise UserError(f"{building.parent} has {free:,} bytes free, and the checkpoint needs {need:,}; make room.")
        for path, entry in entries.items():
            if self.fetched.get(path) == entry["sha256"]:
                continue
            local = building / path
            local.parent.mkdir(parents=True, exist_ok=True)
            if self.store.get(self.prefix + path, local, entry["size"]) != entry["sha256"]:
                raise Refused(f"the SHA-256 of {path} differs from the one in the manifest")
            check_tensors(local) if path.endswith(".safetensors") else parse_json(local.read_bytes(), path)
            self.fetched[path] = entry["sha256"]
        return checkpoint

    def _fetch_best(self, building: Path) -> list[str]:
        """Fetch the best policy; return [its folder], or [] if the store has none or a damaged one (reported)."""
        for folder in list(folders_in(self.files, "best"))[:1]:
            with self._tolerated(building / folder):
                return [self._fetch_folder(folder, building).folder]
        return []

    def _fetch_videos(self, building: Path) -> None:
        for folder, suffixes in FILMS.items():
            found = [path for path in self.files if path.startswith(f"{folder}/") and path.endswith(suffixes)]
            for path in found[-MAX_VIDEOS:]:
                file = building / folder / path.rpartition("/")[2]  # in `folder`: `_tolerated` may delete it
                with self._tolerated(file):
                    safe_name(path.removeprefix(f"{folder}/"))
                    (building / folder).mkdir(exist_ok=True)
                    self.store.get(self.prefix + path, building / path, MAX_VIDEO_BYTES)

    @contextlib.contextmanager
    def _tolerated(self, path: Path) -> Iterator[None]:
        """Report an error in the block through `notify` and delete `path`."""
        try:
            yield
        except (Refused, StoreError) as error:
            self.notify(f"not copied: {one_line(error)}")
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _choose(store: Store, run_name: str | None, files: dict[str, int]) -> tuple[str, str]:
    """Return (prefix, name) of the run to fetch; arguments as in `pull`, `files` as in `_Pull`."""
    names = _names(files)
    if "" in names and run_name in (None, _own_name(store)):
        return "", _own_name(store)
    if run_name is not None:
        if safe_name(run_name) not in names:
            known = ", ".join(sorted(names)[:10]) or "none"
            raise UserError(f"run_name={run_name!r} is not in {store.url}; it holds: {known}.")
        return f"{run_name}/", run_name
    runs = list_runs(store)
    if not runs:
        raise Unusable(store.url, "holds no runs; give the URL that the run was trained with.")
    # the newest unfinished run, else the newest: of equals `min` returns the first
    chosen = min(runs, key=lambda run: run["state"] == "finished" or run["phase"] == "pruned")
    name = str(chosen["name"])
    return f"{name}/", name


def _names(files: dict[str, int]) -> list[str]:
    """Return the names of the runs' folders; [""] if the store holds one run at its top. Unsafe names are skipped."""
    if "config.yaml" in files and ("status.json" in files or folders_in(files)):  # else another program's config
        return [""]
    names: list[str] = []
    for path in files:
        name, _, rest = path.partition("/")
        if rest == "config.yaml" and len(names) < MAX_RUNS:
            with contextlib.suppress(Refused):
                names.append(safe_name(name))
    return names


def _own_name(store: Store) -> str:
    """Return the name of a run whose files are in the store's top folder: the last part of the store's URL."""
    last = store.url.rstrip("/").rpartition("/")[2].rpartition(":")[2].partition("?")[0]
    try:
        return safe_name(last)
    except Refused:
        return "pulled"


def _describe(store: Store, name: str, files: dict[str, int], now: float) -> dict[str, Any]:
    prefix = f"{name}/" if name else ""
    status = _values(store, f"{prefix}status.json", files)
    latest = _values(store, f"{prefix}{LATEST}", files)
    state = status.get("state") if isinstance(status.get("state"), str) else "interrupted"
    if state in AT_WORK:
        expires = _number(_values(store, f"{prefix}{lease.FILE}", files).get("expires"))
        state = state if (expires or 0.0) > now else "interrupted"
    trained = max(_number(status.get("step")) or 0, _number(latest.get("step")) or 0)
    saved = folders_in(path.removeprefix(prefix) for path in files if path.startswith(prefix)).values()
    return {
        "name": name or _own_name(store),
        "state": state,
        "task": task if isinstance(task := status.get("task"), str) and task.isprintable() else "",
        "phase": phase if isinstance(phase := status.get("phase"), str) else "",
        "step": int(trained if state in AT_WORK else max(saved, default=trained)),
        "total_steps": int(_number(status.get("total_steps")) or 0),
        "success_rate": _number(status.get("success_rate")),
        "updated": max(_number(status.get("updated")) or 0.0, _number(latest.get("time")) or 0.0) or None,
    }


def _values(store: Store, path: str, files: dict[str, int]) -> dict[str, Any]:
    """Read a small JSON object; return {} if it is missing or damaged, so that other runs are still listed."""
    if path in files:
        with contextlib.suppress(StoreError, Refused):
            value = parse_json(store.read(path), path)
            return value if isinstance(value, dict) else {}
    return {}


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and abs(value) < 1e18 else None


def _identity(config: bytes, source: object) -> dict[str, Any]:
    """Return the fields of a config.yaml that identify a run. Raises `UserError`, which names `source`."""
    import yaml

    try:
        values = yaml.safe_load(config)
        return {field: values.get(field) for field in SAME_RUN}
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise UserError(f"{source} cannot be read ({one_line(error)}).") from None
