"""Tests of videos: memory, cancellation, concurrent recordings, several views, length, order of episodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import kit
from kit.errors import UserError
from kit.runs import video
from kit.runs.run import Run
from kit.runs.video import View, record, timing
from kit.ui.videos import PolicyVideo
from tests.runs.crash import create

SIZE, EPISODES = 448, 10


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    pytest.importorskip("mediapy")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield create(tmp_path, "run", env="tests.envs.corridor:Corridor", env_options={"length": 36})
    torch.set_num_threads(threads)


def captions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the captions of all frames drawn from now on are appended."""
    from PIL import ImageDraw

    said: list[str] = []
    written = ImageDraw.ImageDraw.text

    def text(draw: ImageDraw.ImageDraw, place: Any, words: str, *args: Any, **options: Any) -> None:
        if words.startswith("episode"):
            said.append(words)
        written(draw, place, words, *args, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    return said


def test_memory_of_a_recording_does_not_grow_with_its_length(run: Run) -> None:
    """More than 100 frames of 0.6 MB; after the 20th, memory grows by less than 20 frames."""
    taken: list[int] = []
    this = psutil.Process()
    path = record(run, 0, episodes=EPISODES, size=SIZE, on_frame=lambda *_: taken.append(this.memory_info().rss))
    assert len(taken) > 100 and path.stat().st_size > 5_000 and run.videos == [path]
    assert max(taken[20:]) - taken[20] < 20 * SIZE * SIZE * 3


def test_a_cancelled_recording_leaves_no_file(run: Run) -> None:
    def stop(done: int, at_most: int) -> None:
        assert at_most == 12 * EPISODES and run.videos == []
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(run, step=0, episodes=EPISODES, size=64, on_frame=stop)
    assert list((run.path / "videos").iterdir()) == []


def test_concurrent_recordings_of_one_video_render_it_once(run: Run) -> None:
    """A second recording of the same video starts while the first renders; it waits, and renders nothing."""
    first_drawn, second_waits, drawn = Event(), Event(), list[str]()

    def first(done: int, at_most: int) -> None:
        drawn.append("first")
        first_drawn.set()
        second_waits.wait(30)

    with ThreadPoolExecutor() as pool:
        one = pool.submit(record, run, 0, episodes=1, size=SIZE, on_frame=first)
        first_drawn.wait(30)
        two = pool.submit(record, run, 0, episodes=1, size=SIZE, on_frame=lambda *_: drawn.append("second"))
        with pytest.raises(TimeoutError):
            two.result(0.2)
        second_waits.set()
        assert one.result() == two.result() and set(drawn) == {"first"}
    record(run, 0, episodes=1, size=SIZE, on_frame=lambda *_: drawn.append("asked again"))
    assert "asked again" in drawn


def test_a_view_waits_until_all_episodes_have_ended(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The episode in the corridor of length 2 ends early; the one of length 36 lasts all 12 steps."""
    said = captions(monkeypatch)
    near = create(tmp_path, "near", env=run.config.env, env_options={"length": 2})
    path = video.render_video([View(near, 0, title="near"), View(run, 0, title="far")], tmp_path / "both.mp4", 2, 64)
    assert path.stat().st_size > 1000
    parts = [re.fullmatch(r"episode 0   step (\d+)   return \S+   (.*)", line) for line in said[:26]]
    short, long = [(int(m[1]), m[2]) for m in parts[::2] if m], [(int(m[1]), m[2]) for m in parts[1::2] if m]
    assert long == [*((step, "") for step in range(12)), (12, "no success")]
    assert short[-1][1] == "success" and short[-1] == short[-2] and short[-1][0] < 12
    assert said[26].startswith("episode 1   step 0"), "both views must start the next episode together"
    assert said[27].startswith("episode 1   step 0")


@pytest.mark.parametrize(
    ("control_dt_s", "episode_steps", "video_speed", "stride", "fps", "frames"),
    [
        (0.05, 100, 1, 1, 20, 100),
        (0.05, 1000, 1, 1, 20, 200),
        (0.02, 1000, 1, 2, 25, 250),
        (0.25, 1200, 30, 5, 24, 240),
    ],
    ids=["a short one whole", "ten seconds of a long one", "every second step at 50 Hz", "five minutes in ten seconds"],
)
def test_a_video_shows_at_most_ten_seconds_of_an_episode(
    control_dt_s: float, episode_steps: int, video_speed: float, stride: int, fps: float, frames: int
) -> None:
    env = SimpleNamespace(control_dt_s=control_dt_s, episode_steps=episode_steps, video_speed=video_speed)
    assert timing(env) == (stride, pytest.approx(fps), frames)


def test_failures_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mediapy")
    overrides = {"n_steps": 64, "batch_size": 64, "n_epochs": 1}
    fields = {"n_envs": 4, "eval_every": 0, "device": "cpu", "threads": 1, "overrides": overrides}
    run = kit.train(env="Reach", total_steps=1024, runs_dir=str(tmp_path), **fields)
    order, text = video.failures_first(run, among=8)
    with monkeypatch.context() as patch:
        patch.setattr(video, "_search", None)
        assert video.failures_first(run, among=8) == (order, text), "the same episodes are not played again"
    said = captions(monkeypatch)
    path = record(run, episodes=order, size=64)
    assert path.parent == run.path / "videos" / "chosen" and run.videos == []
    ends = [re.fullmatch(r"episode (\d+)   step \d+   return (\S+)   (success|no success)", line) for line in said]
    played = list(dict.fromkeys((int(m[1]), m[3] == "success", float(m[2])) for m in ends if m))
    assert [episode for episode, *_ in played] == order and sorted(order) == list(range(8))
    assert [how for _, *how in played] == sorted(how for _, *how in played), "failures, then successes, by return"
    assert text == f"{sum(not success for _, success, _ in played)} of 8 episodes failed"


def test_without_a_failure_successes_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All goals are within 10 m. The policy is untrained."""
    monkeypatch.setattr("kit.tasks.reach.task.SUCCESS_M", 10.0)
    order, text = video.failures_first(create(tmp_path, "run"), 0, among=3)
    assert text == "none of 3 episodes failed" and sorted(order) == [0, 1, 2]


def test_a_policy_is_judged_and_shown_in_a_changed_env(tmp_path: Path) -> None:
    """Actions that arrive five steps late, and an option that the task does not have."""
    pytest.importorskip("mediapy")
    fields = {"n_envs": 4, "eval_every": 0, "device": "cpu", "threads": 1, "overrides": {"n_steps": 64}}
    run = kit.train(env="Reach", total_steps=512, runs_dir=str(tmp_path), **fields)
    late = {"randomize": {"delay": [5, 5]}}
    usual, changed = (kit.evaluate(run, 4, env_options=options) for options in (None, late))
    assert usual == kit.evaluate(run, 4) and changed["mean_return"] != usual["mean_return"]
    path = record(run, episodes=1, size=64, env_options=late)
    assert path.parent == run.path / "videos" / "chosen" and run.videos == []
    videos = [PolicyVideo((View(run, 512, "", "", options),)).path for options in ({}, late, {"randomize": True})]
    assert videos[0].parent.name == "videos" and videos[1].parent.name == videos[2].parent.name == "views"
    assert videos[1] != videos[2]
    with pytest.raises(UserError, match="env_options wind=3 is not one of Reach's"):
        kit.evaluate(run, 4, env_options={"wind": 3})


def test_runs_of_other_seeds_play_the_same_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mediapy")
    fields = {"n_envs": 4, "eval_every": 0, "device": "cpu", "threads": 1, "overrides": {"n_steps": 64}}
    runs = [kit.train(env="Reach", total_steps=256, runs_dir=str(tmp_path), run_name=f"r{s}", seed=s, **fields)
            for s in (1, 2)]  # fmt: skip
    goals, reset = [], video._Player.reset

    def recorded(player: Any, episode: int) -> None:
        reset(player, episode)
        goals.append(player.env.task.sim.mocap_pos.clone())

    monkeypatch.setattr(video._Player, "reset", recorded)
    monkeypatch.setenv("KIT_FILM_S", "0.2")
    video.render_video([View(run, 256) for run in runs], tmp_path / "both.mp4", 1, 64)
    assert torch.equal(*goals)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "film.gif"}, r"path='.*film\.gif' must end in \.mp4"),
        ({"size": 0}, "size=0 must be a whole number from 8 to 4096"),
        ({"size": 100_000}, "size=100000 must be"),
        ({"path": "folder.mp4"}, r"folder\.mp4 is a folder; name a file in it"),
        ({"path": "file/below/film.mp4"}, "below/film.mp4 cannot be written, because .*file is a file"),
        ({"path": "/proc/film.mp4"}, r"/proc/film\.mp4 cannot be written \(.*\); free some space there, or use"),
    ],
)
def test_a_film_that_cannot_be_made_is_refused_in_a_sentence(
    run: Run, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    (tmp_path / "folder.mp4").mkdir(), (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    if "path" in options:
        options = {"path": tmp_path / options["path"]}
    with pytest.raises(UserError, match=says):
        record(run, 0, episodes=1, **options)
    assert sorted(tmp_path.rglob("*")) == before
    if "path" in options:
        with pytest.raises(UserError, match=says):
            kit.check_task(run.config.env, steps=1, say=lambda line: None, video=options["path"])
