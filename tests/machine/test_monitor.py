"""GPU monitor with a fabricated card; settings."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from kit.machine import monitor as monitoring
from kit.machine import settings
from kit.machine.monitor import GpuMonitor, Sample


def test_samples_are_filed_by_phase() -> None:
    readings = iter([Sample(90, 10, 50, 100), Sample(10, 30, 60, 50), Sample(20, 20, 60, 70)])
    monitor = GpuMonitor(read=lambda: next(readings))
    monitor.phase = "update"
    monitor.sample()
    monitor.phase = "rollout"
    monitor.sample()
    monitor.sample()
    update, rollout, both = monitor.summary("update"), monitor.summary("rollout"), monitor.summary()
    assert update is not None and rollout is not None and both is not None
    assert (update.busy_percent, rollout.busy_percent, both.busy_percent) == (90, 15, 40)
    assert both.memory_bytes == 30
    assert "working (90 % busy)" in update.verdict
    assert 'device = "cpu", or more n_envs' in rollout.verdict


def test_its_thread_ends_with_the_block_and_a_lost_card_is_told() -> None:
    seen = threading.Event()

    def read() -> Sample:
        seen.set()
        raise OSError("GPU is lost")

    with GpuMonitor(read=read) as monitor:
        assert seen.wait(5)
    assert monitor.error == "GPU is lost"
    assert monitor.summary() is None


def test_a_card_that_does_not_tell_its_power_is_watched_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def untold(handle: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(monitoring, "_handle", lambda nvml, index: "card")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda card: SimpleNamespace(gpu=70, memory=20))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda card: SimpleNamespace(used=10**9))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", lambda card, sensor: 50)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", untold)
    read = monitoring.nvml_reader(0)
    assert read is not None and read() == Sample(70.0, 10**9, 50.0, 0.0)


def test_without_a_card_it_is_silent() -> None:
    with GpuMonitor(index=10_000) as monitor:
        assert not monitor.available
    assert monitor.summary() is None


def test_settings() -> None:
    before = torch.get_num_threads()
    try:
        assert settings.apply("cpu", 1) == {"threads": 1, "float32_products": "full"}
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    environment = settings.worker_environment(3, {"OMP_NUM_THREADS": "1", "HOME": "/home/me"})
    assert environment["OMP_NUM_THREADS"] == "1", "what the user set stays"
    assert environment["MKL_NUM_THREADS"] == "3"
    assert environment["HOME"] == "/home/me"
