"""Writes checkpoints beside the training loop: it takes a copy of the state and never makes the loop wait."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.format import checkpoint, leftovers, retention
from kit.format.checkpoint import Checkpoint, State
from kit.format.manifest import NO_LIMIT, REPLAY
from kit.format.segments import Segment

FULL = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """One background thread, one checkpoint at a time. Makes room, writes, verifies what it wrote, then retires what is
    older (`kit.format.retention`).

    Off-policy data goes to `replay/<first row>.safetensors`, segments that hold only the rows that are new since the
    checkpoint before; the manifests of later checkpoints name the same segments again.
    """

    def __init__(
        self,
        run_path: Path,
        resumed: Checkpoint | None,
        on_done: Callable[[Checkpoint], None],
        with_replay: bool = True,
        budget: int = NO_LIMIT,
    ) -> None:
        """`with_replay`: whether the trainer has the data of the `resumed` checkpoint's segments. `budget`: bytes that
        all checkpoints may take, and everything temporary in the run."""
        self.run_path, self.budget = run_path, budget
        self.step = resumed.step if resumed else -1
        self.error: OSError | None = None
        self._on_done = on_done
        shared = resumed.manifest().get("shared", {}) if resumed and with_replay else {}
        self._segments: dict[str, Any] = {n: entry for n, entry in shared.items() if n.startswith(f"{REPLAY}/")}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def replay_stop(self) -> int:
        """The first replay row that no segment holds yet."""
        return max((_start(name) + entry["rows"] for name, entry in self._segments.items()), default=0)

    def submit(self, step: int, state: State, replay: Segment | None = None, oldest_row: int = 0) -> None:
        """Begin to write. `replay` holds the rows that are new; those before `oldest_row` are needed no more.
        Nothing here may be changed by the caller afterwards."""
        self.wait()
        args = (step, state, replay, oldest_row)
        self._thread = threading.Thread(target=self._guarded, args=args, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the one in progress is on disk. Raises again what went wrong, except a disk's refusal (see `error`)."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _guarded(self, *args: Any) -> None:
        try:
            self._write(*args)
            self.error = None
        except OSError as error:  # a full or broken disk: training goes on, the next checkpoint tries again
            self.error = error
        except BaseException as failure:
            self._failure = failure

    def _write(self, step: int, state: State, replay: Segment | None, oldest_row: int) -> None:
        rows = replay.rows if replay else {}
        # where the disk has refused, it has no room, whatever it says (a quota does not show)
        refused = self.error is not None and self.error.errno in FULL
        self._retire(NO_LIMIT if refused else checkpoint.size_of({**state, REPLAY: rows}))
        segments = self._segments
        if replay is not None:
            for part in replay.parts():
                name = f"{REPLAY}/{part.start:012d}.safetensors"
                entry = checkpoint.write_shared(self.run_path, name, checkpoint.encode_tensors(part.rows))
                segments = {**segments, name: {**entry, "rows": len(part)}}
            segments = {n: e for n, e in segments.items() if _start(n) + e["rows"] > oldest_row}
        written = checkpoint.write(self.run_path / "checkpoints", step, state, segments)
        written.verify()
        self.step, self._segments = step, segments
        self._on_done(written)
        self._retire()

    def _retire(self, wanted: int = 0) -> None:
        """Delete what is not to be kept where `wanted` bytes are about to be written."""
        everything = checkpoint.committed(self.run_path / "checkpoints")
        found = [retention.Held(c.step, c.path.stat().st_mtime, c.sizes()) for c in everything]
        disk = shutil.disk_usage(self.run_path)
        room = retention.room(self.budget - leftovers.size(self.run_path), retention.size(found), disk.free, disk.total)
        outdated = retention.outdated(found, room - wanted, time.time())
        for c in everything:
            if c.step in outdated:
                checkpoint.discard(c.path)
        checkpoint.prune(self.run_path)


def _start(name: str) -> int:
    """First row of a segment, from its name."""
    return int(Path(name).stem)
