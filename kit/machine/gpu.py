"""NVIDIA GPUs: list them, and monitor one while a run trains.

The list comes from nvidia-smi, which comes with every driver; monitoring uses NVML through torch and the package
nvidia-ml-py.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLES_PER_S = 5.0
IDLE_PERCENT = 30.0
ROLLOUT, UPDATE, OTHER = "rollout", "update", "other"
"""Phases of training. `OTHER` is preparation, evaluation and saving; its GPU load is not reported."""


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    memory_bytes: int
    """0 if the driver does not say it, as for a GPU that shares the computer's memory."""
    driver: str
    """The driver's version, such as "570.124.06"."""
    cuda: str
    """The newest CUDA version that this driver supports, such as "12.8"; empty if unknown."""

    @property
    def memory(self) -> str:
        """The memory for people, such as "15 GB"; "? GB" if unknown."""
        return f"{self.memory_bytes / 2**30:.0f} GB" if self.memory_bytes else "? GB"


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


@functools.cache
def gpus(shell: Callable[[list[str]], str] = _run) -> tuple[Gpu, ...]:
    """List the GPUs that the driver reports; empty without a GPU or without a working driver."""
    rows = shell(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"])
    entries = re.findall(r"^(.+?), *(?:(\d+)|\[N/A\]), *([\d.]+) *$", rows, re.MULTILINE)
    header = re.search(r"CUDA(?: \w+)? Version:\s*([\d.]+)", shell(["nvidia-smi"])) if entries else None
    cuda = header.group(1) if header else ""
    return tuple(Gpu(name, int(mebibytes or 0) * 2**20, driver, cuda) for name, mebibytes, driver in entries)


def gpu_without_driver(root: Path = Path("/")) -> bool:
    """Return whether an NVIDIA GPU is plugged in but has no driver."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):  # NVIDIA, display controller
            return not (root / "proc/driver/nvidia/version").exists()
    return False


@dataclass(frozen=True)
class Summary:
    """Means of a GPU's samples; `memory_bytes` is the peak, for all programs together."""

    samples: int
    busy_percent: float
    memory_bytes: int
    celsius: float
    watts: float

    @property
    def verdict(self) -> str:
        """Advice if the GPU was mostly idle, else "". Always "" for less than ten seconds of samples."""
        if self.samples < 10 * SAMPLES_PER_S or self.busy_percent >= IDLE_PERCENT:
            return ""
        return f'The GPU idles ({self.busy_percent:.0f} % busy): use device = "cpu", or more n_envs.'


def total(summaries: Iterable[Summary]) -> Summary | None:
    """Merge summaries, weighted by their numbers of samples; return None without summaries."""
    if not (summaries := list(summaries)):
        return None
    n = sum(each.samples for each in summaries)
    means = ("busy_percent", "celsius", "watts")
    busy, celsius, watts = (sum(getattr(each, name) * each.samples for each in summaries) / n for name in means)
    return Summary(n, busy, max(each.memory_bytes for each in summaries), celsius, watts)


class Monitor:
    """Context manager: samples the GPU `device` (torch's name) from a thread while the `with` block runs.

    On the CPU, or without NVML, there are no samples. The caller sets `phase` when a phase starts. The first samples of
    a phase may still show work of the previous one, because the GPU works asynchronously.
    """

    def __init__(self, device: str) -> None:
        self.phase = OTHER
        self._device = device
        self._all: dict[str, Summary] = {}
        self._recent: dict[str, Summary] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()

    def __enter__(self) -> Monitor:
        self._thread = threading.Thread(target=self._watch, args=[reader(self._device)], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=2)

    def summaries(self) -> dict[str, Any] | None:
        """Return the GPU entry of status.json: phase -> fields of `Summary`; None before the first sample."""
        with self._lock:
            return {phase: dataclasses.asdict(one) for phase, one in self._all.items() if phase != OTHER} or None

    def columns(self) -> dict[str, float]:
        """Return the metrics since the last call: "gpu/rollout_busy" and "gpu/update_busy" (percent), "gpu/memory_gb"
        (peak), "gpu/watts". Metrics without samples are left out."""
        with self._lock:
            recent, self._recent = self._recent, {}
        busy = {f"gpu/{phase}_busy": each.busy_percent for phase, each in recent.items() if phase != OTHER}
        whole = total(recent.values())
        return busy if whole is None else {**busy, "gpu/memory_gb": whole.memory_bytes / 1e9, "gpu/watts": whole.watts}

    def _watch(self, read: Callable[[], Summary] | None) -> None:
        while read is not None and not self._done.wait(1 / SAMPLES_PER_S):
            try:
                phase, sample = self.phase, read()
            except Exception as error:  # a GPU may fall off the bus; training continues
                print(f"GPU monitoring stopped: {error}", flush=True)
                return
            with self._lock:
                for by_phase in (self._all, self._recent):
                    by_phase[phase] = total([sample, *filter(None, [by_phase.get(phase)])]) or sample


def reader(device: str) -> Callable[[], Summary] | None:
    """Return a function that takes one sample of the GPU `device`; None if it cannot be monitored."""
    if device == "cpu":
        return None
    import torch

    index = torch.device(device).index or 0  # torch converts its index to NVML's (CUDA_VISIBLE_DEVICES)

    def or_zero(sensor: Callable[[int], int]) -> float:
        try:
            return float(sensor(index))
        except Exception:  # laptop GPUs and MIG slices may lack the sensor
            return 0.0

    def read() -> Summary:
        busy, memory = torch.cuda.utilization(index), torch.cuda.device_memory_used(index)
        return Summary(1, float(busy), memory, or_zero(torch.cuda.temperature), or_zero(torch.cuda.power_draw) / 1000)

    try:
        read()
    except Exception:  # not installed, no driver, no such GPU
        return None
    return read
