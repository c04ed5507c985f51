"""Films of policies: one before several cameras, or several beside each other in the same episodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kit.errors import UserError, need
from kit.format.leftovers import temporary
from kit.runs.evaluation import EVAL_SEED
from kit.runs.opponents import make_env
from kit.runs.policies import load_policy
from kit.runs.run import Run, opened

if TYPE_CHECKING:
    from kit.envs.contract import BatchEnv
    from kit.envs.obs import Obs

FPS, MOST_S, HOLD_S = 25, 10.0, 0.6
"""Frames per second, about; seconds of an episode at most (KIT_FILM_S changes them), soon drawn and small enough to
stay in a notebook; and for which its end is held."""
AMONG, SEARCH_S = 50, 20.0
"""Episodes among which failures are looked for, and how long."""
COLUMNS = 4
"""Views beside each other, before the next row begins."""
GREEN, RED, WHITE = (120, 220, 130), (255, 130, 110), (255, 255, 255)

Progress = Callable[[int, int], None]
"""Told how many frames are drawn, and how many there are at most."""


class View(NamedTuple):
    """A policy of `run` before a camera (by default the task's first): that of `step`, the best, or for 0 the one
    training began with, which acts with its noise if it is untrained."""

    run: Run
    step: int | str | None = None
    camera: str = ""
    title: str = ""


def record(
    run: Run | str | Path,
    step: int | str | None = None,
    cameras: tuple[str, ...] | None = None,
    episodes: int | Sequence[int] = 3,
    size: int = 320,
    path: Path | None = None,
    on_frame: Progress = lambda done, at_most: None,
    trust: bool = False,
) -> Path:
    """Film `episodes` (so many, or their numbers) with the policy of `step` into an mp4, by default
    `videos/step_<step>.mp4` in the run (numbers: in `videos/chosen`): `size` pixels a side, cameras side by side. Needs
    the extra `video`. `trust` as in `kit.resume`."""
    run = opened(run, trust)
    found = run.find_or_new(step)
    number = found.step if found else 0
    views = [View(run, number, camera, camera if len(cameras or ()) > 1 else "") for camera in cameras or ("",)]
    folder = run.path / "videos" if isinstance(episodes, int) else run.path / "videos" / "chosen"
    return render_video(views, path or folder / f"step_{number:09d}.mp4", episodes, size, on_frame)


def failures_first(run: Run, step: int | str | None = None, among: int = AMONG) -> list[int]:
    """The numbers of the first `among` episodes that `render_video` would show of the policy of `step`, those that fail before
    the others, then by return. Looks for `SEARCH_S` seconds at most. Raises `UserError`."""
    player, found, end = _Player([View(run, step)]), list[tuple[bool, float, int]](), time.monotonic() + SEARCH_S
    try:
        for episode in range(among):
            player.begin(episode)
            player.advance(player.env.episode_steps)
            found.append((player.succeeded, player.returned, episode))
            if time.monotonic() > end:
                break
    finally:
        player.env.close()
    return [episode for *_, episode in sorted(found)]


def render_video(
    views: Sequence[View],
    path: Path,
    episodes: int | Sequence[int],
    size: int,
    on_frame: Progress = lambda done, at_most: None,
) -> Path:
    """The first `MOST_S` seconds of each of `episodes` (so many, or their numbers), all `views` beside each other,
    `size` pixels a side; whoever is done waits for the others. Written in: title, step, return, how it ended, and in a
    corner what the policy sees if it sees pictures. Calls `on_frame`. Raises `UserError`; nothing is left then."""
    mediapy = need("mediapy", "video")
    mediapy.set_ffmpeg(need("imageio_ffmpeg", "video").get_ffmpeg_exe())
    policies: dict[tuple[Path, Any], list[View]] = {}
    for view in views:
        policies.setdefault((view.run.path, view.step), []).append(view)
    players = [_Player(views) for views in policies.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size * -(-len(views) // COLUMNS), size * min(COLUMNS, len(views)))
    try:
        with temporary(path.parent) as folder:
            building = folder / "video.mp4"
            with (
                mediapy.VideoWriter(building, shape, fps=timing(players[0].env)[1], qp=20) as written,
                closing(
                    _frames(players, range(episodes) if isinstance(episodes, int) else episodes, size, on_frame)
                ) as drawn,
            ):
                for frame in drawn:  # not write_video, which keeps them all to look at the first
                    written.add_image(frame)
            building.replace(path)
    finally:
        for player in players:
            player.env.close()
    return path


def timing(env: BatchEnv) -> tuple[int, float, int]:
    """Steps from one frame to the next, frames per second, and frames of an episode at most."""
    rate = env.video_speed / env.control_dt_s
    stride = max(1, round(rate / FPS))
    most_s = float(os.environ.get("KIT_FILM_S", MOST_S))
    return stride, rate / stride, min(-(-env.episode_steps // stride), round(most_s * rate / stride))


def _frames(players: list[_Player], episodes: Sequence[int], size: int, on_frame: Progress) -> Generator[np.ndarray]:
    """(rows * size, columns * size, 3) uint8 as they are drawn. None is kept: a thousand of them take a gigabyte."""
    stride, fps, most = timing(players[0].env)
    done = 0
    for episode in episodes:
        for player in players:
            player.begin(episode)
        for _ in range(most):
            yield _beside(players, size)
            done += 1
            on_frame(done, len(episodes) * most)
            for player in players:
                player.advance(stride)
            if all(player.over for player in players):
                break
        last = _beside(players, size)
        for _ in range(round(HOLD_S * fps)):
            yield last


def _beside(players: Sequence[_Player], size: int) -> np.ndarray:
    pictures = [picture for player in players for picture in player.draw(size)]
    columns = min(COLUMNS, len(pictures))
    pictures += [np.zeros_like(pictures[0])] * (-len(pictures) % columns)
    rows = [np.concatenate(pictures[i : i + columns], 1) for i in range(0, len(pictures), columns)]
    return np.concatenate(rows)


class _Player:
    """One policy in one world, before one or several cameras."""

    def __init__(self, views: Sequence[View]) -> None:
        run, step = views[0].run, views[0].step
        self._seed = run.config.seed + EVAL_SEED
        self._views = views
        found = run.find_or_new(step)
        self._actor = load_policy(run.config, found).as_actor(deterministic=not run.is_untrained(found))
        self.env = make_env(run.config.replace(device="cpu"), 1, self._seed, 1)
        self._cameras = tuple(view.camera or self.env.cameras[0] for view in views if view.camera or self.env.cameras)
        for camera in self._cameras:
            if camera not in self.env.cameras:
                have = ", ".join(self.env.cameras) or "none"
                raise UserError(f"camera={camera!r} is not one of {run.config.env}'s; it has {have}.")

    def begin(self, episode: int) -> None:
        """The same one for every policy."""
        from kit.envs.play import play

        self._obs = self.env.reset(seed=self._seed + episode)
        self._steps = play(self.env, self._actor, self._obs, episodes=1)
        self.over, self._ended, self._colour = False, "", WHITE
        self._episode, self._step, self.returned, self.succeeded = episode + 1, 0, 0.0, False

    def advance(self, steps: int) -> None:
        """To the end of the episode at most."""
        for step in islice(self._steps, steps):
            self._obs, self.over = step.next_obs, bool(step.ended[0])
            self._step, self.returned = self._step + 1, self.returned + float(step.reward[0])
            if self.over and "success" in step.info:
                self.succeeded = bool(step.info["success"][0])
                self._ended, self._colour = ("success", GREEN) if self.succeeded else ("no success", RED)

    def draw(self, size: int) -> list[np.ndarray]:
        """Of each view, (size, size, 3) uint8; of an episode that is over, as it was drawn last."""
        if not self.over:
            self._pictures = self.env.render(self._cameras or None, size, size)[0].cpu().numpy()
            self._seen = _seen(self._actor.see(self._obs), size)
        said = f"episode {self._episode}   step {self._step}   return {self.returned:.2f}   {self._ended}"
        return [
            _written(picture, self._seen, view.title, said, self._colour)
            for picture, view in zip(self._pictures, self._views, strict=True)
        ]


def _seen(obs: Obs, size: int) -> np.ndarray | None:
    """The newest of each picture among `obs` of one world, uint8, beside each other, for a film of `size`."""
    import torch

    from kit.envs.obs import leaves, newest_image

    shown = [newest_image(part[0]) for _, part in leaves("", obs) if part.dtype == torch.uint8]
    if not shown:
        return None
    side = min(size // 4, size // (2 * len(shown)))
    rows = [[np.arange(side) * pixels // side for pixels in picture.shape[:2]] for picture in shown]
    return np.concatenate([picture[down][:, across] for picture, (down, across) in zip(shown, rows, strict=True)], 1)


def _written(
    picture: np.ndarray, seen: np.ndarray | None, title: str, said: str, colour: tuple[int, int, int]
) -> np.ndarray:
    """`picture` with a title above and a line below, on darker ground, and what is seen in the corner above right."""
    from PIL import Image, ImageDraw

    picture, font, size = picture.copy(), _font(max(9, len(picture) // 24)), len(picture)
    high = round(1.6 * font.size)
    if seen is not None:
        picture[: len(seen), -seen.shape[1] :] = seen
    picture[-high:] //= 2
    if title:
        picture[:high, : round(font.getlength(title)) + font.size] //= 2
    image = Image.fromarray(picture)
    draw, left = ImageDraw.Draw(image), font.size // 2
    draw.text((left, high // 2), title, WHITE, font, anchor="lm")
    draw.text((left, size - high // 2), said, colour, font, anchor="lm")
    return np.asarray(image)


@cache
def _font(pixels: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(pixels)
