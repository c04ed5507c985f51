"""The copying itself: one pass brings a store up to date with a run, in this order, so that a reader of the store is
never shown something that is not there:

    1. the newest checkpoint's files and the shared ones that the store lacks, its manifest last
    2. read all of them back and compare SHA-256
    3. only then `latest.json`, and only then are older checkpoints removed

On the Hub every put is a commit and commits are rationed, so steps 3 of one checkpoint and 1 of the next share one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.format.checkpoint import Checkpoint, Damaged, committed
from kit.format.files import sha256, step_of
from kit.format.layout import LATEST, MAX_VIDEO_BYTES, TEXTS, VIDEO_SUFFIXES, folders_in, passed_over
from kit.format.leftovers import temporary
from kit.format.manifest import FROZEN, MAX_JSON_BYTES, REPLAY, Refused, safe_name
from kit.stores import lease, model_card
from kit.stores.base import MissingFile, Store, StoreError, size_of
from kit.stores.redact import one_line, redact_bytes

KEEP = 2  # verified checkpoints that stay in the store
HISTORY, HISTORY_BYTES = 5, 2**30
"""A store's history is squashed once so many times as much was put as is there, and at least so much."""
USUAL_BYTES_PER_S = 1_000_000

Watch = Callable[[str, int], None]
Files = dict[str, Path | bytes]


class Copier:
    """Brings `store` up to date with the run at `run_dir`, as `owner`. Remembers what it knows to be there. Before each
    request it calls `watch(what, size)`, with the bytes it moves, so that a hang can be noticed."""

    def __init__(
        self, run_dir: Path, store: Store, owner: str, clock: lease.Clock = time.time, watch: Watch = lambda *_: None
    ) -> None:
        self.run_dir, self.store, self.owner, self.name = run_dir, store, owner, run_dir.name
        self._clock, self._watch = clock, watch
        self.step: int | None = None
        """The newest step that is verified in the store."""
        self.time: float | None = None
        self.problem: str | None = None
        self._lease: lease.Lease | None = None
        self._lease_ends = 0.0  # by a timer, which nobody can set
        self._good: dict[str, str] = {}  # path in the run -> SHA-256 that the store is known to hold
        self._verified: dict[int, Checkpoint] = {}
        self._latest: int | None = None
        self._damaged: set[str] = set()
        self._doubted: set[str] = set()  # was put, and not read back
        self._opened = False
        self._put_bytes = 0
        """Put since the history was last squashed, also by sessions before."""
        self.note: str | None = None

    def run_pass(self, final: bool = False) -> dict[str, Any]:
        """Copy what is due; `final`: the last words too. The result has "step" and "time" of the newest checkpoint that
        is verified there, "pending" (more is to be done), "problem", and "note", of what does no harm."""
        self._hold_lease()
        held = self._list()
        if not self._opened:
            self._recall(held)
        held = self._squash(held)
        self._forget_lost(held)
        copied = self._copy_newest(held)
        if final or not copied or self.store.min_interval_s == 0:
            self._rest(final)
        pending = self._latest != self.step
        return {"step": self.step, "time": self.time, "pending": pending, "problem": self.problem, "note": self.note}

    def close(self) -> None:
        """Let go of the run."""
        self._watch("releasing the lease", 0)
        lease.release(self.store, self.name, self.owner, self._clock)

    def _copy_newest(self, held: dict[str, int]) -> bool:
        """Whether there was a checkpoint to copy; if so it is verified in the store now."""
        for _ in range(3):  # training may retire a checkpoint in the moment before its files are pinned
            newest = next(self._local(), None)
            if newest is None or not self._is_new(newest):
                return False
            with contextlib.suppress(FileNotFoundError), self._pinned(newest) as sources:
                files = {**self._texts(), **self._pointer(), **sources}
                digests = {path: entry["sha256"] for path, entry in newest.files().items()}
                self._put(files, self._outdated(held), f"checkpoint at step {newest.step:,}", digests=digests)
                self._verified[newest.step] = newest
                self.step, self.time = newest.step, self._clock()
                return True
        raise StoreError("checkpoints are retired on this machine before they can be read")

    def _rest(self, final: bool) -> None:
        """The pointer, texts, best, videos; at the end of a finished run the model card."""
        held = self._list()
        files = {**self._best(), **self._videos(held), **self._texts(), **self._pointer()}
        page = model_card.page(self.run_dir, self.store) if final and self.store.has_page else {}
        outdated = self._outdated(held)
        if files or page or outdated:
            message = f"latest is step {self.step:,}" if LATEST in files else "metrics and status"
            self._put(files, outdated, message, page)

    def _squash(self, held: dict[str, int]) -> dict[str, int]:
        """Squash the store's history once it outweighs what is there. What is there now: should anything be lost by it,
        this pass puts it there again."""
        if not self.store.keeps_history or self._put_bytes <= max(HISTORY * sum(held.values()), HISTORY_BYTES):
            return held
        try:
            self._watch("looking for others at work", 0)
            if not (why := self._in_the_way()):
                self._watch("squashing the history", 0)
                self.store.squash()
        except (StoreError, UserError) as error:
            why = one_line(error)
        self.note = f"the history of {self.store.url} was not squashed, which does no harm: {why}" if why else None
        self._put_bytes = self._put_bytes // 2 if why else 0  # it is tried again when half as much was put
        return self._list()

    def _in_the_way(self) -> str:
        """What shares the history and is not ours to squash: files that are no run's, a run that is at work."""
        whole = self.store.whole()
        paths = whole.list()
        folders = tuple(path.removesuffix(lease.FILE) for path in paths if path.endswith(f"/{lease.FILE}"))
        for path in paths:
            if not path.startswith(folders) and path.rpartition("/")[2] not in model_card.FILES:
                return f"{path} is no run's"
        for folder in folders:
            _, found = lease.read(whole, folder.rstrip("/"))
            if found is not None and found.owner != self.owner and found.expires > self._clock():
                return f"{found.owner} is at work in {folder.rstrip('/')}"
        return ""

    def _texts(self) -> Files:
        found: Files = {}
        for name in TEXTS:
            with contextlib.suppress(FileNotFoundError):
                data = redact_bytes((self.run_dir / name).read_bytes(), name)
                if name.endswith(".jsonl"):
                    data = data[: data.rfind(b"\n") + 1]  # whole lines only
                if self._good.get(name) != hashlib.sha256(data).hexdigest():
                    found[name] = data
        return found

    def _best(self) -> Files:
        with contextlib.suppress(FileNotFoundError, StopIteration):
            return {path: (self.run_dir / path).read_bytes() for path in self._lacking(next(self._local("best")))}
        return {}

    def _videos(self, held: Mapping[str, int]) -> Files:
        """Those that are not there with the same size, and those of which nobody knows whether they arrived."""
        found: Files = {}
        for path in sorted((self.run_dir / "videos").glob("[A-Za-z0-9]*")):
            with contextlib.suppress(FileNotFoundError, Refused):
                name, size = f"videos/{safe_name(path.name)}", path.stat().st_size
                arrived = held.get(name) == size and name not in self._doubted
                if not arrived and path.suffix in VIDEO_SUFFIXES and size <= MAX_VIDEO_BYTES:
                    found[name] = path
        return found

    def _pointer(self) -> Files:
        if self.step is None or self.step == self._latest:
            return {}
        digest = hashlib.sha256(self._verified[self.step].raw or b"").hexdigest()
        value = {"version": 1, "step": self.step, "manifest_sha256": digest, "time": self._clock()}
        value |= {"put_bytes": self._put_bytes} if self.store.keeps_history else {}
        return {LATEST: json.dumps(value).encode()}

    def _outdated(self, held: dict[str, int]) -> list[str]:
        """What may go: checkpoints older than the last few verified ones, bests before the newest, and shared files
        that nothing here or there needs."""
        if self.step is None:
            return []
        kept = {step: self._verified[step] for step in sorted(self._verified)[-KEEP:]}
        best = next(self._local("best"), None)
        known = [*kept.values(), *self._local(), *([best] if best else [])]
        needed = {path for found in known for path in found.files()}
        steps = {path: _step(path) for path in held if path.startswith("checkpoints/")}
        old = {path for path, step in steps.items() if step < self.step and step not in kept}
        bests = {path for path in held if path.startswith("best/")}
        if best is not None and not self._lacking(best):
            old |= bests - needed
        if max(steps.values(), default=0) <= self.step:  # a manifest of a newer one might name any
            kinds = (f"{REPLAY}/",) if bests - needed - old else (f"{REPLAY}/", f"{FROZEN}/")
            old |= {path for path in held if path.startswith(kinds)} - needed
        return sorted(old, key=lambda path: (not path.endswith("/manifest.json"), path))  # no part looks like a whole

    def _local(self, kind: str = "checkpoints") -> Iterator[Checkpoint]:
        """The checkpoints on this machine that are not known to be damaged, newest first."""
        for found in reversed(committed(self.run_dir / kind)):
            if found.folder not in self._damaged:
                try:
                    yield found.loaded()
                except Damaged as damage:
                    if found.path.is_dir():  # and was not retired in this moment
                        self._damaged.add(found.folder)
                        self.problem = f"{found.folder} on this machine is damaged and was not copied: {damage}"

    def _lacking(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Paths of its files that the store is not known to hold, with their SHA-256."""
        entries = checkpoint.files().items()
        return {path: entry["sha256"] for path, entry in entries if self._good.get(path) != entry["sha256"]}

    def _is_new(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.step in self._verified and self._verified[checkpoint.step].raw == checkpoint.raw:
            return False
        if self.step is not None and checkpoint.step < self.step:
            said = f"{self.store.url} holds step {self.step:,} of {self.name}, newer than step {checkpoint.step:,} here"
            cure = "resume the run from the store, or give this one another name"
            raise StoreError(f"{said}; {cure}", transient=False)
        return True

    @contextlib.contextmanager
    def _pinned(self, checkpoint: Checkpoint) -> Iterator[dict[str, Path]]:
        """The files that the store lacks under names that stay while training retires the originals: hard links where
        the disk has them. Checks each against the manifest first."""
        sources: dict[str, Path] = {}
        lacking = self._lacking(checkpoint)
        with temporary(self.run_dir) as stage:
            for path in lacking:
                sources[path] = stage / path
                sources[path].parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(self.run_dir / path, sources[path])
                except FileNotFoundError:
                    raise
                except OSError:
                    sources[path] = self.run_dir / path
            for path, digest in lacking.items():
                if sha256(sources[path]) != digest:
                    self._damaged.add(checkpoint.folder)
                    self.problem = f"{path} on this machine is damaged; {checkpoint.folder} was not copied"
                    raise StoreError(self.problem)
            yield sources

    def _hold_lease(self, size: int = 0) -> None:
        """Renew when half of it is over; it must outlast the moving of `size` bytes. Raises `LeaseHeld` when the run
        has become another machine's."""
        moving_s, left_s = size / USUAL_BYTES_PER_S, self._lease_ends - time.monotonic()
        if self._lease is None or min(left_s, self._lease.expires - self._clock()) < lease.TTL_S / 2 + moving_s:
            self._watch("renewing the lease", 0)
            self._lease_ends = time.monotonic() + lease.TTL_S + moving_s
            self._lease = lease.renew(self.store, self.name, self.owner, lease.TTL_S + moving_s, self._clock)

    def _recall(self, held: dict[str, int]) -> None:
        """Learn from the store what earlier sessions verified there."""
        latest = None
        self._watch("sweeping", 0)
        self.store.sweep(self.name)
        self._watch("reading latest.json", 0)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            value = json.loads(self.store.read_or_none(f"{self.name}/{LATEST}") or b"{}")
            self.time, latest = float(value["time"]), int(value["step"])
            self._put_bytes = int(value.get("put_bytes", 0))
        damaged = passed_over(self.run_dir)
        for folder, step in folders_in(held).items():
            with contextlib.suppress(Refused, MissingFile):
                self._watch(f"reading {folder}", held[f"{folder}/manifest.json"])
                raw = self.store.read(f"{self.name}/{folder}/manifest.json", MAX_JSON_BYTES)
                found = Checkpoint.of(folder, raw)
                if latest is not None and step <= latest and step not in damaged and not found.lacks(held):
                    self._verified[step] = found
                    self._good |= {path: entry["sha256"] for path, entry in found.files().items()}
        self.step = max(self._verified, default=None)
        self._latest = latest if latest == self.step else None
        self._opened = True

    def _forget_lost(self, held: dict[str, int]) -> None:
        """Files that the store had and has no more are copied again."""
        self._good = {path: digest for path, digest in self._good.items() if path in held}
        for step, checkpoint in list(self._verified.items()):
            for path in checkpoint.lacks(held):
                self._good.pop(path, None)
                self._verified.pop(step, None)
        self.step = max(self._verified, default=None)
        if LATEST not in held:
            self._latest = None

    def _list(self) -> dict[str, int]:
        """The run's files in the store, by their path in the run."""
        self._watch("listing", 0)
        return {path.removeprefix(f"{self.name}/"): size for path, size in self.store.list(self.name).items()}

    def _put(
        self,
        files: Files,
        delete: Sequence[str],
        message: str,
        page: Files | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """Put, read back, compare: with the manifest's `digests` where it names the file, since a local one may have
        changed while it was read. `page` lies beside the run."""
        for path in files:
            self._good.pop(path, None)
            self._doubted.add(path)
        inside = {f"{self.name}/{path}": content for path, content in files.items()}
        total = sum(map(size_of, files.values()))
        self._hold_lease(total)
        self._watch(f"writing {total:,} bytes", total)
        self._put_bytes += total
        outdated = [f"{self.name}/{path}" for path in delete]
        self.store.put({**(page or {}), **inside}, outdated, f"{self.name}: {message}")
        for path, content in files.items():
            size = size_of(content)
            self._watch(f"reading back {path}", size)
            digest = (digests or {}).get(path) or _digest(content)
            try:
                if self.store.get(f"{self.name}/{path}", None, size) != digest:
                    raise StoreError(f"{path} read back from {self.store.url} is not what was written")
            except MissingFile:
                raise StoreError(f"{self.store.url} accepted {path} but does not have it") from None
            self._good[path] = digest
            self._doubted.discard(path)
        for path in delete:
            self._good.pop(path, None)
            if path.startswith("checkpoints/"):
                self._verified.pop(_step(path), None)
        if self.step is not None and LATEST in files:
            self._latest = self.step


def _digest(content: Path | bytes) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else sha256(content)


def _step(path: str) -> int:
    """Of the checkpoint in whose folder `path` lies."""
    return step_of(path.rpartition("/")[0]) or 0
