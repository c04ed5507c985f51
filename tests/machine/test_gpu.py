"""Tests of GPUs: list by nvidia-smi, missing drivers, summaries, monitoring of a fake GPU."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from kit.machine import gpu
from kit.machine.gpu import OTHER, UPDATE, Gpu, Monitor, Summary, total

SMI = {
    "--query": "Tesla T4, 15360, 550.54.15\nTesla T4, 15360, 550.54.15\n",
    "plain": "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |",
}


def test_gpus_from_nvidia_smi() -> None:
    cards = gpu.gpus(lambda command: SMI["--query" if len(command) > 1 else "plain"])
    assert cards == (Gpu("Tesla T4", 15360 * 2**20, "550.54.15", "12.4"),) * 2


def test_a_gpu_that_shares_the_computers_memory() -> None:
    (card,) = gpu.gpus(lambda command: "NVIDIA GB10, [N/A], 580.95.05\n" if len(command) > 1 else "")
    assert (card.name, card.memory) == ("NVIDIA GB10", "? GB")


@pytest.mark.parametrize("answer", ["", "No devices were found\n", "NVIDIA-SMI has failed, because, it could not\n"])
def test_no_gpu(answer: str) -> None:
    assert gpu.gpus(lambda command: answer) == ()


def test_a_gpu_without_a_driver(tmp_path: Path) -> None:
    assert not gpu.gpu_without_driver(tmp_path)
    device = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert gpu.gpu_without_driver(tmp_path)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("570")
    assert not gpu.gpu_without_driver(tmp_path)


def test_summaries_merge_and_advise_after_ten_seconds() -> None:
    one, three = Summary(1, 90.0, 10, 50.0, 100.0), Summary(3, 10.0, 30, 60.0, 60.0)
    assert total([one, three]) == Summary(4, 30.0, 30, 57.5, 70.0)
    assert total([]) is None
    assert three.verdict == "", "no verdict before ten seconds of samples"
    assert 'idles (10 % busy): use device = "cpu", or more n_envs' in Summary(50, 10.0, 30, 60.0, 60.0).verdict
    assert Summary(50, 90.0, 30, 60.0, 60.0).verdict == ""


def test_samples_are_grouped_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Semaphore(0)

    def read() -> Summary:
        seen.release()
        return Summary(1, 80.0 if monitor.phase == UPDATE else 5.0, 10**9, 50.0, 70.0)

    monkeypatch.setattr(gpu, "reader", lambda device: read)
    monkeypatch.setattr(gpu, "SAMPLES_PER_S", 200.0)
    before = set(threading.enumerate())
    with Monitor("cuda:0") as monitor:
        for phase in (OTHER, UPDATE):
            monitor.phase = phase
            for _ in range(3):  # the first may belong to the previous phase
                assert seen.acquire(timeout=5)
        assert monitor.columns()["gpu/update_busy"] == 80.0
        assert seen.acquire(timeout=5)
    assert set(threading.enumerate()) <= before, "the monitor's thread has ended"
    figures = monitor.summaries()
    assert figures is not None and set(figures) == {UPDATE}, "samples of the phase OTHER are not reported"
    assert figures[UPDATE]["busy_percent"] == 80.0 and figures[UPDATE]["memory_bytes"] == 10**9


def test_monitoring_ends_if_the_gpu_is_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def lost() -> Summary:
        raise OSError("GPU is lost")

    monkeypatch.setattr(gpu, "reader", lambda device: lost)
    monkeypatch.setattr(gpu, "SAMPLES_PER_S", 200.0)
    before = set(threading.enumerate())
    with Monitor("cuda") as monitor:
        for thread in set(threading.enumerate()) - before:
            thread.join(5)
        assert set(threading.enumerate()) <= before
    assert "GPU monitoring stopped: GPU is lost" in capsys.readouterr().out
    assert monitor.summaries() is None and monitor.columns() == {}


def test_a_gpu_without_a_power_sensor_is_monitored(monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(index: int) -> int:
        raise RuntimeError("Not Supported")

    for name, answer in (("utilization", 70), ("device_memory_used", 10**9), ("temperature", 50)):
        monkeypatch.setattr(torch.cuda, name, lambda index, answer=answer: answer + index)
    monkeypatch.setattr(torch.cuda, "power_draw", untold)
    read = gpu.reader("cuda:1")
    assert read is not None and read() == Summary(1, 71.0, 10**9 + 1, 51.0, 0.0)


@pytest.mark.parametrize("device", ["cpu", "cuda:1000"])
def test_without_a_gpu_there_are_no_samples(device: str) -> None:
    with Monitor(device) as monitor:
        pass
    assert monitor.summaries() is None and monitor.columns() == {}
