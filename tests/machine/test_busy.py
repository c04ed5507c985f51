"""Readings made while other programs use the cores: seen for real, and soon forgotten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.config import RunConfig
from kit.machine import cache, speed, tune
from kit.machine.busy import Watch
from tests.machine.test_speed import KNOWN

COMPUTE = "print(flush=True)\nwhile True: pass"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))


@pytest.fixture
def one_core_for_two() -> Iterator[None]:
    """This thread shares a core with a program that computes without end."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    other = subprocess.Popen([sys.executable, "-c", COMPUTE], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()  # it has begun
        yield
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, before)


def test_a_thread_that_waits_for_its_core_is_told(one_core_for_two: None) -> None:
    watch, end = Watch(), time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert watch.busy()


def test_a_thread_that_waits_for_something_else_is_not() -> None:
    watch = Watch()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    assert not watch.busy()


def test_a_doubtful_reading_counts_for_ten_minutes() -> None:
    cache.write("plan", {"n_envs": 8}, doubtful=True, clock=lambda: 1000.0)
    cache.write("sure", 1, clock=lambda: 1000.0)
    assert cache.read("plan", clock=lambda: 1599.0) == {"n_envs": 8}
    assert cache.read("plan", clock=lambda: 1600.0) is None
    assert cache.read("sure", clock=lambda: 1e12) == 1


def test_what_an_earlier_version_wrote_is_measured_anew() -> None:
    cache.write("plan", {"n_envs": 8})
    file = cache.folder() / "speed.json"
    file.write_text(json.dumps({"plan": {"n_envs": 8}, "number": 3}))
    assert cache.read("plan") is None and cache.read("number") is None


def test_a_probe_on_a_busy_machine_is_not_kept_and_says_so(one_core_for_two: None) -> None:
    config = RunConfig(n_envs=2, threads=1, overrides={"n_steps": 16, "batch_size": 32, "n_epochs": 1})
    reading = speed.probe(config, seconds=1.0, show=False)
    assert reading.busy and "while other programs use the cores)" in reading.sentence(1000)
    assert "while" not in KNOWN.sentence(1000)
    (entry,) = json.loads((cache.folder() / "speed.json").read_text()).values()
    assert entry["until"] < time.time() + 601

    config = RunConfig(total_steps=1_000_000, overrides={"n_steps": 16, "batch_size": 32})
    plan = tune._probe(config)
    assert plan is not None and plan.busy
    assert tune.sentence(config, config.resolve()).endswith("steps/s here while other programs use the cores")
