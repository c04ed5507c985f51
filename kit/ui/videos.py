"""Videos of a run's policies: file names, recording in this process or another, and HTML players."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from kit import envs
from kit.envs import child_environ
from kit.errors import UserError
from kit.format.checkpoint import Damaged
from kit.machine.progress import progress_bar
from kit.machine.settings import worker_environment
from kit.runs.divergence import recordings, video_path
from kit.runs.run import Run
from kit.runs.video import View, render_video
from kit.ui import style
from kit.ui.plots import side_by_side

EPISODES = 2
NARROW_PX = 480
"""A wider player, such as of several views side by side, scrolls on a narrow page instead of shrinking."""
NICE = 10
"""Niceness of the recording process during training: it gets about a tenth of a core if training uses all cores."""
EVERY_S = 60.0
"""Shortest time in seconds from the end of one recording to the start of the next while the run trains."""
REST = 20
"""After a video of the policy, none is made for this many times its processor time. So they take 5 % of a core."""


@dataclass(frozen=True)
class PolicyVideo:
    """A video of a few episodes, in one or several views side by side."""

    views: tuple[View, ...]
    size: int = 320
    """Width and height of each view in pixels."""
    episodes: int | tuple[int, ...] = EPISODES
    """Number of episodes, or a tuple of episode numbers."""

    @property
    def path(self) -> Path:
        """Path of the video file.

        A single view from the default camera, of the first `EPISODES` episodes and without env_options, has the path of
        `kit video`, `videos/step_<step>.mp4`, if it has the default size. Any other video is in `videos/views`, and its
        name is a hash of views, size and episodes; it changes if a run is deleted and trained anew under its name.
        """
        run, step, camera, _, options = self.views[0]
        folder = run.path / "videos"
        usual = (self.size, self.episodes) == (PolicyVideo.size, EPISODES)
        if len(self.views) == 1 and not camera and usual and not options:
            return folder / f"step_{step:09d}.mp4"
        views = [(view.run.name, *view[1:4], dict(view.env_options), _weights_of(view)) for view in self.views]
        key = views, self.size, self.episodes
        return folder / "views" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.mp4"

    def file(self) -> Path:
        """Return `path`. If the file does not exist, record the video first, with a progress bar."""
        if self.path.exists():
            return self.path
        with progress_bar(desc="recording", unit="frame", leave=False) as bar:

            def on_frame(done: int, at_most: int) -> None:
                bar.total = at_most
                bar.update(done - bar.n)

            path = render_video(self.views, self.path, self.episodes, self.size, on_frame)
            bar.total = bar.n  # an episode may end early
            return path

    def start(self, nice: int, stderr: int) -> subprocess.Popen[str]:
        """Start to record the first view, with the default camera and size, in a separate process; see `kit_video`."""
        arguments = ("--step", str(self.views[0].step), "--episodes", str(self.episodes))
        return kit_video(self.views[0].run, arguments, nice, stderr)


def _weights_of(view: View) -> str | None:
    """Return the SHA-256 of the weights of the view's policy; None for the initial policy, which has no file."""
    saved = view.run.find_or_new(view.step)
    if saved is None:
        return None
    try:
        return str(saved.files()[f"{saved.folder}/policy.safetensors"]["sha256"])
    except (Damaged, KeyError):
        return str(saved.path.stat().st_mtime_ns)


def kit_video(run: Run, arguments: Sequence[str], nice: int, stderr: int) -> subprocess.Popen[str]:
    """Start `kit video` in a separate process.

    Raises `UserError` if that process could not create the env, for example an env defined in the notebook.
    """
    return subprocess.Popen(
        ["nice", "-n", str(nice), sys.executable, "-m", "kit", "video", str(run.path), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, text=True,
        env=worker_environment(1) | child_environ(run.config),
    )  # fmt: skip


def missing_divergence(run: Run) -> bool:
    """Whether physics diverged and the video of it (`kit video --divergence`) is still to be recorded."""
    found = recordings(run)
    return bool(found) and not video_path(found[-1]).exists() and _can_record() and _can_render(run)


def _can_record() -> bool:
    return bool(find_spec("mediapy") and find_spec("imageio_ffmpeg"))


def missing_video(run: Run) -> PolicyVideo | None:
    """Return the video of the best policy (without evaluations: the latest policy) if it is still to be recorded.

    Return None if there is no policy, if the video exists, if the task has no camera, or if the packages for videos are
    missing.
    """
    policies = [best] if (best := run.best()) else run.checkpoints()
    if not policies or not _can_record():
        return None
    best_or_latest = PolicyVideo((View(run, policies[-1].step),))
    return best_or_latest if not best_or_latest.path.exists() and _can_render(run) else None


def _can_render(run: Run) -> bool:
    try:
        return envs.describe(run.config.env, run.config.env_options).has_camera
    except Exception:  # of the user's task: the recording process reports it
        return True


def record_last(run: Run) -> str:
    """Record `missing_video(run)` and wait for the result. Return an error message, or "" on success."""
    if (missing := missing_video(run)) is None:
        return ""
    try:
        process = missing.start(0, subprocess.PIPE)
    except UserError as error:
        return f"No video: {error}"
    _, err = process.communicate()
    lines = err.strip().splitlines() or ["the recording process failed"]
    return f"No video: {lines[-1]}" if process.returncode else ""


class Recorder:
    """Records videos from time to time while the run trains: of diverged physics, and of the best policy.

    Call `poll` often; it does not wait for recordings.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process: subprocess.Popen[str] | None = None
        self._used_s = 0.0
        """Processor time of the current or last recording."""
        self._next = self._next_of_policy = time.monotonic() + EVERY_S / 2

    def poll(self, now: dict[str, Any]) -> None:
        """Start a recording if it is due. `now`: the run's status. A failed recording is tried again, after a rest."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(psutil.Error):
                self._used_s = sum(psutil.Process(self._process.pid).cpu_times()[:2])
            return
        self.close()
        now_s = time.monotonic()
        if now["state"] != "running" or now_s < self._next:
            return
        with contextlib.suppress(UserError):
            if missing_divergence(self._run):
                self._process = kit_video(self._run, ("--divergence",), NICE, subprocess.DEVNULL)
            elif now_s >= self._next_of_policy and (missing := missing_video(self._run)):
                self._process = missing.start(NICE, subprocess.DEVNULL)
            else:
                return
        self._next = now_s + EVERY_S

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            ended = time.monotonic()
            self._process, self._next = None, ended + EVERY_S
            self._next_of_policy = ended + max(EVERY_S, REST * self._used_s)


def video(path: Path, width: int = 480) -> style.Page:
    """Return a player of the video file at `path`, for display in a notebook."""
    return players([(caption(path), path)], width)


def players(videos: Iterable[tuple[str, Path]], width: int) -> style.Page:
    """Return a page with video players side by side, from (caption, path) pairs.

    The page contains the video files. Therefore a saved notebook plays them on any machine.
    """
    videos = list(videos)
    tags = [tag(path, text, width) for text, path in videos]
    body = style.flex(map(style.wide, tags) if width > NARROW_PX else tags)
    posters = side_by_side([poster(path) for _, path in videos])
    return style.Page(", ".join(text for text, _ in videos), body, posters)


def tag(path: Path, caption: str, width: int) -> str:
    """Return HTML that plays the mp4 at `path` muted, in a loop, `width` pixels wide, with a link to save the file."""
    mp4, png = (base64.b64encode(data or b"").decode() for data in (path.read_bytes(), poster(path)))
    sources = f'poster="data:image/png;base64,{png}" src="data:video/mp4;base64,{mp4}"'
    save = f"<a download='{path.name}' onclick='this.href=this.closest(&quot;figure&quot;).firstChild.src'>save</a>"
    return (
        f'<figure><video width="{width}" autoplay loop muted playsinline controls {sources}></video>'
        f"<figcaption>{html.escape(caption)}{save}</figcaption></figure>"
    )


def poster(path: Path) -> bytes | None:
    """Return the last frame of a video as PNG; None if it cannot be extracted."""
    return _poster(path, path.stat().st_mtime_ns)


@cache
def _poster(path: Path, time_ns: int) -> bytes | None:
    if not find_spec("imageio_ffmpeg"):
        return None
    import imageio_ffmpeg

    last = ["-sseof", "-0.2", "-i", str(path), "-frames:v", "1", "-c:v", "png", "-f", "image2pipe", "-"]
    result = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "quiet", *last], capture_output=True, check=False)
    return result.stdout or None


def caption(path: Path, run: Run | None = None) -> str:
    """Make a caption such as "the policy of step 40,000" from a video's file name; of the best of `run`, say so."""
    match = re.search(r"step_(\d+)", path.stem)
    if match and path.stem.startswith("divergence"):
        return f"the physics diverged before step {int(match[1]):,}"
    if not match:
        return path.stem
    best = run.best() if run else None
    is_best = best is not None and best.step == int(match[1])
    return f"the {'best policy, ' if is_best else 'policy '}of step {int(match[1]):,}"
