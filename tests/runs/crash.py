"""Sessions in forked processes that tests can kill: torch is imported once, each session starts in milliseconds."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch

from kit.config import RunConfig
from kit.measure.auto import resolve
from kit.runs import directory
from kit.runs.run import Run
from kit.runs.session import Session

SMALL = {
    "PPO": {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "policy_kwargs": {"net_arch": [16, 16]}},
    "RecurrentPPO": {
        "n_steps": 16, "batch_size": 16, "n_epochs": 2, "policy_kwargs": {"net_arch": [16], "lstm_hidden_size": 16},
    },
    "A2C": {"n_steps": 8, "policy_kwargs": {"net_arch": [16, 16]}},
    "Distill": {},
    "BC": {},
    **{
        algo: {"learning_starts": 60, "batch_size": 16, "buffer_size": 500, "policy_kwargs": {"net_arch": [16, 16]}}
        for algo in ("SAC", "TD3", "CrossQ")
    },
}  # fmt: skip
"""Networks and batches so small that a run of a thousand steps takes a second."""

SLIDE = "tests.envs.slide:Slide"
"""The cheapest MuJoCo task: a third of Reach's time, for tests in which the task does not matter."""

PRELOADED = (
    "kit.tasks.reach.task", "tests.envs.slide", "kit.runs.session", "kit.trainers.build", "torch.utils.tensorboard",
)  # fmt: skip
"""Modules that the parent imports before the forks. A child uses no thread or env of the parent."""


def create(runs_dir: Path, name: str, algo: str = "PPO", overrides: dict | None = None, **fields: object) -> Run:
    """Create the run directory of a small run, without training it."""
    settings = {"env": "Reach", "total_steps": 1200, "n_envs": 2, "threads": 1, "eval_every": 0, **fields}
    config = RunConfig(
        algo=algo, run_name=name, runs_dir=str(runs_dir), overrides={**SMALL[algo], **(overrides or {})}, **settings
    )
    return Run(directory.create(resolve(config)))


class Forked:
    """One session of `run` in a forked process."""

    def __init__(self, run: Run) -> None:
        for name in PRELOADED:
            importlib.import_module(name)

        self.run = run
        self.pid = os.fork()
        if self.pid == 0:
            self._child()

    def _child(self) -> None:
        code = 1
        try:
            log = os.open(self.run.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            torch.set_num_threads(1)  # the parent's pool of OpenMP threads, if it has one, does not survive a fork
            sys.stdout = sys.stderr = os.fdopen(log, "w", buffering=1)  # bypasses pytest's capture
            code = self._session()()
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def _session(self) -> Session:
        return Session(self.run.path)

    def is_over(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # already reaped by `wait`
            return True

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end; return the exit code, or minus the signal number if a signal killed the process."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def until(self, condition: Callable[[], bool], timeout: float = 60) -> bool:
        """Wait until `condition()` is true; return False if the process ended first. Raises `TimeoutError`."""
        end = time.monotonic() + timeout
        while not condition():
            if self.is_over():
                return False
            if time.monotonic() > end:
                raise TimeoutError(self.run.log())
            time.sleep(0.002)
        return True


def complete(run: Run) -> int:
    """Train `run` without interruption; return the exit code."""
    return Forked(run).wait()


def kill_everything_in(folder: Path) -> None:
    """SIGKILL every process whose working directory is in `folder`, to simulate the loss of a machine.

    Kills a batch and the kernels, runs and copiers that outlive it, but not the process of the test.
    """
    while left := list(_others_in(folder)):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)


def _others_in(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                yield process


def cut_twice(run: Run, steps: int) -> Iterator[None]:
    """Train `run` in two sessions; end the first by SIGTERM, the second by SIGKILL; yield after each.

    A session is ended when it has written a checkpoint more than `steps` steps after the last one before it.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        step = max((c.step for c in run.checkpoints()), default=-1)
        session = Forked(run)
        session.until(lambda step=step: any(c.step > step + steps for c in run.checkpoints()))
        session.kill(number)
        session.wait()
        yield
