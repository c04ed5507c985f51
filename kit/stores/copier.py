"""Copy a run to a store in passes. A pass uploads and verifies the newest checkpoint, then names it in latest.json.

The order of a pass ensures that no file in the store ever refers to a missing one:

    1. upload the newest checkpoint's files and the shared files that the store lacks, the manifest last
    2. read all of them back and compare SHA-256
    3. update `latest.json`, then remove older checkpoints

On the Hub every put is a commit and commits are rate-limited. Therefore step 3 of one checkpoint and step 1 of the next
share a commit.
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
from kit.format.layout import FILMS, LATEST, MAX_VIDEO_BYTES, TEXTS, folders_in, passed_over
from kit.format.leftovers import temporary
from kit.format.manifest import FROZEN, MAX_JSON_BYTES, REPLAY, Refused, safe_name
from kit.stores import lease, model_card
from kit.stores.base import MissingFile, Store, StoreError, size_of
from kit.stores.redact import one_line, redact_bytes

KEEP = 2
"""Number of verified checkpoints kept in the store."""
HISTORY, HISTORY_BYTES = 5, 2**30
"""The store's old versions of files are deleted (`Store.squash`) once the bytes uploaded since the last squash exceed
both HISTORY times the run's current size and HISTORY_BYTES."""
USUAL_BYTES_PER_S = 1_000_000
"""Assumed transfer rate: a lease is extended by the duration of the next transfer."""

Watch = Callable[[str, int], None]
Files = dict[str, Path | bytes]


class Copier:
    """Copies the run at `run_dir` to `store`, as `owner`, and remembers which files the store holds.

    Calls `watch(request, size)` before each request, so that a hang can be detected; `size`: bytes to transfer.
    """

    def __init__(
        self, run_dir: Path, store: Store, owner: str, clock: lease.Clock = time.time, watch: Watch = lambda *_: None
    ) -> None:
        self.run_dir, self.store, self.owner, self.name = run_dir, store, owner, run_dir.name
        self._clock, self._watch = clock, watch
        self.step: int | None = None
        """The step of the newest checkpoint that is verified in the store."""
        self.time: float | None = None
        """When that checkpoint was verified, in unix seconds."""
        self.problem: str | None = None
        """Why a local checkpoint was not copied."""
        self._lease: lease.Lease | None = None
        self._lease_ends = 0.0  # monotonic time, unaffected by changes of the system clock
        self._stored: dict[str, str] = {}  # path in the run -> SHA-256 of the verified copy in the store, "" if unknown
        self._verified: dict[int, Checkpoint] = {}
        self._latest: int | None = None  # step in the store's latest.json
        self._damaged: set[str] = set()
        self._opened = False
        self._put_bytes = 0
        """Bytes uploaded since the last squash (`_squash`), including those of earlier sessions."""
        self.note: str | None = None
        """Why the history was not squashed (`_squash`). Not an error."""

    def run_pass(self, final: bool = False) -> dict[str, Any]:
        """Copy the newest checkpoint, metrics, status, best policy and videos, as far as the commit rate allows.

        `final`: this is the last pass; copy all of these and the Hub page, ignoring the commit rate. Return a dict of
        the attributes "step", "time", "problem" and "note", and of "pending": whether latest.json is out of date.
        """
        self._hold_lease()
        stored = self._list()
        if not self._opened:
            self._load_stored(stored)
        stored = self._squash(stored)
        self._forget_missing(stored)
        copied = self._copy_newest(stored)
        if final or not copied or self.store.min_interval_s == 0:
            self._copy_rest(final)
        pending = self._latest != self.step
        return {"step": self.step, "time": self.time, "pending": pending, "problem": self.problem, "note": self.note}

    def close(self) -> None:
        """Release the lease."""
        lease.release(self.store, self.name, self.owner, self._clock)

    def _copy_newest(self, stored: dict[str, int]) -> bool:
        """Copy and verify the newest checkpoint. Return False if there is no checkpoint that the store lacks."""
        for _ in range(3):  # retry: training may delete a checkpoint before `_pinned` has linked its files
            newest = next(self._local(), None)
            if newest is None or not self._is_new(newest):
                return False
            with contextlib.suppress(FileNotFoundError), self._pinned(newest) as sources:
                files = {**self._texts(), **self._latest_json(), **sources}
                digests = {path: entry["sha256"] for path, entry in newest.files().items()}
                self._put(files, self._outdated(stored), f"checkpoint at step {newest.step:,}", digests=digests)
                self._verified[newest.step] = newest
                self.step, self.time = newest.step, self._clock()
                return True
        raise StoreError("checkpoints are deleted on this machine before they can be read")

    def _copy_rest(self, final: bool) -> None:
        stored = self._list()
        files = {**self._best(), **self._videos(stored), **self._texts(), **self._latest_json()}
        page = model_card.page(self.run_dir, self.store) if final and self.store.has_page else {}
        outdated = self._outdated(stored)
        if files or page or outdated:
            message = f"latest is step {self.step:,}" if LATEST in files else "metrics and status"
            self._put(files, outdated, message, page)

    def _squash(self, stored: dict[str, int]) -> dict[str, int]:
        """Delete the store's old versions of files if they are large (`HISTORY`); return the store's listing.

        After an attempt, the listing is read again, so that this pass uploads any files that the deletion has lost.
        Otherwise it is `stored`.
        """
        if not self.store.keeps_history or self._put_bytes <= max(HISTORY * sum(stored.values()), HISTORY_BYTES):
            return stored
        try:
            self._watch("checking that no other process writes", 0)
            if not (reason := self._squash_obstacle()):
                self._watch("squashing the history", 0)
                self.store.squash()
        except (StoreError, UserError) as error:
            reason = one_line(error)
        problem = f"the history of {self.store.url} was not squashed, which does no harm: {reason}"
        self.note = problem if reason else None
        self._put_bytes = self._put_bytes // 2 if reason else 0  # after a failure: retry after half as many bytes
        return self._list()

    def _squash_obstacle(self) -> str:
        """Return why the history must not be squashed: a file that belongs to no run, or another run in training."""
        whole = self.store.whole()
        paths = whole.list()
        folders = tuple(path.removesuffix(lease.FILE) for path in paths if path.endswith(f"/{lease.FILE}"))
        for path in paths:
            if not path.startswith(folders) and path.rpartition("/")[2] not in model_card.FILES:
                return f"{path} belongs to no run"
        for folder in folders:
            _, other = lease.read(whole, folder.rstrip("/"))
            if other is not None and other.owner != self.owner and other.expires > self._clock():
                return f"{other.owner} is training {folder.rstrip('/')}"
        return ""

    def _texts(self) -> Files:
        """Return the text files (config, status, metrics, ...) that differ from the store's, without secrets."""
        files: Files = {}
        for name in TEXTS:
            with contextlib.suppress(FileNotFoundError):
                raw = (self.run_dir / name).read_bytes()
                # metrics: only whole lines, not redacted because they hold only numbers
                data = raw[: raw.rfind(b"\n") + 1] if name.endswith(".jsonl") else redact_bytes(raw, name)
                if self._stored.get(name) != hashlib.sha256(data).hexdigest():
                    files[name] = data
        return files

    def _best(self) -> Files:
        with contextlib.suppress(FileNotFoundError, StopIteration):
            return {path: (self.run_dir / path).read_bytes() for path in self._missing_files(next(self._local("best")))}
        return {}

    def _videos(self, stored: Mapping[str, int]) -> Files:
        """Return the videos and recordings that have no verified copy of the same size in the store."""
        files: Files = {}
        for path in [path for folder in FILMS for path in sorted((self.run_dir / folder).glob("[A-Za-z0-9]*"))]:
            with contextlib.suppress(FileNotFoundError, Refused):
                folder = path.parent.name
                name, size = f"{folder}/{safe_name(path.name)}", path.stat().st_size
                arrived = stored.get(name) == size and name in self._stored
                if not arrived and path.suffix in FILMS[folder] and size <= MAX_VIDEO_BYTES:
                    files[name] = path
        return files

    def _latest_json(self) -> Files:
        """Return a latest.json that names the newest verified checkpoint; empty if the store's is up to date."""
        if self.step is None or self.step == self._latest:
            return {}
        digest = hashlib.sha256(self._verified[self.step].raw or b"").hexdigest()
        value = {"version": 1, "step": self.step, "manifest_sha256": digest, "time": self._clock()}
        value |= {"put_bytes": self._put_bytes} if self.store.keeps_history else {}
        return {LATEST: json.dumps(value).encode()}

    def _outdated(self, stored: dict[str, int]) -> list[str]:
        """Return the paths to delete: old checkpoints, old best policies, shared files that no kept checkpoint uses."""
        if self.step is None:
            return []
        kept = {step: self._verified[step] for step in sorted(self._verified)[-KEEP:]}
        best = next(self._local("best"), None)
        known = [*kept.values(), *self._local(), *([best] if best else [])]
        needed = {path for checkpoint in known for path in checkpoint.files()}
        steps = {path: _step(path) for path in stored if path.startswith("checkpoints/")}
        old = {path for path, step in steps.items() if step < self.step and step not in kept}
        bests = {path for path in stored if path.startswith("best/")}
        if best is not None and not self._missing_files(best):
            old |= bests - needed
        if max(steps.values(), default=0) <= self.step:  # a newer checkpoint might need any shared file
            kinds = (f"{REPLAY}/",) if bests - needed - old else (f"{REPLAY}/", f"{FROZEN}/")
            old |= {path for path in stored if path.startswith(kinds)} - needed
        # manifests first: a checkpoint without manifest counts as absent
        return sorted(old, key=lambda path: (not path.endswith("/manifest.json"), path))

    def _local(self, subfolder: str = "checkpoints") -> Iterator[Checkpoint]:
        """Yield the checkpoints on this machine, newest first, without those known to be damaged."""
        for checkpoint in reversed(committed(self.run_dir / subfolder)):
            if checkpoint.folder not in self._damaged:
                try:
                    yield checkpoint.loaded()
                except Damaged as damage:
                    if checkpoint.path.is_dir():  # otherwise training has deleted it
                        self._damaged.add(checkpoint.folder)
                        self.problem = f"{checkpoint.folder} on this machine is damaged and was not copied: {damage}"

    def _missing_files(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Return path -> SHA-256 of the checkpoint's files that have no verified copy in the store."""
        entries = checkpoint.files().items()
        return {path: entry["sha256"] for path, entry in entries if self._stored.get(path) != entry["sha256"]}

    def _is_new(self, checkpoint: Checkpoint) -> bool:
        """Whether the store lacks `checkpoint`. Raises `StoreError` if the store holds a newer one."""
        if checkpoint.step in self._verified and self._verified[checkpoint.step].raw == checkpoint.raw:
            return False
        if self.step is not None and checkpoint.step < self.step:
            conflict = f"step {self.step:,} of {self.name}, newer than step {checkpoint.step:,} here"
            remedy = "resume the run from the store, or give this one another name"
            raise StoreError(f"{self.store.url} holds {conflict}; {remedy}")
        return True

    @contextlib.contextmanager
    def _pinned(self, checkpoint: Checkpoint) -> Iterator[dict[str, Path]]:
        """Hard-link the files that the store lacks, so that training may delete them; yield path -> link.

        The files' SHA-256 is checked. A file that cannot be linked is used where it is.
        """
        sources: dict[str, Path] = {}
        missing = self._missing_files(checkpoint)
        with temporary(self.run_dir) as stage:
            for path in missing:
                sources[path] = stage / path
                sources[path].parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(self.run_dir / path, sources[path])
                except FileNotFoundError:
                    raise
                except OSError:
                    sources[path] = self.run_dir / path
            for path, digest in missing.items():
                if sha256(sources[path]) != digest:
                    self._damaged.add(checkpoint.folder)
                    self.problem = f"{path} on this machine is damaged; {checkpoint.folder} was not copied"
                    raise StoreError(self.problem)
            yield sources

    def _hold_lease(self, size: int = 0) -> None:
        """Renew the lease if less than half of it would be left after transferring `size` bytes. Raises `LeaseHeld`."""
        transfer_s, left_s = size / USUAL_BYTES_PER_S, self._lease_ends - time.monotonic()
        if self._lease is None or min(left_s, self._lease.expires - self._clock()) < lease.TTL_S / 2 + transfer_s:
            self._watch("renewing the lease", 0)
            self._lease_ends = time.monotonic() + lease.TTL_S + transfer_s
            self._lease = lease.renew(self.store, self.name, self.owner, lease.TTL_S + transfer_s, self._clock)

    def _load_stored(self, stored: dict[str, int]) -> None:
        """Find out which files and checkpoints in the store were verified by earlier sessions."""
        latest = None
        self._watch("removing temporary files", 0)
        self.store.sweep(self.name)
        self._watch("reading latest.json", 0)
        with contextlib.suppress(ValueError, KeyError, TypeError):
            value = json.loads(self.store.read_or_none(f"{self.name}/{LATEST}") or b"{}")
            self.time, latest = float(value["time"]), int(value["step"])
            self._put_bytes = int(value.get("put_bytes", 0))
        self._stored = {path: "" for path in stored if path.startswith(tuple(f"{folder}/" for folder in FILMS))}
        damaged = passed_over(self.run_dir)
        for folder, step in folders_in(stored).items():
            with contextlib.suppress(Refused, MissingFile):
                self._watch(f"reading {folder}", stored[f"{folder}/manifest.json"])
                raw = self.store.read(f"{self.name}/{folder}/manifest.json", MAX_JSON_BYTES)
                checkpoint = Checkpoint.of(folder, raw)
                arrived = latest is not None and step <= latest and not checkpoint.missing_from(stored)
                if arrived and step not in damaged:
                    self._verified[step] = checkpoint
                    self._stored |= {path: entry["sha256"] for path, entry in checkpoint.files().items()}
        self.step = max(self._verified, default=None)
        self._latest = latest if latest == self.step else None
        self._opened = True

    def _forget_missing(self, stored: dict[str, int]) -> None:
        """Forget files that the store no longer has, so that they are copied again."""
        self._stored = {path: digest for path, digest in self._stored.items() if path in stored}
        for step, checkpoint in list(self._verified.items()):
            for path in checkpoint.missing_from(stored):
                self._stored.pop(path, None)
                self._verified.pop(step, None)
        self.step = max(self._verified, default=None)
        if LATEST not in stored:
            self._latest = None

    def _list(self) -> dict[str, int]:
        """Return the sizes of the run's files in the store, by path in the run."""
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
        """Put `files` in the run's folder and `page` beside it, and delete the paths in `delete`.

        Then read `files` back and compare SHA-256. `digests`: path -> SHA-256 from the manifest; that of other files is
        computed.
        """
        for path in files:
            self._stored.pop(path, None)
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
            self._stored[path] = digest
        for path in delete:
            self._stored.pop(path, None)
            if path.startswith("checkpoints/"):
                self._verified.pop(_step(path), None)
        if self.step is not None and LATEST in files:
            self._latest = self.step


def _digest(content: Path | bytes) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else sha256(content)


def _step(path: str) -> int:
    return step_of(path.rpartition("/")[0]) or 0
