"""One process's turn at a run: from its latest checkpoint, or from nothing, to the end, a stop or a failure.

Two threads: one trains (`kit.runs.training`), one watches, five times a second, for requests, clocks and progress. They
meet in `Requests` and `Status`.

Running out of memory is no end: training goes on from the last checkpoint with half the worlds, down to 64. Policy,
optimizer, normaliser, counters, random numbers and history are the checkpoint's; the worlds begin new episodes (as they
do after a move between CPU and GPU, whose simulators hold other state). config.yaml says the new number from then on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import seconds
from kit.errors import Interrupted, UserError
from kit.format import checkpoint
from kit.format.files import write_atomic
from kit.machine import memory
from kit.machine.gpu import Monitor
from kit.runs import control, directory, provenance
from kit.runs.control import Requests
from kit.runs.interruption import SessionClock, Signals, SpotWatch
from kit.runs.run import Run
from kit.runs.status import DONE, FAILED, INTERRUPTED, Status
from kit.runs.training import Training
from kit.sim.compiling import listening

if TYPE_CHECKING:
    from kit.stores.sync import SyncHandle

POLL_S = 0.2
LEAST_WORLDS = 64
"""Out of memory with fewer than twice as many is the end: the networks are what is too large."""
LAST_WORD_S = 10.0
FINISHED_DRAIN_S, INTERRUPTED_DRAIN_S = 600.0, 60.0
"""How long a session waits for its last copy to arrive in the store before it says so and leaves."""


class Session:
    """Trains the run at `path` until it is done. `on_progress(status)` is called about five times a second."""

    def __init__(
        self, path: Path, on_progress: Callable[[dict[str, Any]], None] | None = None, lock: int | None = None
    ) -> None:
        """`lock`: the open file of the run's lock, if this process was born with it."""
        self.run, self._lock = Run(path), lock
        self.requests = Requests()
        self._on_progress = on_progress or (lambda status: None)
        self._training: Training | None = None
        """None while it is being built, and once its figures are final."""
        self._over = threading.Event()
        self._sync: SyncHandle | None = None
        limit = self.run.config.session_limit
        self._clock = SessionClock(seconds("session_limit", limit) if limit else None)
        self._before_compiling: str | None = None
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        self._monitor = Monitor(self.run.config.device)

    # -- the whole turn --------------------------------------------------------------------------------------------

    def __call__(self) -> int:
        """Exit code: 0 done, 75 interrupted but resumable, 1 failed. Raises `UserError` if the run is in use."""
        with directory.lock(self.run.path, self._lock), Signals(self._on_signal, self._on_hangup) as self._signals:
            checkpoint.sweep(self.run.path)
            self.status = Status(self.run.path, total_steps=self.run.config.total_steps)
            if self.status.values["plan"] and self.status.values["checkpoint"] is None:
                print(self.status.values["plan"], flush=True)
            watch = threading.Thread(target=self._watch, name="watch", daemon=True)
            watch.start()
            spot, code = SpotWatch(self.requests.stop), INTERRUPTED
            try:
                with self._monitor, listening(self._compiling):
                    code = self._train_in_memory()
            except UserError as error:
                self.status.set(state="failed", message=str(error))
                raise
            except Exception as error:
                traceback.print_exc()
                where = "the traceback is in worker.log" if self.run.log_path.exists() else "see the traceback"
                self.status.set(state="failed", message=f"{type(error).__name__}: {error}; {where}")
                code = FAILED
            finally:
                spot.close()
                self._over.set()
                watch.join()
                self.status.set(steps_per_s=None, eta_s=None, gpu=None)
                self._last_word()
                self._on_progress(self.status.values)
            return code

    def _train_in_memory(self) -> int:
        """Train, with half the worlds each time memory runs out."""
        with contextlib.suppress(OSError):
            provenance.write(self.run.path)
        shrunk = ""
        while True:
            training = None
            try:
                training = Training(self.run, self.status, self.requests, self._monitor, self._should_stop, self._say)
                return self._train(training, shrunk)
            except Exception as error:
                short_of = memory.shortage(error)
                if short_of is None or self.run.config.processes > 1:
                    raise
                traceback.print_exc()
                self._training = None
                if training is not None:
                    training.close()
            del training  # and here, where no traceback holds on to tensors any more
            shrunk = self._halve(short_of)

    def _train(self, training: Training, shrunk: str) -> int:
        if self.run.config.store and self._sync is None:
            from kit.stores.sync import start_sync

            self.status.set(phase="opening the store")
            self._sync = start_sync(self.run.path, self.run.config.store)
        if shrunk:
            self._say(shrunk)
            training.metrics.add(training.step, {"run/n_envs": int(training.config.n_envs)})
        self._training_start, self._training = time.monotonic(), training
        self.status.set(state="running", phase="training")
        try:
            training.learn()
            return self._finished(training)
        except Interrupted as error:
            return self._interrupted(training, self.requests.reason or str(error))

    def _halve(self, short_of: str) -> str:
        """Put half the worlds into config.yaml, and say so. Raises `UserError` if that would not do."""
        from kit.trainers import algorithm

        config, worlds = self.run.config, int(self.run.config.n_envs) // 2
        found = algorithm.find(config.algo)
        if not found.fewer_envs or worlds < LEAST_WORLDS:
            remedy = found.memory_remedy
            raise UserError(f"n_envs={config.n_envs}: memory ran out ({short_of}); choose a smaller {remedy}.")
        self.status.set(state="starting", phase="out of memory, making room", steps_per_s=None, eta_s=None)
        memory.give_back()
        write_atomic(self.run.path / "config.yaml", algorithm.with_n_envs(config, worlds).to_yaml())
        self.run = Run(self.run.path)
        shrunk = f"memory ran out with {config.n_envs:,} worlds ({short_of}); going on with {worlds:,}"
        self._say(shrunk)
        return shrunk

    # -- the two ends ----------------------------------------------------------------------------------------------

    def _interrupted(self, training: Training, reason: str) -> int:
        self._last_figures()
        self.status.set(state="stopping", phase="saving", message=reason)
        self.status.write()
        try:
            training.save_now()
        except Interrupted as error:  # with a process that was needed
            reason = str(error)
        except OSError as error:
            reason = f"{reason}, but the last checkpoint could not be written ({error.strerror})"
        return self._leave(training, reason)

    def _leave(self, training: Training, reason: str) -> int:
        step = max(training.writer.step, 0)
        self.status.set(state="interrupted", step=step)
        self._say(f"{reason}; resume goes on from step {step:,}")
        self._drain(training.writer.step, INTERRUPTED_DRAIN_S)
        training.close()
        return INTERRUPTED

    def _finished(self, training: Training) -> int:
        self._last_figures()
        self.status.set(phase="saving")
        try:
            training.save_now()
        except OSError as error:
            self.status.set(state="stopping")
            return self._leave(training, f"trained to the end, but it could not be written ({error.strerror})")
        training.close()
        step, store = training.step, self.run.config.store
        self.status.set(state="finished", step=step, message=f"done: {step:,} steps")
        self.status.write()
        if (store or "").startswith("hf://"):
            self._film()
        if not self._drain(step, FINISHED_DRAIN_S):
            given_up = self._sync is not None and self._sync.is_done()
            goes_on = "`kit resume` tries it again" if given_up else "it is still being tried"
            self._say(f"done, but step {step:,} has not arrived in {store} yet; {goes_on}")
        return DONE

    def _last_figures(self) -> None:
        """What the last update and evaluation came to; from here on the step told is the one that is saved."""
        self._progress()
        self._training = None

    def _film(self) -> None:
        """The run's page on the Hub shows the robot. Whatever goes wrong here is said; the run is done all the same."""
        from kit.runs.video import record

        def hurry(done: int, at_most: int) -> None:
            if self.requests.hurry:
                raise Interrupted("a signal came first")

        self.status.set(phase="filming")
        try:
            record(self.run, episodes=1, on_frame=hurry)
        except Exception as error:
            self._say(f"done, without a video for the run's page: {error}")
        self.status.set(phase="finished")

    def _drain(self, step: int, at_most_s: float) -> bool:
        """Wait until the checkpoint of `step` has arrived in the store; less long if a signal says to hurry. The copier
        goes on by itself afterwards, for as long as the machine lives."""
        if self._sync is None:
            return True
        phase, end = self.status.values["phase"], time.monotonic() + at_most_s
        self.status.set(phase="copying to the store")
        state = self._sync.stop(drain_s=0.0)
        finished = self.status.values["state"] == "finished"
        while time.monotonic() < end and not self.requests.hurry:
            if self._sync.is_done() or (state["step"] == step and not finished):
                break
            state = self._sync.stop(drain_s=POLL_S)
        self.status.set(phase=phase)
        return bool(state["step"] == step)

    # -- what is wanted --------------------------------------------------------------------------------------------

    def _should_stop(self) -> bool:
        """Asked by the trainer before each env step and minibatch; waits here while the run is paused."""
        if self.requests.paused:
            begun = time.monotonic()
            self.status.set(state="paused", steps_per_s=None, eta_s=None)
            while self.requests.paused and self.requests.reason is None:
                time.sleep(POLL_S / 4)
            self.status.set(state="running", phase="training")
            self._training_start += time.monotonic() - begun
        return self.requests.reason is not None and (self._training is None or self._training.can_be_cut)

    def _on_signal(self, name: str) -> None:
        if self.status.values["state"] == "starting":  # nothing was done yet that the last checkpoint does not hold
            self.status.set(state="interrupted", message=f"{self.requests.reason or name} while starting")
            self.status.write()
            sys.stdout.flush()
            raise SystemExit(INTERRUPTED)
        self.requests.hurry = True
        self.requests.stop(name)

    def _on_hangup(self) -> None:
        """The terminal is gone, and who closed a laptop wants the work to go on: so it does, and what it prints goes to
        the log."""
        with self.run.log_path.open("ab") as log:
            for terminal in self._terminals:
                os.dup2(log.fileno(), terminal)
        self._say(f"the terminal was closed; training goes on (kit stop {self.run.name} ends it)")

    def _watch(self) -> None:
        """Five times a second: requests, the session clock, progress; once a second status.json."""
        ticks, told = 0, ""
        while not self._over.wait(POLL_S):
            ticks += 1
            try:
                self._look(ticks)
            except Exception as error:  # whatever it is, requests and clocks must be looked at again
                if (what := f"{type(error).__name__}: {error}") != told:
                    told = what
                    self._say(f"while watching: {what}")

    def _look(self, ticks: int) -> None:
        for command in control.take(self.run.path):
            self.requests.obey(command)
            if command == "stop" and self.status.values["state"] == "starting":
                self._signals.raise_in_main_thread()
        training = self._training
        if self._clock.is_over(training.longest_save_s if training else 0.0):
            self.requests.stop(f"session_limit={self.run.config.session_limit} is reached")
        if ticks % 5 == 0:
            self._progress()
            self.status.write()
        self._on_progress(self.status.values)

    def _last_word(self) -> None:
        """How the session ended must reach the disk, also one that was full a moment ago."""
        self.status.write()
        end = time.monotonic() + LAST_WORD_S
        while not self.status.written and time.monotonic() < end:
            time.sleep(POLL_S)
            self.status.write()

    def _compiling(self, sentence: str) -> None:
        """Told once a second while kernels compile, then the empty sentence."""
        if sentence and self._before_compiling is None:
            print(sentence, flush=True)
            self._before_compiling = str(self.status.values["phase"])
        self.status.set(phase=sentence or self._before_compiling)
        if not sentence:
            self._before_compiling = None

    def _progress(self) -> None:
        if (training := self._training) is None:
            return
        step, last = training.trainer.num_timesteps, training.metrics.last
        self.status.set(
            step=step,
            gpu=self._monitor.summaries(),
            mean_return=_newest(last, "mean_return", "ep_rew_mean"),
            success_rate=_newest(last, "success_rate", "success_rate"),
        )
        elapsed_s = time.monotonic() - self._training_start
        if not self.requests.paused and step > training.first_step and elapsed_s > 1:
            rate = (step - training.first_step) / elapsed_s
            self.status.set(steps_per_s=rate, eta_s=max(0, training.config.total_steps - step) / rate)

    def _say(self, sentence: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk, a terminal that is gone
            print(sentence, flush=True)
        self.status.set(message=sentence)


def _newest(last: dict[str, Any], evaluated: str, trained: str) -> float | None:
    """The latest figure there is: of the test at the end, of an evaluation, or of training itself."""
    return last.get(f"test/{evaluated}", last.get(f"eval/{evaluated}", last.get(f"rollout/{trained}")))
