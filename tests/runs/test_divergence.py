"""Tests of diverged physics: its last second is recorded in the run, copied to the store, and shown in a video."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

import kit
from kit.cli import main
from kit.envs.curriculum import Curriculum
from kit.envs.divergence import AT_MOST
from kit.envs.vec import TensorEnv
from kit.runs.divergence import load, record_divergence, recordings, show
from tests.envs.exploding import Exploding

FEW = {"n_steps": 64, "batch_size": 64, "n_epochs": 1}


def kit_cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_the_recording_has_the_states_and_actions_before_the_divergence():
    """Env 1 is hit in its 12th step; control runs at 10 Hz, so 10 steps are kept."""
    task = Exploding(hit_env=1, hit_step=12)
    env = TensorEnv(task, 3, threads=1)
    env.start_training(seed=0)
    expected, action = [], torch.zeros(3, 1)
    with pytest.warns(RuntimeWarning, match="diverged"):
        for step in range(12):
            action = torch.tensor([[0.1], [0.01 * step], [0.3]])
            expected.append((task.sim.qpos[1].clone(), task.sim.qvel[1].clone(), action[1].double()))
            env.step(action)
    env.step(action)
    (found,) = env.take_divergences()
    assert (found.env, found.length) == (1, 12) and env.take_divergences() == []
    for name, rows in zip(("qpos", "qvel", "action"), zip(*expected[2:], strict=True), strict=True):
        assert torch.equal(found.rows[name], torch.stack(rows)), name


def test_an_episode_shorter_than_a_second_is_recorded_from_its_start():
    env = TensorEnv(Exploding(hit_env=0, hit_step=3), 2, threads=1)
    env.start_training(seed=0)
    with pytest.warns(RuntimeWarning, match="diverged"):
        for _ in range(3 * (AT_MOST + 2)):
            env.step(torch.zeros(2, 1))
    found = env.take_divergences()
    assert len(found) == AT_MOST, "the first few are kept"
    assert [len(one.rows["qpos"]) for one in found] == [3] * AT_MOST


def test_of_a_resumed_episode_only_the_steps_since_then_are_recorded():
    first, env = (TensorEnv(Exploding(hit_env=0, hit_step=6), 2, threads=1) for _ in range(2))
    first.start_training(seed=0)
    for _ in range(4):
        first.step(torch.zeros(2, 1))
    env.start_training(seed=0)
    env.restore(first.snapshot())
    with pytest.warns(RuntimeWarning, match="diverged"):
        for _ in range(2):
            env.step(torch.zeros(2, 1))
    (found,) = env.take_divergences()
    assert found.length == 6 and len(found.rows["qpos"]) == 2


def test_an_episode_before_the_last_stage_is_recorded_and_shown_without_random_values():
    """There nothing is randomised yet, although numbers are drawn."""

    class Lessons(Exploding):
        curriculum = Curriculum(2)

        def success(self) -> torch.Tensor:
            return self.terminated()

    task = Lessons(hit_env=0, hit_step=3)
    task.randomized = task.random_terms
    env = TensorEnv(task, 2, threads=1)
    env.start_training(seed=0)
    with pytest.warns(RuntimeWarning, match="diverged"):
        for _ in range(3):
            env.step(torch.zeros(2, 1))
    (found,) = env.take_divergences()
    assert set(found.rows) == {"qpos", "qvel", "action"}
    task = Exploding()
    task.randomized = task.random_terms
    shown = TensorEnv(task, 1, threads=1)
    assert shown.task.sim.parameter("body_mass")[0, 1] != 1.0, "drawn at the reset"
    show(shown, {name: values[0] for name, values in found.rows.items()})
    assert shown.task.sim.parameter("body_mass")[0, 1] == 1.0


def test_evaluations_do_not_record():
    env = TensorEnv(Exploding(hit_env=0, hit_step=3), 2, threads=1)
    with pytest.warns(RuntimeWarning, match="diverged"):
        for _ in range(3):
            env.step(torch.zeros(2, 1))
    assert env.take_divergences() == []


@pytest.mark.filterwarnings("ignore:the physics of")
def test_a_run_keeps_it_and_shows_it(tmp_path, capsys):
    store = tmp_path / "store"
    options = {"hit_env": 2, "hit_step": 20, "randomize": {"mass": [0.5, 2.0]}}
    run = kit.train(
        env="tests.envs.exploding:Exploding", env_options=options, n_envs=4, total_steps=1024, overrides=FEW,
        runs_dir=str(tmp_path / "runs"), run_name="hit", device="cpu", threads=1, eval_every=0, store=str(store),
    )  # fmt: skip
    first = recordings(run)[0]
    assert 1 <= len(recordings(run)) <= AT_MOST and first.name == "step_000000256_env_0002.safetensors"
    rows = load(first)
    assert rows["qpos"].shape == (10, 1) and 0.5 <= rows["randomize.mass"][0, 0] <= 2.0
    capsys.readouterr()
    assert (store / "hit" / "divergences" / first.name).read_bytes() == first.read_bytes()
    assert kit_cli("video", str(run.path), "--divergence", "--size", "64") == 0
    path = capsys.readouterr().out.strip()
    assert path == str(run.path / "videos" / f"divergence_{recordings(run)[-1].stem}.mp4")
    frames, seconds = pytest.importorskip("imageio_ffmpeg").count_frames_and_secs(path)
    assert frames >= 10 and 4 < seconds < 6, "a second, four times as slow"
    assert kit_cli("video", str(run.path), "--divergence", "--cameras", "top") == 2
    assert "camera='top' is not one of tests.envs.exploding:Exploding's; it has front" in capsys.readouterr().err
    shutil.rmtree(run.path / "divergences")
    assert kit_cli("video", str(run.path), "--divergence") == 2
    assert "has no recorded divergence" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:the physics of")
def test_two_dashboards_render_the_video_once(tmp_path):
    """The second recording starts while the first renders; it waits, and renders nothing."""
    pytest.importorskip("imageio_ffmpeg")
    run = kit.train(
        env="tests.envs.exploding:Exploding", env_options={"hit_env": 0, "hit_step": 5}, n_envs=2, total_steps=128,
        overrides=FEW, runs_dir=str(tmp_path), device="cpu", threads=1, eval_every=0,
    )  # fmt: skip
    first_drawn, second_waits, drawn = Event(), Event(), []

    def first(done, at_most):
        drawn.append("first")
        first_drawn.set()
        second_waits.wait(30)

    with ThreadPoolExecutor() as pool:
        one = pool.submit(record_divergence, run, 64, on_frame=first)
        assert first_drawn.wait(30)
        two = pool.submit(record_divergence, run, 64, on_frame=lambda *_: drawn.append("second"))
        with pytest.raises(TimeoutError):
            two.result(0.2)
        second_waits.set()
        assert one.result() == two.result() and set(drawn) == {"first"}


@pytest.mark.filterwarnings("ignore:the physics of")
def test_the_dashboard_records_and_shows_it(tmp_path, monkeypatch):
    """As `kit.ui.Dashboard` does while the run trains, here of a run that has ended, with its state set back."""
    pytest.importorskip("ipywidgets")
    from kit.ui import Dashboard, videos
    from tests.ui.fabricate import text_of

    options = {"hit_env": 0, "hit_step": 5}
    run = kit.train(
        env="tests.envs.exploding:Exploding", env_options=options, n_envs=2, total_steps=128, overrides=FEW,
        runs_dir=str(tmp_path), device="cpu", threads=1, eval_every=0,
    )  # fmt: skip
    assert "diverged before step 128, in step 5 of its episode" in run.log() or recordings(run)
    recorder = videos.Recorder(run)
    recorder._next = 0.0
    recorder.poll(run.status() | {"state": "running"})
    assert recorder._process.wait(250) == 0 and not videos.missing_divergence(run)
    monkeypatch.setattr(videos, "missing_video", lambda run: None)  # that of the policy
    board = Dashboard(run).show()
    board._watching.join()
    assert "the physics diverged before step 128" in text_of(board, "kit-video")
