"""Fetches a run from a store to this machine, so that it can go on here. The store may be a stranger's.

Names, sizes and the manifest are checked before anything is fetched, every byte against its SHA-256 while it arrives,
every file of tensors against its own header before anything loads it. The run appears under its name when it is whole.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.format.checkpoint import Checkpoint, committed
from kit.format.layout import LATEST, MAX_VIDEO_BYTES, PASSED_OVER, TEXTS, VIDEO_SUFFIXES, folders_in
from kit.format.leftovers import temporary
from kit.format.manifest import MAX_JSON_BYTES, MAX_TOTAL_BYTES, Refused, check_tensors, parse_json, safe_name
from kit.stores import lease
from kit.stores.base import MissingFile, Store, StoreError, Unusable
from kit.stores.redact import one_line

MAX_RUNS = 1000
MAX_VIDEOS = 20
SAME_RUN = ("env", "algo", "encoder", "seed")
"""Fields of config.yaml that tell two runs of the same name apart."""
AT_WORK = ("starting", "running", "paused", "stopping")

Tell = Callable[[str], None]


@contextlib.contextmanager
def readable(store: Store) -> Iterator[None]:
    """While a store is asked: what it cannot do is the user's to know, as a `UserError`."""
    try:
        yield
    except StoreError as error:
        raise Unusable(store.url, f"cannot be read ({one_line(error)}); try again later.") from None


def list_runs(store: Store, clock: Callable[[], float] = time.time) -> list[dict[str, Any]]:
    """The runs in a store, the most recently updated first: name, state, step, total_steps, success_rate, updated. One
    that says it is at work while nobody holds its lease was interrupted. Raises `UserError`."""
    with readable(store):
        held, now = store.list(), clock()
    runs = [_describe(store, name, held, now) for name in _names(held)]
    return sorted(runs, key=lambda run: -(run["updated"] or 0.0))


def holds(store: Store, run_name: str) -> bool:
    """Whether a checkpoint of that run is there, also if its machine vanished before `latest.json` named it. Raises
    `UserError`."""
    with readable(store):
        return bool(folders_in(path.removeprefix(f"{run_name}/") for path in store.list(run_name)))


def pull(store: Store, run_name: str | None, dest: Path, tell: Tell = print, max_bytes: int = MAX_TOTAL_BYTES) -> Path:
    """Fetch a run into the folder `dest`; the path of its run directory there. Raises `UserError`.

    With no `run_name`, the latest unfinished run, or else the latest. A checkpoint that is not complete and right is
    named through `tell` and the one before it is used. If `dest` has the run already, it is brought forward.
    """
    with readable(store):
        held = store.list()
        prefix, name = _choose(store, run_name, held)
        inside = {path[len(prefix) :]: size for path, size in held.items() if path.startswith(prefix)}
        return _Pull(store, prefix, inside, tell, max_bytes)(name, Path(dest))


class _Pull:
    """One run of one store: `prefix` is "<run_name>/", or "" where the store is the run; `held` its files."""

    def __init__(self, store: Store, prefix: str, held: dict[str, int], tell: Tell, max_bytes: int) -> None:
        self.store, self.prefix, self.held, self.tell, self.max_bytes = store, prefix, held, tell, max_bytes
        self.fetched: dict[str, str] = {}  # path in the run -> SHA-256
        self.passed_over: list[int] = []

    def __call__(self, name: str, dest: Path) -> Path:
        """Fetch the run, or only what is newer than what is here already."""
        run_dir = dest.expanduser() / name
        is_here, newest = run_dir.exists(), max((c.step for c in committed(run_dir / "checkpoints")), default=-1)
        if is_here and newest >= max(folders_in(self.held).values(), default=-1):
            return run_dir
        with contextlib.ExitStack() as stack:
            try:
                run_dir.parent.mkdir(parents=True, exist_ok=True)
                building = stack.enter_context(temporary(run_dir if is_here else run_dir.parent))
            except OSError as error:
                why = error.strerror
                raise UserError(f"runs_dir={str(dest)!r} cannot be written ({why}); choose another folder.") from None
            for text in TEXTS.keys() & self.held.keys():
                self.store.get(self.prefix + text, building / text, TEXTS[text])
            if is_here and not ((run_dir / "config.yaml").is_file() and _identity(building) == _identity(run_dir)):
                raise UserError(f"{run_dir} is another run than the one in {self.store.url}; choose another runs_dir.")
            found = self._fetch_checkpoint(building, newest)
            best = self._fetch_best(building)
            if self.passed_over:  # so that the copier does not take the damaged ones for a newer state of the run
                (run_dir if is_here else building).joinpath(PASSED_OVER).write_text(json.dumps(self.passed_over))
            if not is_here:
                self._fetch_videos(building)
                building.rename(run_dir)
            elif found:  # it is moved last: until then nothing refers to the rest
                shared = [path for path in self.fetched if not path.startswith(("checkpoints/", "best/"))]
                for path in [*shared, "metrics.jsonl", "status.json", *best, found.folder]:
                    if (building / path).exists() and not (run_dir / path).is_dir():
                        (run_dir / path).parent.mkdir(exist_ok=True)
                        (building / path).replace(run_dir / path)
        return run_dir

    def _fetch_checkpoint(self, building: Path, newer_than: int) -> Checkpoint | None:
        """The newest that is complete and right, with what it shares. None if there is none yet, or none newer."""
        folders = [folder for folder, step in folders_in(self.held).items() if step > newer_than]
        refusal: Refused | None = None
        for folder in folders:
            try:
                return self._fetch_folder(folder, building)
            except (Refused, MissingFile) as error:
                refusal = error if isinstance(error, Refused) else Refused(str(error))
                self.passed_over.append(folders_in(self.held)[folder])
                shutil.rmtree(building / folder, ignore_errors=True)
                if folder is not folders[-1]:
                    self.tell(f"{folder} in {self.store.url} is damaged ({error}); the one before is used.")
        if refusal is not None and newer_than < 0:
            raise Unusable(self.store.url, f"holds no checkpoint that can be used: {refusal}")
        return None

    def _fetch_folder(self, folder: str, building: Path) -> Checkpoint:
        """A checkpoint whose manifest is sound and whose files the store lists with the sizes it claims; then these."""
        path = f"{folder}/manifest.json"
        if self.held[path] > MAX_JSON_BYTES:
            raise Refused(f"{path} claims {self.held[path]:,} bytes; at most {MAX_JSON_BYTES:,} are accepted.")
        checkpoint = Checkpoint.of(folder, self.store.read(self.prefix + path, MAX_JSON_BYTES), self.max_bytes)
        files = checkpoint.files()
        for path in checkpoint.missing_from(self.held)[:1]:
            size = self.held.get(path)
            what = "is missing" if size is None else f"has {size:,} bytes, not {files[path]['size']:,}"
            raise Refused(f"{path} {what}")
        need, free = sum(entry["size"] for entry in files.values()), shutil.disk_usage(building).free
        if need > free:
            raise UserError(f"{building.parent} has {free:,} bytes free, and the checkpoint needs {need:,}; make room.")
        for path, entry in files.items():
            if self.fetched.get(path) == entry["sha256"]:
                continue
            local = building / path
            local.parent.mkdir(parents=True, exist_ok=True)
            if self.store.get(self.prefix + path, local, entry["size"]) != entry["sha256"]:
                raise Refused(f"{path} does not have the SHA-256 of its manifest")
            check_tensors(local) if path.endswith(".safetensors") else parse_json(local.read_bytes(), path)
            self.fetched[path] = entry["sha256"]
        return checkpoint

    def _fetch_best(self, building: Path) -> list[str]:
        """The folder of the best policy, if there is one. What is wrong with it is told, and it is left out."""
        for folder in list(folders_in(self.held, "best"))[:1]:
            with self._tolerated(building / folder):
                return [self._fetch_folder(folder, building).folder]
        return []

    def _fetch_videos(self, building: Path) -> None:
        """As nice to have as the best policy."""
        for path in [p for p in self.held if p.startswith("videos/") and p.endswith(VIDEO_SUFFIXES)][-MAX_VIDEOS:]:
            with self._tolerated(building / path):
                safe_name(path.removeprefix("videos/"))
                (building / "videos").mkdir(exist_ok=True)
                self.store.get(self.prefix + path, building / path, MAX_VIDEO_BYTES)

    @contextlib.contextmanager
    def _tolerated(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (Refused, StoreError) as error:
            self.tell(f"left out of the copy: {one_line(error)}")
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _choose(store: Store, run_name: str | None, held: dict[str, int]) -> tuple[str, str]:
    """(prefix, name) of the run that is meant."""
    names = _names(held)
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
    name = str(min(runs, key=lambda run: run["state"] == "finished")["name"])  # of each kind the first, the newest
    return f"{name}/", name


def _names(held: dict[str, int]) -> list[str]:
    """Names of the folders that are runs; "" if the store itself is one. Names that could do harm are passed over."""
    if "config.yaml" in held:
        return [""]
    found: list[str] = []
    for path in held:
        name, _, rest = path.partition("/")
        if rest == "config.yaml" and len(found) < MAX_RUNS:
            with contextlib.suppress(Refused):
                found.append(safe_name(name))
    return found


def _own_name(store: Store) -> str:
    """What to call a run that has the whole store: the last part of its URL."""
    last = store.url.rstrip("/").rpartition("/")[2].rpartition(":")[2].partition("?")[0]
    try:
        return safe_name(last)
    except Refused:
        return "pulled"


def _describe(store: Store, name: str, held: dict[str, int], now: float) -> dict[str, Any]:
    prefix = f"{name}/" if name else ""
    status = _values(store, f"{prefix}status.json", held)
    latest = _values(store, f"{prefix}{LATEST}", held)
    state = status.get("state") if isinstance(status.get("state"), str) else "interrupted"
    if state in AT_WORK:
        expires = _number(_values(store, f"{prefix}{lease.FILE}", held).get("expires"))
        state = state if (expires or 0.0) > now else "interrupted"
    return {
        "name": name or _own_name(store),
        "state": state,
        "step": int(max(_number(status.get("step")) or 0, _number(latest.get("step")) or 0)),
        "total_steps": int(_number(status.get("total_steps")) or 0),
        "success_rate": _number(status.get("success_rate")),
        "updated": max(_number(status.get("updated")) or 0.0, _number(latest.get("time")) or 0.0) or None,
    }


def _values(store: Store, path: str, held: dict[str, int]) -> dict[str, Any]:
    """A small JSON object, or nothing if it is absent or damaged: one odd run must not hide the others."""
    if path in held:
        with contextlib.suppress(StoreError, Refused):
            value = parse_json(store.read(path), path)
            return value if isinstance(value, dict) else {}
    return {}


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and abs(value) < 1e18 else None


def _identity(run_dir: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load((run_dir / "config.yaml").read_text())
        return {field: values.get(field) for field in SAME_RUN}
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise UserError(f"{run_dir.name}/config.yaml cannot be read ({one_line(error)}).") from None
