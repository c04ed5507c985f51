"""Record videos of policies: one policy from several cameras, or several policies side by side in the same episodes."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kit.errors import UserError, check_whole, need
from kit.machine.settings import one_thread
from kit.runs.directory import check_output, making
from kit.runs.evaluation import EVAL_SEED, on_cpu
from kit.runs.opponents import make_env
from kit.runs.run import Run, load_policy, opened

if TYPE_CHECKING:
    from kit.envs.contract import BatchEnv
    from kit.envs.obs import Obs

FPS, MOST_S, HOLD_S = 25, 10.0, 0.6
"""Frames per second (approximate), maximum seconds of video per episode, and seconds that the last frame stays.

The environment variable KIT_FILM_S sets another maximum; longer videos take long to render and make notebooks large."""
RANDOM_S = 4.0
"""Duration of a video of random actions in seconds."""
AMONG, SEARCH_S = 50, 20.0
"""Number of episodes searched for failures, and maximum seconds of the search."""
SMALLEST, LARGEST = 8, 4096
"""Height and width of a view in pixels, at least and at most."""
COLUMNS = 4
"""Views per row of a video."""
GREEN, RED, WHITE = (120, 220, 130), (255, 130, 110), (255, 255, 255)

Progress = Callable[[int, int], None]
"""Called with the number of frames drawn so far and the maximum number of frames."""


def no_progress(done: int, at_most: int) -> None:
    """Show no progress."""


class View(NamedTuple):
    """A policy of `run`, seen by one camera (default: the task's first).

    `step` as in `Run.policy`; 0 is the initial policy. Actions are deterministic; an untrained policy's are sampled.
    `env_options` as in `kit.evaluate`.
    """

    run: Run
    step: int | str | None = None
    camera: str = ""
    title: str = ""
    env_options: Mapping[str, Any] = MappingProxyType({})


def record(
    run: Run | str | Path,
    step: int | str | None = None,
    cameras: tuple[str, ...] | None = None,
    episodes: int | Sequence[int] = 3,
    size: int = 320,
    path: Path | None = None,
    on_frame: Progress = no_progress,
    trust: bool = False,
    env_options: Mapping[str, Any] | None = None,
) -> Path:
    """Record a video (mp4) of the policy of `step`; return its path.

    Cameras are side by side, each `size` x `size` pixels. `episodes`: how many, or a list of episode numbers. The
    default path is `videos/step_<step>.mp4` in the run, or `videos/chosen/step_<step>.mp4` for a list of episodes or
    with `env_options`. `env_options` as in `kit.evaluate`, `trust` as in `kit.resume`. Needs the extra `video`.
    """
    check_film(path, size)
    run = opened(run, trust)
    saved = run.find_or_new(step)
    number = saved.step if saved else 0
    titled, options = len(cameras or ()) > 1, env_options or {}
    views = [View(run, number, camera, camera if titled else "", options) for camera in cameras or ("",)]
    usual = isinstance(episodes, int) and not options
    folder = run.path / "videos" if usual else run.path / "videos" / "chosen"
    return render_video(views, path or folder / f"step_{number:09d}.mp4", episodes, size, on_frame)


def check_film(path: Path | None, size: int = LARGEST) -> None:
    """Raise `UserError` unless a video of `size` x `size` pixels can be named `path` (None: kit names it)."""
    check_whole("size", size, SMALLEST, LARGEST)
    if path is not None:
        if path.suffix.lower() != ".mp4":
            raise UserError(f"path={str(path)!r} must end in .mp4, the format of a video.")
        check_output(path)


@one_thread()
def record_random(env: str, env_options: Mapping[str, Any], path: Path, size: int = 320) -> Path:
    """Record a video (mp4) of random actions in an env, `RANDOM_S` seconds long; return `path`.

    It shows a task before anything is trained. Needs the extra `video`.
    """
    import torch

    from kit.envs import make_vec

    check_film(path, size)
    vec_env = make_vec(env, 1, seed=0, threads=1, env_options=dict(env_options))
    try:
        stride, fps, _ = timing(vec_env)
        vec_env.action_space.seed(0)
        vec_env.reset(seed=0)
        with writing(path, (size, size), fps) as add:
            for _ in range(round(RANDOM_S * fps)):
                add(vec_env.render(None, size, size)[0, 0].cpu().numpy())
                for _ in range(stride):
                    vec_env.step(torch.as_tensor(vec_env.action_space.sample())[None].to(vec_env.device))
    finally:
        vec_env.close()
    return path


def failures_first(
    run: Run, step: int | str | None = None, among: int = AMONG, env_options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[list[int], str]:
    """Play the first `among` episodes; return their numbers, and a sentence such as "3 of 50 episodes failed".

    Failures come first, then successes, each by increasing return. Starts no episode after `SEARCH_S` seconds. Pass the
    numbers to `record(episodes=...)`. Results of saved policies are cached in memory. `env_options` as in
    `kit.evaluate`. Raises `UserError`.
    """
    saved = run.find_or_new(step)
    if saved is None or run.is_untrained(saved):  # its actions are sampled: do not cache the result
        return _search(run, step, among, env_options)
    key = (saved.path, saved.path.stat().st_mtime_ns, among, repr(dict(env_options)))
    if key not in _searches:
        _searches[key] = _search(run, saved.step, among, env_options)
    return _searches[key]


_searches: dict[tuple[Path, int, int, str], tuple[list[int], str]] = {}
"""Cache of `failures_first`: (path of the checkpoint, its mtime in ns, `among`, env_options) -> result."""


@one_thread()
def _search(run: Run, step: int | str | None, among: int, options: Mapping[str, Any]) -> tuple[list[int], str]:
    player = _Player([View(run, step, env_options=options)], run.config.seed + EVAL_SEED)
    end = time.monotonic() + SEARCH_S
    results: list[tuple[bool, float, int]] = []
    try:
        for episode in range(among):
            player.reset(episode)
            player.advance(player.env.episode_steps)
            results.append((player.succeeded, player.episode_return, episode))
            if time.monotonic() > end:
                break
    finally:
        player.env.close()
    failed = sum(not succeeded for succeeded, *_ in results)
    text = f"{failed or 'none'} of {len(results)} episodes failed" if player.has_success else "the lowest returns first"
    return [episode for *_, episode in sorted(results)], text


def render_video(
    views: Sequence[View],
    path: Path,
    episodes: int | Sequence[int],
    size: int,
    on_frame: Progress = no_progress,
) -> Path:
    """Write a video of all `views` side by side, each `size` x `size` pixels; return `path`.

    `episodes`: how many, or a list of episode numbers; each gets at most `MOST_S` seconds of video. A view whose
    episode has ended shows its last frame until all have ended. Captions: title, step, return, outcome; a corner shows
    the policy's image observations. If another process writes the same video, wait for it, and take its file. Raises
    `UserError` and then leaves no file.
    """
    return once(path, lambda: _render(views, path, episodes, size, on_frame))


def once(path: Path, render: Callable[[], None]) -> Path:
    """Let `render` write the video at `path`, or wait for another process that writes it now; return `path`."""
    began = time.time()
    with _locked(path):
        if not (path.exists() and path.stat().st_mtime >= began):
            render()
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the video at `path` among this user's processes on this machine."""
    import fcntl

    key = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"kit-video-{os.getuid()}-{key}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@one_thread()
def _render(views: Sequence[View], path: Path, episodes: int | Sequence[int], size: int, on_frame: Progress) -> None:
    by_policy: dict[tuple[Path, Any, str], list[View]] = {}
    for view in views:
        by_policy.setdefault((view.run.path, view.step, repr(view.env_options)), []).append(view)
    seed = views[0].run.config.seed + EVAL_SEED  # the same episodes for all, also if their runs have other seeds
    players = [_Player(same_policy, seed) for same_policy in by_policy.values()]
    shape = (size * -(-len(views) // COLUMNS), size * min(COLUMNS, len(views)))
    numbers = range(episodes) if isinstance(episodes, int) else episodes
    try:
        with (
            writing(path, shape, timing(players[0].env)[1]) as add,
            closing(_frames(players, numbers, size, on_frame)) as frames,
        ):
            for frame in frames:  # a list would keep all frames in memory
                add(frame)
    finally:
        for player in players:
            player.env.close()


@contextmanager
def writing(path: Path, shape: tuple[int, int], fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Write an mp4 at `path` while the block runs; yield the function that adds a frame, uint8 (*shape, 3).

    An exception in the block leaves no file. Needs the extra `video`.
    """
    mediapy = need("mediapy", "video")
    mediapy.set_ffmpeg(need("imageio_ffmpeg", "video").get_ffmpeg_exe())
    with making(path) as folder:
        building = folder / "video.mp4"
        with mediapy.VideoWriter(building, shape, fps=fps, qp=20) as writer:
            yield writer.add_image
        building.replace(path)


def timing(env: BatchEnv) -> tuple[int, float, int]:
    """Return env steps per frame, frames per second, and the maximum number of frames of an episode."""
    steps_per_s = env.video_speed / env.control_dt_s
    stride = max(1, round(steps_per_s / FPS))
    text = os.environ.get("KIT_FILM_S", "")
    if text and not re.fullmatch(r"\d*\.?\d+", text):
        raise UserError(f"KIT_FILM_S={text!r} must be a number of seconds, such as 10.")
    max_s = float(text or MOST_S)
    return stride, steps_per_s / stride, min(-(-env.episode_steps // stride), round(max_s * steps_per_s / stride))


def _frames(players: list[_Player], episodes: Sequence[int], size: int, on_frame: Progress) -> Generator[np.ndarray]:
    """Yield frames, (rows * size, columns * size, 3) uint8. A list of 1,000 frames of three views would take 1 GB."""
    stride, fps, max_frames = timing(players[0].env)
    done = 0
    for episode in episodes:
        for player in players:
            player.reset(episode)
        for _ in range(max_frames):
            yield _grid(players, size)
            done += 1
            on_frame(done, len(episodes) * max_frames)
            for player in players:
                player.advance(stride)
            if all(player.ended for player in players):
                break
        last = _grid(players, size)
        for _ in range(round(HOLD_S * fps)):
            yield last


def _grid(players: Sequence[_Player], size: int) -> np.ndarray:
    """Return the images of all views in rows of `COLUMNS`, black where the last row is not full."""
    images = [image for player in players for image in player.draw(size)]
    columns = min(COLUMNS, len(images))
    images += [np.zeros_like(images[0])] * (-len(images) % columns)
    rows = [np.concatenate(images[i : i + columns], 1) for i in range(0, len(images), columns)]
    return np.concatenate(rows)


def cameras_of(env: BatchEnv, run: Run) -> tuple[str, ...]:
    """Return the names of the cameras of `env`, an env of `run`. Raises `UserError` if it has none."""
    if not env.cameras:
        raise UserError(f"env={run.config.env!r} has no camera for a video; name some in `cameras` of its class.")
    return tuple(env.cameras)


def check_camera(camera: str, env: BatchEnv, run: Run) -> None:
    """Raise `UserError` if `env`, an env of `run`, has no camera named `camera`."""
    if camera not in env.cameras:
        available = ", ".join(env.cameras) or "none"
        raise UserError(f"camera={camera!r} is not one of {run.config.env}'s; it has {available}.")


class _Player:
    """One policy in one env, seen by one or several cameras."""

    has_success = False
    """Whether an episode has ended for which the env reported success or failure."""

    def __init__(self, views: Sequence[View], seed: int) -> None:
        run, step = views[0].run, views[0].step
        self._seed = seed
        self._views = views
        saved = run.find_or_new(step)
        self._actor = load_policy(run.config, saved).as_actor(deterministic=not run.is_untrained(saved))
        self.env = make_env(on_cpu(run.config, views[0].env_options), 1, self._seed, 1)
        self._cameras = tuple(view.camera or self.env.cameras[0] for view in views if view.camera or self.env.cameras)
        for camera in self._cameras:
            check_camera(camera, self.env, run)

    def reset(self, episode: int) -> None:
        """Start episode number `episode`, whose seed is the same for every policy."""
        from kit.envs.play import play

        self._obs = self.env.reset(seed=self._seed + episode)
        self._steps = play(self.env, self._actor, self._obs, episodes=1)
        self.ended, self._outcome, self._colour = False, "", WHITE
        self._episode, self._step, self.episode_return, self.succeeded = episode, 0, 0.0, False

    def advance(self, steps: int) -> None:
        """Play `steps` steps, or fewer to the end of the episode."""
        for step in islice(self._steps, steps):
            self._obs, self.ended = step.next_obs, bool(step.ended[0])
            self._step, self.episode_return = self._step + 1, self.episode_return + float(step.reward[0])
            if self.ended and "success" in step.info:
                self.succeeded, self.has_success = bool(step.info["success"][0]), True
                self._outcome, self._colour = ("success", GREEN) if self.succeeded else ("no success", RED)

    def draw(self, size: int) -> list[np.ndarray]:
        """Return one image per view, (size, size, 3) uint8; after the episode's end, its last image."""
        if not self.ended:
            self._images = self.env.render(self._cameras or None, size, size)[0].cpu().numpy()
            self._inset = _observed_images(self._actor.preprocess(self._obs), size)
        caption = f"episode {self._episode}   step {self._step}   return {self.episode_return:.2f}   {self._outcome}"
        return [
            captioned(image, self._inset, view.title, caption, self._colour)
            for image, view in zip(self._images, self._views, strict=True)
        ]


def _observed_images(obs: Obs, size: int) -> np.ndarray | None:
    """Return the newest image of each image field of `obs` (one env), side by side, uint8; None if there is none."""
    import torch

    from kit.envs.obs import leaves, newest_image

    images = [newest_image(field[0]) for _, field in leaves("", obs) if field.dtype == torch.uint8]
    if not images:
        return None
    side = min(size // 4, size // (2 * len(images)))
    indices = [[np.arange(side) * pixels // side for pixels in image.shape[:2]] for image in images]
    return np.concatenate([image[rows][:, columns] for image, (rows, columns) in zip(images, indices, strict=True)], 1)


def captioned(
    pixels: np.ndarray, inset: np.ndarray | None, title: str, caption: str, colour: tuple[int, int, int]
) -> np.ndarray:
    """Return a copy of `pixels` with title (top left), caption (bottom) and `inset` (top right)."""
    from PIL import Image, ImageDraw

    pixels, font, size = pixels.copy(), _font(max(9, len(pixels) // 24)), len(pixels)
    line_height = round(1.6 * font.size)
    if inset is not None:
        pixels[: len(inset), -inset.shape[1] :] = inset
    pixels[-line_height:] //= 2  # darker background for the text
    if title:
        pixels[:line_height, : round(font.getlength(title)) + font.size] //= 2
    image = Image.fromarray(pixels)
    draw, left = ImageDraw.Draw(image), font.size // 2
    draw.text((left, line_height // 2), title, WHITE, font, anchor="lm")
    draw.text((left, size - line_height // 2), caption, colour, font, anchor="lm")
    return np.asarray(image)


@cache
def _font(pixels: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(pixels)
