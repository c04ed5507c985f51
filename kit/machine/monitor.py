"""Is the GPU working or waiting? Five samples a second from NVML, sorted by what the training does meanwhile."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
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


class GpuMonitor:
    """Watches a card from a thread of its own while the `with` block runs.

    >>> with GpuMonitor() as monitor:
    ...     monitor.phase = "update"
    ...     work()
    >>> monitor.summary("update")

    Without a GPU or without NVML it costs nothing and `summary()` is None.
    """

    def __init__(self, index: int = 0, read: Callable[[], Sample] | None = None) -> None:
        self.phase = "all"
        self.error = ""
        self._read = read or _nvml_reader(index)
        self._samples: dict[str, list[Sample]] = defaultdict(list)
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
        if self._read is not None:
            self._samples[self.phase].append(self._read())

    def summary(self, phase: str | None = None) -> Summary | None:
        """Over one phase, or over all; None where there are no samples."""
        lists = [self._samples[phase]] if phase is not None else list(self._samples.values())
        samples = [sample for samples in lists for sample in samples]
        if not samples:
            return None
        n = len(samples)
        return Summary(
            n,
            sum(s.busy_percent for s in samples) / n,
            max(s.memory_bytes for s in samples),
            sum(s.celsius for s in samples) / n,
            sum(s.watts for s in samples) / n,
        )

    def _watch(self) -> None:
        while not self._done.wait(1 / SAMPLES_PER_S):
            try:
                self.sample()
            except Exception as error:  # a card may fall off the bus; training goes on and the reason stays readable
                self.error = str(error)
                return


def _nvml_reader(index: int) -> Callable[[], Sample] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        handle: Any = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:  # not installed, no driver, no card: there is nothing to watch
        return None

    def read() -> Sample:
        return Sample(
            float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
            float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        )

    return read
