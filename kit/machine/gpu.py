"""NVIDIA cards: which there are, and how busy one is while a run trains.

The first comes from nvidia-smi, which every driver brings; the second from NVML, by torch and the package nvidia-ml-py.
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
"""Phases of a training. The last is preparation, evaluation and saving: what a card does then says nothing."""


@dataclass(frozen=True)
class Gpu:
    """One card."""

    name: str
    memory_bytes: int
    driver: str
    """The driver's version, such as "570.124.06"."""
    cuda: str
    """The newest CUDA version that this driver can run, such as "12.8"; empty when unknown."""


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


@functools.cache
def gpus(shell: Callable[[list[str]], str] = _run) -> tuple[Gpu, ...]:
    """The cards that the driver offers; empty without a card or without a working driver."""
    rows = shell(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"])
    found = re.findall(r"^(.+?), *(\d+), *([\d.]+) *$", rows, re.MULTILINE)
    header = re.search(r"CUDA(?: \w+)? Version:\s*([\d.]+)", shell(["nvidia-smi"])) if found else None
    cuda = header.group(1) if header else ""
    return tuple(Gpu(name, int(mebibytes) * 2**20, driver, cuda) for name, mebibytes, driver in found)


def gpu_without_driver(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA graphics card is plugged in that no driver answers for."""
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
    """What was seen of a card: means over some samples, and the peak of its memory (all programs together)."""

    samples: int
    busy_percent: float
    memory_bytes: int
    celsius: float
    watts: float

    @property
    def verdict(self) -> str:
        """A sentence to act upon if the card waits most of the time, judged over ten seconds at least; else empty."""
        if self.samples < 10 * SAMPLES_PER_S or self.busy_percent >= IDLE_PERCENT:
            return ""
        return f'The GPU idles ({self.busy_percent:.0f} % busy): use device = "cpu", or more n_envs.'


def total(seen: Iterable[Summary]) -> Summary | None:
    """Over the samples of all, if there are any."""
    if not (seen := list(seen)):
        return None
    n = sum(each.samples for each in seen)
    means = ("busy_percent", "celsius", "watts")
    busy, celsius, watts = (sum(getattr(each, name) * each.samples for each in seen) / n for name in means)
    return Summary(n, busy, max(each.memory_bytes for each in seen), celsius, watts)


class Monitor:
    """Watches what torch calls `device` from a thread of its own while the `with` block runs; on the CPU, or without
    NVML, it sees nothing. Its `phase` is what was asked of the card last; the card finishes it a moment later."""

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
        """For status.json: rollouts and updates so far, as fields of `Summary` by phase; None before."""
        with self._lock:
            return {phase: dataclasses.asdict(seen) for phase, seen in self._all.items() if phase != OTHER} or None

    def columns(self) -> dict[str, float]:
        """For a row of metrics, over the time since the row before: gpu/rollout_busy and gpu/update_busy (percent),
        gpu/memory_gb (peak), gpu/watts. What was not sampled is left out."""
        with self._lock:
            seen, self._recent = self._recent, {}
        busy = {f"gpu/{phase}_busy": each.busy_percent for phase, each in seen.items() if phase != OTHER}
        whole = total(seen.values())
        return busy if whole is None else {**busy, "gpu/memory_gb": whole.memory_bytes / 1e9, "gpu/watts": whole.watts}

    def _watch(self, read: Callable[[], Summary] | None) -> None:
        while read is not None and not self._done.wait(1 / SAMPLES_PER_S):
            try:
                phase, one = self.phase, read()
            except Exception as error:  # a card may fall off the bus; training goes on
                print(f"the GPU is watched no longer: {error}", flush=True)
                return
            with self._lock:
                for seen in (self._all, self._recent):
                    seen[phase] = total([one, *filter(None, [seen.get(phase)])]) or one


def reader(device: str) -> Callable[[], Summary] | None:
    """Takes one sample of what torch calls `device`; None where there is nothing to watch."""
    if device == "cpu":
        return None
    import torch

    index = torch.device(device).index or 0  # torch knows which of NVML's cards CUDA_VISIBLE_DEVICES has left

    def if_told(ask: Callable[[int], int]) -> float:
        try:
            return float(ask(index))
        except Exception:  # laptops and shares of a card may not say
            return 0.0

    def read() -> Summary:
        busy, memory = torch.cuda.utilization(index), torch.cuda.device_memory_used(index)
        return Summary(1, float(busy), memory, if_told(torch.cuda.temperature), if_told(torch.cuda.power_draw) / 1000)

    try:
        read()
    except Exception:  # not installed, no driver, no such card
        return None
    return read
