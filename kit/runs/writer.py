"""Write checkpoints in a background thread, so that training does not wait for the disk."""

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
    """Checkpoint writer: one thread, one checkpoint at a time.

    It frees disk space, writes and verifies the checkpoint, and deletes outdated checkpoints (`kit.format.retention`).
    Replay data is split into files ("segments"): each checkpoint adds `replay/<first row>.safetensors` with the rows
    since the previous checkpoint, and its manifest lists all segments that are still needed.

    `step`: step of the newest written checkpoint, or -1. `error`: the `OSError` of the last attempt, or None.
    `longest_s`: longest time that writing a checkpoint has taken, s.
    """

    def __init__(
        self,
        run_path: Path,
        resumed: Checkpoint | None,
        on_done: Callable[[Checkpoint], None],
        with_replay: bool = True,
        budget: int = NO_LIMIT,
    ) -> None:
        """`with_replay`: whether the trainer loaded the replay data of the `resumed` checkpoint. `budget`: maximum
        bytes of all checkpoints and temporary files of the run."""
        self.run_path, self.budget = run_path, budget
        self.step = resumed.step if resumed else -1
        self.error: OSError | None = None
        self.longest_s = 0.0
        self._on_done = on_done
        shared = resumed.manifest().get("shared", {}) if resumed and with_replay else {}
        self._segments: dict[str, Any] = {n: entry for n, entry in shared.items() if n.startswith(f"{REPLAY}/")}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def replay_stop(self) -> int:
        """Index of the first replay row that is in no segment yet."""
        return max((_start(name) + entry["rows"] for name, entry in self._segments.items()), default=0)

    def submit(self, step: int, state: State, replay: Segment | None = None, oldest_row: int = 0) -> None:
        """Start writing a checkpoint. The caller must not change the arguments afterwards.

        `replay`: the rows since the previous checkpoint. Segments with only rows before `oldest_row` are dropped.
        """
        self.wait()
        args = (step, state, replay, oldest_row)
        self._thread = threading.Thread(target=self._guarded, args=args, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the checkpoint in progress. Its `OSError` is stored in `error`; other errors are raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _guarded(self, *args: Any) -> None:
        start = time.monotonic()
        try:
            self._write(*args)
            self.error, self.longest_s = None, max(self.longest_s, time.monotonic() - start)
        except OSError as error:  # a full or broken disk: training continues, the next checkpoint tries again
            self.error = error
        except BaseException as failure:
            self._failure = failure

    def _write(self, step: int, state: State, replay: Segment | None, oldest_row: int) -> None:
        rows = replay.rows if replay else {}
        # the reported free space ignores quotas: after a "disk full" error, keep only the newest checkpoint
        disk_full = self.error is not None and self.error.errno in FULL
        self._retire(NO_LIMIT if disk_full else checkpoint.size_of({**state, REPLAY: rows}))
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

    def _retire(self, next_bytes: int = 0) -> None:
        """Delete outdated checkpoints, and as many more as needed to make room for `next_bytes`."""
        saved = checkpoint.committed(self.run_path / "checkpoints")
        held = [retention.Held(c.step, c.path.stat().st_mtime, c.sizes()) for c in saved]
        disk = shutil.disk_usage(self.run_path)
        room = retention.room(self.budget - leftovers.size(self.run_path), retention.size(held), disk.free, disk.total)
        outdated = retention.outdated(held, room - next_bytes, time.time())
        for c in saved:
            if c.step in outdated:
                checkpoint.discard(c.path)
        checkpoint.prune(self.run_path)


def _start(name: str) -> int:
    """Return the first row of a segment, from its file name."""
    return int(Path(name).stem)
