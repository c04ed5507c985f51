"""The estimate below a panel's form: time, price, disk and memory of a run, from a short measurement."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kit.config import RunConfig
from kit.errors import UserError, explain
from kit.machine import places
from kit.measure import advice, speed
from kit.measure.auto import resolve
from kit.runs import directory
from kit.runs.finding import run_folders
from kit.runs.run import Run

MEASURING = "Measuring this machine for a few seconds… you can press Train already."
SETTLE_S = 0.4
"""Seconds after the last edit until the estimate starts."""


def working_runs(runs_dir: str | Path) -> list[Run]:
    """Return the runs in `runs_dir` that a process trains, the last started first. Opens no others: 10 ms each."""
    runs = []
    for path in run_folders(runs_dir):
        if directory.is_locked(path):
            with contextlib.suppress(UserError):  # a run of a newer version of kit
                runs.append(Run(path))
    return sorted(runs, key=lambda run: run.status()["started"] or float("inf"), reverse=True)


def name_or_count(runs: Sequence[Run], one: str, more: str) -> str:
    """Return "NAME `one`", or "3 other runs `more`"."""
    return f"{runs[0].name} {one}" if len(runs) == 1 else f"{len(runs)} other runs {more}"


class Estimator:
    """Checks a config and estimates time and price of its run in a thread. A new request cancels the previous one.

    Calls `show_resolved(config, resolved)`, then `show_label(message, valid)` with the estimate or an error. `valid` is
    False for an error, but True if only the speed could not be measured.
    """

    _one_at_a_time = threading.Lock()
    """Held by the estimator that measures, of all panels of this process."""

    def __init__(
        self, show_label: Callable[[str, bool], None], show_resolved: Callable[[RunConfig, RunConfig], None]
    ) -> None:
        self._show_label, self._show_resolved = show_label, show_resolved
        self._request = object()
        self._process: subprocess.Popen[str] | None = None

    def start(self, config: RunConfig, dollars_per_hour: float | None) -> None:
        """After `SETTLE_S`, check `config` and estimate time and price of its run."""
        self.cancel()
        timer = threading.Timer(SETTLE_S, self._estimate, (self._request, config, dollars_per_hour))
        timer.daemon = True
        timer.start()

    def cancel(self) -> None:
        """Drop the current request and kill the process that measures the speed for it."""
        self._request = object()
        if self._process is not None:
            self._process.kill()

    def _estimate(self, request: object, config: RunConfig, dollars_per_hour: float | None) -> None:
        risk = places.risk(config.runs_dir) if config.store is None else ""

        def others() -> list[Run]:
            return [run for run in working_runs(config.runs_dir) if run.status()["state"] != "paused"]

        def show(message: str, valid: bool) -> None:
            if request is self._request:
                self._show_label(f"{message.rstrip('.')}.{risk}" if valid and risk else message, valid)

        try:
            resolved = resolve(config)
            if request is self._request:
                self._show_resolved(config, resolved)
            if speed.cached(resolved) is None:
                show(MEASURING, True)
            with self._one_at_a_time:  # two probes would slow each other down
                at_work, measured = others(), speed.cached(resolved)
                if request is not self._request:
                    return
                if measured is None and not at_work:
                    self._process = process = speed.start_probe(resolved)
                    if request is not self._request:  # cancelled before the process was stored
                        process.kill()
                    measured = speed.wait_for_probe(process, resolved)
                    if at_work := others():  # one has started meanwhile: the measured speed is too low
                        speed.forget(resolved)
                        measured = None
                if measured is None:
                    ended = name_or_count(at_work, "has ended", "have ended")
                    show(f"The speed is measured when {ended}; you can press Train already.", True)
                    return
            time_and_price = advice.estimate(resolved, measured, None, dollars_per_hour)
            envs = f"with {resolved.n_envs} env{'' if resolved.n_envs == 1 else 's'} on {resolved.device}"
            uses = "; ".join(filter(None, (advice.memory_use(resolved, measured), advice.disk_use(resolved))))
            estimate = f"{time_and_price[0].upper()}{time_and_price[1:]}, {envs}; {uses}."
            if at_work:
                estimate += f" {name_or_count(at_work, 'is training too, so both', 'train, so all')} are slower."
            show(estimate, True)
        except Exception as error:
            show(explain(error), isinstance(error, speed.NotMeasured))
