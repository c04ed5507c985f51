"""Videos of a run while it trains: a process of its own, at low priority, films the best policy now and then."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kit.machine.settings import worker_environment
from kit.runs.run import Run

EPISODES = 2
NICE = 10
"""About a tenth of a core when training wants all of them."""
EVERY_S = 60.0
"""Time between the end of one filming and the start of the next, while the run trains."""


class Filming:
    """Keeps a video of the best policy in the run's `videos/`. Ask `poll` often; it never blocks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process: subprocess.Popen[str] | None = None
        self._next = time.monotonic() + EVERY_S / 2
        self._available = find_spec("mediapy") is not None and find_spec("imageio_ffmpeg") is not None
        self.error = ""
        """Why the last filming failed. While a run trains, a policy may be replaced as it is read; the next works."""

    @property
    def latest(self) -> Path | None:
        """The newest video there is."""
        videos = self._run.videos
        return videos[-1] if videos else None

    @property
    def wanted(self) -> bool:
        """Whether there is a policy that no video shows."""
        step = self._step()
        return self._available and step is not None and not self._path(step).exists()

    def poll(self, now: dict[str, Any], working: bool) -> None:
        """Start filming if it is time, and notice when it is done."""
        if self._process is not None and self._process.poll() is not None:
            self._reap()
        due = self._process is None and working and now["state"] == "running" and time.monotonic() >= self._next
        if due and self.wanted:
            self._start(low_priority=True)

    def finish(self) -> None:
        """Film the final policy, at full speed now that training is over, and wait for it."""
        self.close()
        self.error = ""
        if self.wanted:
            self._start(low_priority=False)
            self._reap()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self, low_priority: bool) -> None:
        command = [sys.executable, "-m", "kit", "video", str(self._run.path), "--step", str(self._step())]
        command += ["--episodes", str(EPISODES)]
        if low_priority and os.name == "posix":
            command = ["nice", "-n", str(NICE), *command]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=worker_environment(1),
        )  # fmt: skip

    def _reap(self) -> None:
        assert self._process is not None
        _, err = self._process.communicate()
        if self._process.returncode:
            self.error = f"No video: {(err.strip().splitlines() or ['the filming process failed'])[-1]}"
        self._process = None
        self._next = time.monotonic() + EVERY_S

    def _step(self) -> int | str | None:
        best = self._run.best()
        if best is not None:
            return "best"
        steps = [found.step for found in self._run.checkpoints()]
        return steps[-1] if steps else None

    def _path(self, step: int | str) -> Path:
        best = self._run.best()
        number = best.step if step == "best" and best is not None else int(step)
        return self._run.path / "videos" / f"step_{number:09d}.mp4"
