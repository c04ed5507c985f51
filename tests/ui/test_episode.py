"""Tests of `kit.ui.episode`: data and frame of each step, pages of the slider, the figure without a user."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest

import kit
from kit.runs.run import Run
from kit.ui import style
from kit.ui.episode import Episode
from kit.ui.plots import term_colours
from tests.runs.crash import create


@pytest.fixture(scope="module", autouse=True)
def small_images() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("kit.ui.episode"), "SIZE", 64)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return create(tmp_path_factory.mktemp("runs"), "arm", overrides={"normalize": True})


@pytest.fixture(scope="module")
def played(run: Run) -> Episode:
    return kit.ui.episode(run.path, 0)


def test_an_episode_has_every_step_with_its_frame(played: Episode) -> None:
    steps = len(played.actions)
    assert steps == 100 and len(played.frames) == 100 and all(frame[:2] == b"\xff\xd8" for frame in played.frames)
    assert played.observations.shape == (steps, 24) and played.actions.shape == (steps, 7)
    assert played.values is not None and played.values.shape == (steps,)
    assert repr(played).startswith("arm, before training, episode 0: 100 steps, return ")
    assert abs(played.actions).max() <= 1.0, "clipped, as the env gets them"
    angles, velocities = played.observations[:, :7], played.observations[:, 7:14]
    moved = np.diff(angles, axis=0)
    assert np.corrcoef(moved.ravel(), velocities[1:].ravel())[0, 1] > 0.9, "velocities must fit the changes of angles"


def test_the_slider_selects_the_page_of_a_step(played: Episode) -> None:
    w = pytest.importorskip("ipywidgets")
    view = played.view(w)
    _, title, above, chart, slider, _, below = view.children
    assert repr(played) in title.value, "the number of the episode must be seen"
    assert len(above.children) == len(below.children) == slider.max + 1 == 100
    total = played.rewards["reward"][:6].sum()
    assert f"step 5 of 100, return {total:.2f}, value estimate" in above.children[5].value
    assert "joint velocities of the arm, rad/s" in above.children[5].value and ">a6<" in above.children[5].value
    assert "vector from the hand to the goal, in units of 0.25 m" in below.children[5].value
    assert ">o23<" in below.children[5].value
    assert "reward of each step and its largest terms, <span style='white-space:nowrap'>from " in chart.value
    assert all(f"color:{colour}'>—</b> {name}</span>" in chart.value for name, colour in played.colours.items())
    assert played.colours == {"reward": style.GREY, **term_colours(["effort", "precision", "progress", "success"])}
    label = "aria-label='rewards of each step: reward, "
    assert "role='img'" in chart.value and label in chart.value and "progress" in chart.value.partition(label)[2]
    assert chart.value.count("<polyline") == 6, "zero, the reward, and its four terms"
    assert set(played.rewards) == {"reward", "progress", "success", "precision", "effort"}


def test_an_episode_with_frames_of_some_steps_only_says_so(
    run: Run, played: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("kit.ui.episode"), "MAX_FRAMES", 50)
    halved = kit.ui.episode(run.path, 0)
    assert len(halved.frames) == 50 and "episode 0: 100 steps, a frame every 2 steps, return " in repr(halved)
    assert repr(played).replace(" steps,", " steps, a frame every 2 steps,") == repr(halved)


def test_worst_selects_the_first_episode_of_the_video_of_failures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("kit.ui.episode")  # the name is also a function of kit.ui
    monkeypatch.setattr(module, "failures_first", lambda run, step: ([2, 0, 1], "1 of 3 episodes failed"))
    assert ", episode 2: " in repr(kit.ui.episode(run, 0, "worst"))
    with pytest.raises(kit.UserError, match=r"episode='bad' must be a whole number"):
        kit.ui.episode(run, 0, "bad")


def test_without_a_user_it_is_a_figure(played: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    shown: list[object] = []
    monkeypatch.setattr("IPython.display.display", lambda x, **_: shown.append(x))
    played._ipython_display_()
    assert len(shown) == 1 and shown[0]._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert "steps 0, 25, 50, 74, 99" in shown[0].axes[0].get_title("left")  # type: ignore[attr-defined]
