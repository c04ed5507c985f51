"""Films of a run's policies: how one is named, found, made and played."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kit.envs import child_environ
from kit.errors import UserError
from kit.machine.progress import progress_bar
from kit.machine.settings import worker_environment
from kit.runs.run import Run
from kit.runs.video import View, render_video
from kit.ui import style
from kit.ui.plots import beside

EPISODES = 2
NICE = 10
"""About a tenth of a core when training wants all of them."""
EVERY_S = 60.0
"""Time between the end of one filming and the start of the next, while the run trains."""


@dataclass(frozen=True)
class Film:
    """Policies of one task beside each other, playing a few episodes."""

    views: tuple[View, ...]
    size: int = 320
    """Pixels a side, of each."""
    episodes: int | tuple[int, ...] = EPISODES
    """So many, or their numbers."""

    @property
    def path(self) -> Path:
        """One policy before its task's first camera, as `kit video` films it, is among the run's `videos`."""
        run, step, camera, _ = self.views[0]
        folder = run.path / "videos"
        if len(self.views) == 1 and not camera and isinstance(self.episodes, int):
            return folder / f"step_{step:09d}.mp4"
        what = [(view.run.name, *view[1:]) for view in self.views], self.size, self.episodes
        return folder / "views" / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.mp4"

    def file(self) -> Path:
        """What was filmed before is not filmed again; else with a progress bar."""
        if self.path.exists():
            return self.path
        with progress_bar(desc="filming", unit="frame", leave=False) as bar:

            def tell(done: int, at_most: int) -> None:
                bar.total = at_most
                bar.update(done - bar.n)

            made = render_video(self.views, self.path, self.episodes, self.size, tell)
            bar.total = bar.n  # an episode may end early
            return made

    def start(self, nice: int, stderr: int) -> subprocess.Popen[str]:
        """Film a single view in a process of its own. Raises `UserError` if no process can make the env."""
        run = self.views[0].run
        what = [str(run.path), "--step", str(self.views[0].step), "--episodes", str(self.episodes)]
        return subprocess.Popen(
            ["nice", "-n", str(nice), sys.executable, "-m", "kit", "video", *what],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, text=True,
            env=worker_environment(1) | child_environ(run.config),
        )  # fmt: skip


def wanted(run: Run) -> Film | None:
    """Of the best policy, or of the latest if none was evaluated; None if there is none or it is filmed already."""
    policies = [best] if (best := run.best()) else run.checkpoints()
    if not policies or not find_spec("mediapy") or not find_spec("imageio_ffmpeg"):
        return None
    best_or_latest = Film((View(run, policies[-1].step),))
    return None if best_or_latest.path.exists() else best_or_latest


def finish(run: Run) -> str:
    """Film the final policy, at full speed now that training is over, and wait for it. What went wrong, if anything."""
    if (missing := wanted(run)) is None:
        return ""
    try:
        process = missing.start(0, subprocess.PIPE)
    except UserError as error:
        return f"No video: {error}"
    _, err = process.communicate()
    said = err.strip().splitlines() or ["the filming process failed"]
    return f"No video: {said[-1]}" if process.returncode else ""


class Filming:
    """Films a run's best policy now and then while it trains. Ask `poll` often; it never blocks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process: subprocess.Popen[str] | None = None
        self._next = time.monotonic() + EVERY_S / 2

    def poll(self, now: dict[str, Any]) -> None:
        """Start filming if it is time. What fails is tried again: a policy may be replaced while it is read."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        due = self._process is None and now["state"] == "running" and time.monotonic() >= self._next
        if due and (missing := wanted(self._run)):
            self._next = time.monotonic() + EVERY_S
            with contextlib.suppress(UserError):
                self._process = missing.start(NICE, subprocess.DEVNULL)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, self._next = None, time.monotonic() + EVERY_S


def video(path: Path, width: int = 480) -> style.Page:
    """A player for display in a notebook."""
    return players([(caption(path), path)], width)


def players(films: Iterable[tuple[str, Path]], width: int) -> style.Page:
    """Players beside each other, (caption, path) each. The files travel in the output, so that they play wherever the
    notebook is opened."""
    films = list(films)
    body = style.flex(tag(path, text, width) for text, path in films)
    return style.Page(", ".join(text for text, _ in films), body, beside([poster(path) for _, path in films]))


def tag(path: Path, caption: str, width: int) -> str:
    """An HTML5 player of the mp4 at `path`, looping and silent, `width` pixels wide, and a link that saves it."""
    film, still = (base64.b64encode(data or b"").decode() for data in (path.read_bytes(), poster(path)))
    shown = f'poster="data:image/png;base64,{still}" src="data:video/mp4;base64,{film}"'
    save = f"<a download='{path.name}' onclick='this.href=this.closest(&quot;figure&quot;).firstChild.src'>save</a>"
    return (
        f'<figure><video width="{width}" autoplay loop muted playsinline controls {shown}></video>'
        f"<figcaption>{html.escape(caption)}{save}</figcaption></figure>"
    )


@cache
def poster(path: Path) -> bytes | None:
    """The last picture of a film, as PNG: how it ended. None if it cannot be had."""
    if not find_spec("imageio_ffmpeg"):
        return None
    import imageio_ffmpeg

    last = ["-sseof", "-0.2", "-i", str(path), "-frames:v", "1", "-c:v", "png", "-f", "image2pipe", "-"]
    made = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "quiet", *last], capture_output=True, check=False)
    return made.stdout or None


def caption(path: Path) -> str:
    """Such as "the policy of step 40,000", from a film's file name."""
    found = re.search(r"step_(\d+)", path.stem)
    return f"the policy of step {int(found[1]):,}" if found else path.stem
