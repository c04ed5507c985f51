"""Tests of the speed probe, estimates and advice: arithmetic by hand, probes of real envs for a second."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tqdm import tqdm

from kit.config import RunConfig
from kit.machine.gpu import Gpu
from kit.measure import advice, speed
from kit.measure.auto import resolve
from kit.measure.speed import Speed
from kit.trainers.off_policy import OffPolicyTrainer
from tests.machine.test_info import machine

KNOWN = Speed("Reach", "PPO", 8, "cpu", 4000.0, 3000.0, 1500.0, 2.0)
SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 1}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_cache", {})


def test_rate_is_measured_in_the_second_half() -> None:
    marks = [(0.0, 0), (4.0, 100), (5.0, 200), (6.0, 300), (8.0, 500)]
    assert speed.rate_of(marks) == (500 - 100) / (8.0 - 4.0)
    assert speed.rate_of([(0.0, 0), (2.0, 100)]) == 50.0


def test_a_probe_measures_and_is_cached() -> None:
    config = RunConfig(env="Reach", n_envs=2, overrides=SMALL)
    first = speed.probe(config, seconds=1.0, show=False)
    assert first.physics_steps_per_s is not None
    assert first.steps_per_s > 0 and first.env_steps_per_s > 0
    assert first.evaluation_s > 0
    assert speed.probe(config.replace(total_steps=7, seed=5), show=False) is first, "neither changes the speed"
    assert speed.cached(resolve(config.replace(overrides={**config.overrides, "gamma": 0.9}))) is not None
    assert speed.cached(resolve(config.replace(n_envs=4))) is None


def test_a_probe_in_its_own_process_and_one_that_fails(registered: str) -> None:
    config = resolve(RunConfig(env=registered, n_envs=2, overrides=SMALL))
    known = speed.wait_for_probe(speed.start_probe(config, seconds=0.5), config)
    assert (known.env, known.physics_steps_per_s) == (registered, None)
    assert known.steps_per_s > 0 and speed.cached(config) == known
    process = speed.start_probe(config)
    process.kill()
    with pytest.raises(speed.NotMeasured):
        speed.wait_for_probe(process, config)


def test_the_bar_of_a_probe_that_ends_early_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook shows a bar that ends before its total in red."""
    bars: list[tqdm] = []

    def made(total: int, **options: Any) -> tqdm:
        bars.append(tqdm(total=total, file=io.StringIO(), **options))
        return bars[0]

    monkeypatch.setattr(speed, "progress_bar", made)
    with speed.bar(1000.0) as report:
        report("physics")
        assert bars[0].n < 100
    assert bars[0].n == 100


def test_a_probe_fails_if_an_iteration_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "PATIENCE_S", 0.2)
    config = RunConfig(env="Reach", n_envs=2, overrides={"n_steps": 4096, "batch_size": 8192})
    with pytest.raises(speed.NotMeasured, match=r"one iteration takes more than 0\.2 s here; choose a smaller network"):
        speed.probe(config, seconds=0.1, show=False)


@pytest.mark.parametrize("algo", ["SAC", "TD3", "CrossQ"])
def test_a_probe_measures_updates_even_if_they_start_late(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = []
    monkeypatch.setattr(OffPolicyTrainer, "train", lambda self, *_: updates.append(1))
    config = RunConfig(env="Reach", algo=algo, n_envs=2, overrides={"learning_starts": 10**6, "batch_size": 16})
    measured = speed.probe(config, seconds=0.5, show=False)
    assert updates
    two_obs, action, reward_and_end = 2 * 24 * 4, 7 * 4, 4 + 1
    assert measured.replay_bytes == two_obs + action + reward_and_end, "bytes of an env step of Reach, by hand"
    assert measured.replay_use(config.replace(total_steps=1000)) == 225_000


def test_the_evaluation_of_physics_without_images_is_measured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made(Exception):
        pass

    def make(config: RunConfig, n_envs: int) -> None:
        raise Made(config.device)

    monkeypatch.setattr(speed, "_make_env", make)
    with pytest.raises(Made, match="cpu"):
        speed._evaluation(RunConfig(env="Reach", device="cuda"), None, 1.0)


def test_the_estimate_counts_evaluations() -> None:
    config = RunConfig(total_steps=150_000)
    assert KNOWN.seconds(config.replace(eval_every=0)) == 5 + 100
    assert KNOWN.seconds(config) == 5 + 100 + (11 + 1) * 2, "the last one is the final test"
    assert KNOWN.seconds(config.replace(eval_every=50_000)) == 5 + 100 + (4 + 1) * 2


def test_a_run_of_few_iterations_is_not_evaluated_more_often_than_they_end() -> None:
    """3,000 steps of 8 envs, 256 steps of each per iteration: the first policy, two more, and the final test."""
    config = RunConfig(total_steps=3000, eval_every=300, overrides={"n_steps": 256})
    assert KNOWN.seconds(config) == 5 + 2 + (3 + 1) * 2
    assert KNOWN.seconds(config.replace(eval_every=3000)) == 5 + 2 + (2 + 1) * 2


def test_text_of_estimates_and_speeds() -> None:
    config = RunConfig(total_steps=90_000, eval_every=90_000)
    assert advice.estimate(config, KNOWN, machine()) == (
        "about 70 s on this machine (about 1,500 steps/s, measured once; with start and evaluations), free of charge"
    )
    assert advice.estimate(config, KNOWN, machine(place="Azure")) == (
        "about 70 s on this machine (about 1,500 steps/s, measured once; with start and evaluations)"
    )
    assert str(KNOWN).splitlines()[1:] == [
        "     4,000  bare physics",
        "     3,000  the env, with observations and rewards",
        "     1,500  training, end to end",
        "The env reaches 75 % of bare physics. Networks take 50 % of the training time.",
    ]


def test_text_of_disk_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`runs_dir` need not exist yet."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=71.4e9 if folder == tmp_path else 0))
    config = RunConfig(runs_dir=str(tmp_path / "not" / "yet"), disk_budget="10GB")
    assert advice.disk_use(config) == "checkpoints take at most 10 GB of 71.4 GB of free disk space"
    much = config.replace(disk_budget="1TB")
    assert advice.disk_use(much) == "checkpoints take at most 1 TB, but there are only 71.4 GB of free disk space"


def test_text_of_memory_use() -> None:
    """100,000 clips of 13 kB; a run of fewer steps than the buffer holds never fills it."""
    images = dataclasses.replace(KNOWN, replay_bytes=13_000.0, replay_steps=1_000_000)
    config, small = RunConfig(total_steps=100_000), machine(memory_bytes=int(12e9))
    assert advice.memory_use(config, images, small) == "stored steps take 1.3 GB of 12 GB of memory"
    assert advice.memory_use(config.replace(total_steps=9_000_000), images, small) == (
        "stored steps take 13 GB, but there are only 12 GB of memory: lower buffer_size"
    )
    assert advice.memory_use(config, KNOWN, small) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "3 s"), (99, "99 s"), (120, "2 min"), (5900, "98 min"), (6000, "1 h 40 min"), (90_000, "25 h 00 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert speed.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.2, "8 s"), (71, "70 s"), (99, "2 min"), (254, "4 min"), (714, "12 min"), (2780, "45 min"), (7390, "2 h"),
        (9300, "2 h 30 min"),
    ],
)
def test_an_estimate_from_one_measurement_is_rounded(seconds: float, text: str) -> None:
    assert speed.rough_duration(seconds) == text


def test_cost_where_a_price_is_known() -> None:
    card = (Gpu("NVIDIA GeForce RTX 4090", 24 * 2**30, "550", "12.4"),)
    assert advice.cost(machine(place="RunPod", gpus=card), 3600) == "about $0.79 at the last known price"
    assert advice.cost(machine(place="RunPod", gpus=card), 2) == "under 1 cent at the last known price"
    assert advice.cost(machine(place="RunPod"), 3600) == ""
    assert advice.cost(machine(place="Google Colab"), 3600) == "free of charge"
    assert advice.cost(machine(place="Google Colab", gpus=card), 3600) == ""
    assert advice.cost(machine(), 3600) == "free of charge"
    assert advice.cost(machine(place="Azure"), 3600) == ""


def test_advice_names_an_idle_gpu_and_a_preset_that_is_not_tuned() -> None:
    card = (Gpu("Card", 80 * 2**30, "570", "12.8"),)
    alone, beside = (str(advice.advise(RunConfig(eval_every=0), KNOWN, machine(gpus=gpus))) for gpus in ((), card))
    assert "100,000 steps of Reach with PPO take about 70 s" in alone and "Without a GPU" in alone
    assert 'Card is not used. device = "cuda" lets PPO step 2,048 envs at once on it.' in beside
    beast = str(advice.advise(RunConfig(eval_every=0, preset="beast"), KNOWN, machine()))
    assert 'preset = "beast"' in beast and "preset" not in alone


def test_bench_measures_images_too() -> None:
    found = speed.bench("Reach", n_envs=2, seconds=1.0)
    assert found.pictures_per_s is not None and found.pictures_per_s > 0
    assert "  images of 64×64\n" in str(found) and 0 <= found.update_share < 1
    assert found.physics_steps_per_s is not None and found.physics_steps_per_s >= found.env_steps_per_s


def test_a_run_with_a_teacher_is_measured_without_the_teacher() -> None:
    config = RunConfig(env="tests.envs.chase:Chase", algo="Distill", teacher="runs/nowhere", n_envs=2, threads=1)
    assert speed.probe(config.replace(overrides={"gradient_steps": 1}), seconds=0.5, show=False).steps_per_s > 0
