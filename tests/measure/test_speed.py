"""The speed probe: the arithmetic by hand, the rest on a real env for a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.config import RunConfig
from kit.machine import advice, speed
from kit.machine.gpu import Gpu
from kit.measure.speed import Speed
from tests.machine.test_info import machine

KNOWN = Speed("Reach", "PPO", 8, "cpu", 4000.0, 3000.0, 1500.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_rate_is_taken_when_everything_is_warm() -> None:
    marks = [(0.0, 0), (4.0, 100), (5.0, 200), (6.0, 300), (8.0, 500)]
    assert speed.rate_of(marks) == (500 - 100) / (8.0 - 4.0)
    assert speed.rate_of([(0.0, 0), (2.0, 100)]) == 50.0


def test_rate_of_an_unfinished_iteration() -> None:
    class Trainer:
        n_steps, n_envs, batch_size, n_epochs = 4, 10, 20, 5

    polls = [0.0, 1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 5.5]  # 4 env steps of 1 s, then minibatches of 0.5 s
    assert speed._from_polls(polls, Trainer()) == 40 / (4 * 1.0 + 10 * 0.5)
    assert speed._from_polls(polls[:3], Trainer()) == pytest.approx(40 / 4)


def test_a_real_probe_answers_and_is_remembered(own_cache: Path) -> None:
    config = RunConfig(env="Reach", n_envs=2, overrides={"n_steps": 16, "batch_size": 32, "n_epochs": 1})
    first = speed.probe(config, seconds=1.0, show=False)
    assert first.physics_steps_per_s is not None
    assert 0 < first.steps_per_s < first.env_steps_per_s
    assert speed.probe(config, seconds=1.0, show=False) == first, "the second answer comes from the cache"
    assert speed.cached(config.replace(n_envs=4).resolve()) is None
    (own_cache / "kit" / "speed.json").write_text("{broken")
    assert speed.cached(config.resolve()) is None


def test_a_probe_in_its_own_process_and_one_that_fails() -> None:
    config = RunConfig(env="Reach", n_envs=2, overrides={"n_steps": 16, "batch_size": 32, "n_epochs": 1}).resolve()
    known = speed.answer(speed.probe_apart(config, seconds=0.5), config)
    assert known.env == "Reach"
    assert known.steps_per_s > 0
    process = speed.probe_apart(config)
    process.kill()
    with pytest.raises(speed.NotMeasured):
        speed.answer(process, config)


def test_sentences() -> None:
    assert KNOWN.sentence(100_000, machine()) == "about 72 s on this machine (1,500 steps/s), free"
    assert json.loads(json.dumps(KNOWN.to_dict()))["steps_per_s"] == 1500.0
    assert str(KNOWN).splitlines()[1] == "     4,000  bare physics"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "3 s"), (99, "99 s"), (120, "2 min"), (5900, "98 min"), (6000, "1 h 40 min"), (90_000, "25 h 00 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert speed.duration(seconds) == text


@pytest.mark.parametrize(("gigabytes", "preset"), [(0, "auto"), (15, "fast"), (24, "heavy"), (80, "beast")])
def test_advice_fits_the_card(gigabytes: int, preset: str) -> None:
    cards = (Gpu("Card", gigabytes * 2**30, "570", "12.8"),) if gigabytes else ()
    given = advice.advise(RunConfig(), KNOWN, machine(gpus=cards))
    assert given.preset == preset
    assert "100,000 steps of Reach with PPO take about 72 s" in str(given)
    assert ("Card is not used" in str(given)) == bool(cards)
