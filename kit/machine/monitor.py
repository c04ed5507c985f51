"""Is the GPU working or waiting? Five samples a second from NVML, sorted by what the training does meanwhile."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SAMPLES_PER_S = 5.0
IDLE_PERCENT = 30.0


@dataclass(frozen=True)
class Sample:
    """One reading of one card."""

    busy_percent: float
    memory_bytes: int
    celsius: float
    watts: float


@dataclass(frozen=True)
class Summary:
    """Means over the samples of a phase (memory: the peak)."""

    samples: int
    busy_percent: float
    memory_bytes: int
    celsius: float
    watts: float

    @property
    def is_idle(self) -> bool:
        """Whether the card waits most of the time, judged over ten seconds at least."""
        return self.samples >= 10 * SAMPLES_PER_S and self.busy_percent < IDLE_PERCENT

    @property
    def verdict(self) -> str:
        """One sentence to act upon."""
        if self.busy_percent < IDLE_PERCENT:
            return f'The GPU idles ({self.busy_percent:.0f} % busy): use device = "cpu", or more n_envs.'
        return f"The GPU is working ({self.busy_percent:.0f} % busy)."

    def __add__(self, other: Summary) -> Summary:
        """Over the samples of both."""
        n = self.samples + other.samples

        def mean(name: str) -> float:
            return float(getattr(self, name) * self.samples + getattr(other, name) * other.samples) / n

        memory = max(self.memory_bytes, other.memory_bytes)
        return Summary(n, mean("busy_percent"), memory, mean("celsius"), mean("watts"))


class GpuMonitor:
    """Watches a card from a thread of its own while the `with` block runs.

    >>> with GpuMonitor() as monitor:
    ...     monitor.phase = "update"
    ...     work()
    >>> monitor.summary("update")

    A phase is what the process at work asked of the card last; the card finishes it a moment later. Without a GPU or
    without NVML it costs nothing and `summary()` is None.
    """

    def __init__(self, index: int | None = 0, read: Callable[[], Sample] | None = None) -> None:
        """Of torch's card number `index`, or of none."""
        self.phase = "all"
        self.error = ""
        self._read = read or (None if index is None else nvml_reader(index))
        self._all: dict[str, Summary] = {}
        self._recent: dict[str, Summary] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu-monitor", daemon=True)

    @property
    def available(self) -> bool:
        return self._read is not None

    def __enter__(self) -> GpuMonitor:
        if self.available:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def sample(self) -> None:
        """Take one reading now and file it under the present phase."""
        if self._read is None:
            return
        phase, seen = self.phase, self._read()
        one = Summary(1, seen.busy_percent, seen.memory_bytes, seen.celsius, seen.watts)
        with self._lock:
            for by_phase in (self._all, self._recent):
                by_phase[phase] = by_phase[phase] + one if phase in by_phase else one

    def phases(self) -> dict[str, Summary]:
        """What was seen so far, by phase."""
        with self._lock:
            return dict(self._all)

    def summary(self, *phases: str) -> Summary | None:
        """Over some phases, or over all; None where there are no samples."""
        return total([seen for phase, seen in self.phases().items() if not phases or phase in phases])

    def recent(self) -> dict[str, Summary]:
        """By phase, what was seen since the last call."""
        with self._lock:
            seen, self._recent = self._recent, {}
        return seen

    def _watch(self) -> None:
        while not self._done.wait(1 / SAMPLES_PER_S):
            try:
                self.sample()
            except Exception as error:  # a card may fall off the bus; training goes on and the reason stays readable
                self.error = str(error)
                return


def total(summaries: Sequence[Summary]) -> Summary | None:
    """Over the samples of all, if there are any."""
    return functools.reduce(operator.add, summaries) if summaries else None


def nvml_reader(index: int) -> Callable[[], Sample] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        handle: Any = _handle(pynvml, index)
    except Exception:  # not installed, no driver, no card: there is nothing to watch
        return None

    def if_told(ask: Callable[..., int], *what: int) -> float:
        """0 from a card that does not say, as laptops and shares of a card may not."""
        try:
            return float(ask(handle, *what))
        except pynvml.NVMLError:
            return 0.0

    def read() -> Sample:
        return Sample(
            float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
            if_told(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            if_told(pynvml.nvmlDeviceGetPowerUsage) / 1000,
        )

    return read


def _handle(nvml: Any, index: int) -> Any:
    """Of torch's card number `index`: CUDA_VISIBLE_DEVICES may have left some out, while NVML counts all."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # else asking torch would only start CUDA in this process
        import torch

        with contextlib.suppress(nvml.NVMLError):  # a slice of a card (MIG) has a number that NVML calls otherwise
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    return nvml.nvmlDeviceGetHandleByIndex(index)
