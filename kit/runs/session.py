"""A training session: one process trains a run from its latest checkpoint until it finishes, stops or fails.

One thread trains (`kit.runs.training`); another polls commands, time limits and progress five times a second. Both
share `Requests` and `Status`.

When memory runs out, training continues from the last checkpoint with half the envs, down to 64. Policy, optimizer,
normaliser, counters, random numbers and metrics come from the checkpoint; the envs start new episodes (also when a run
moves between CPU and GPU, whose simulators have different state). The new number of envs is written to config.yaml.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import trust
from kit.config import seconds
from kit.errors import Interrupted, UserError, explain
from kit.format import checkpoint
from kit.format.files import write_atomic
from kit.machine import memory
from kit.machine.gpu import Monitor
from kit.runs import control, directory, notify, provenance
from kit.runs.control import Requests
from kit.runs.interruption import SessionClock, handlers, spot_watch
from kit.runs.run import Run
from kit.runs.status import DONE, FAILED, INTERRUPTED, Status
from kit.runs.training import Training
from kit.sim.compiling import listening

if TYPE_CHECKING:
    from kit.stores.sync import SyncHandle

POLL_S = 0.2
MIN_ENVS = 64
"""Minimum number of envs after halving. If memory runs out even then, training fails: the networks are too large."""
FINAL_STATUS_S = 10.0
"""Seconds during which the last write of status.json is retried if the disk is full."""
FINISHED_DRAIN_S, INTERRUPTED_DRAIN_S = 600.0, 60.0
"""Maximum seconds that a finished or interrupted session waits for its last checkpoint to be in the store."""


class Session:
    """One training session of the run at `path`. Calls `on_progress(status)` about five times a second."""

    def __init__(
        self, path: Path, on_progress: Callable[[dict[str, Any]], None] | None = None, lock: int | None = None
    ) -> None:
        """`lock`: file descriptor of the run's lock, if the parent process took it and passed it on."""
        self.run, self._lock = Run(path), lock
        self.requests = Requests()
        self._on_progress = on_progress or (lambda status: None)
        self._training: Training | None = None
        """None before it is built and after its last metrics are in the status."""
        self._rate_from: tuple[float, int] | None = None
        """Time and step from which steps per second are counted: those of the first poll after a step of training."""
        self._over = threading.Event()
        self._sync: SyncHandle | None = None
        limit = self.run.config.session_limit
        self._clock = SessionClock(seconds("session_limit", limit) if limit else None)
        self._phase_before_compiling: str | None = None
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        self._monitor = Monitor(self.run.config.device)

    # -- the session -----------------------------------------------------------------------------------------------

    def __call__(self) -> int:
        """Run the session. Return the exit code: 0 done, 75 interrupted but resumable, 1 failed.

        Raises `UserError` if the run is in use.
        """
        with directory.lock(self.run.path, self._lock):
            config = self.run.config
            task = f"{config.env}, {config.algo}"
            self.status = Status(self.run.path, total_steps=config.total_steps, task=task)  # the handlers need it
            trust.training.add(self)
            try:
                with handlers(self._on_signal, self._on_hangup) as self._installed:
                    return self._train_and_report()
            finally:
                trust.training.discard(self)

    def _train_and_report(self) -> int:
        """Train, while a thread polls commands; write the final status. Return the exit code."""
        checkpoint.sweep(self.run.path)
        if self.status.values["plan"] and self.status.values["checkpoint"] is None:
            print(self.status.values["plan"], flush=True)
        watch = threading.Thread(target=self._watch, name="watch", daemon=True)
        watch.start()
        try:
            with self._monitor, listening(self._compiling), spot_watch(self.requests.stop):
                code = self._train_and_shrink()
        except UserError as error:
            self._progress()
            self.status.set(state="failed", message=str(error))
            raise
        except Exception as error:
            traceback.print_exc()
            self._progress()
            log = f"{self.run.name}/{self.run.log_path.name}"
            where = f"the traceback is in {log}" if self.run.log_path.exists() else "see the traceback"
            self.status.set(state="failed", message=f"{explain(error)}; {where}")
            code = FAILED
        finally:
            self._over.set()
            watch.join()
            self.status.set(steps_per_s=None, eta_s=None, gpu=None)
            self._write_final_status()
            self._on_progress(self.status.values)
            if self.requests.reason != control.ON_REQUEST:  # no message to the user who stopped the run
                notify.send(self.run.name, self.status.values)
        return code

    def _train_and_shrink(self) -> int:
        """Train, halving the number of envs each time memory runs out."""
        with contextlib.suppress(OSError):
            provenance.write(self.run.path, self.run.config)
        shrink_message = ""
        while True:
            training = None
            try:
                training = Training(
                    self.run, self.status, self.requests, self._monitor, self._should_stop, self._say
                )
                return self._train(training, shrink_message)
            except Exception as error:
                shortage = memory.shortage(error)
                if shortage is None or self.run.config.processes > 1:
                    if training is not None:  # awaits a checkpoint being written, ends other ranks, frees the envs
                        with contextlib.suppress(Exception):
                            training.close()
                    raise
                traceback.print_exc()
                self._training = None
                if training is not None:
                    training.close()
            del training  # outside the except block, in which the traceback keeps the tensors alive
            shrink_message = self._halve_envs(shortage)

    def _train(self, training: Training, shrink_message: str) -> int:
        if self.run.config.store and self._sync is None:
            from kit.stores.sync import start_sync

            self.status.set(phase="opening the store")
            self._sync = start_sync(self.run.path, self.run.config.store)
        if shrink_message:
            self._say(shrink_message)
            training.metrics.add(training.step, {"run/n_envs": int(training.config.n_envs)})
        self._rate_from, self._training = None, training
        self.status.set(state="running", phase="training")
        try:
            training.learn()
            return self._finished(training)
        except Interrupted as error:
            return self._interrupted(training, self.requests.reason or str(error))

    def _halve_envs(self, shortage: str) -> str:
        """Halve the envs in config.yaml; return a message. Raises `UserError` if that does not save memory."""
        from kit.trainers import algorithm

        config, n_envs = self.run.config, int(self.run.config.n_envs) // 2
        record = algorithm.find(config.algo)
        if not record.fewer_envs or n_envs < MIN_ENVS:
            remedy = record.memory_remedy
            raise UserError(f"n_envs={config.n_envs}: memory ran out ({shortage}); choose a smaller {remedy}.")
        self.status.set(state="starting", phase="out of memory, halving the envs", steps_per_s=None, eta_s=None)
        memory.give_back()
        write_atomic(self.run.path / "config.yaml", algorithm.with_n_envs(config, n_envs).to_yaml())
        self.run = Run(self.run.path)
        message = f"memory ran out with {config.n_envs:,} envs ({shortage}); going on with {n_envs:,}"
        self._say(message)
        return message

    # -- ending ----------------------------------------------------------------------------------------------------

    def _interrupted(self, training: Training, reason: str) -> int:
        self._freeze_progress()
        self.status.set(state="stopping", phase="saving", message=reason)
        self.status.write()
        try:
            training.save_now()
        except Interrupted as error:  # another rank's process has died, and its state is lost
            reason = str(error)
        except OSError as error:
            reason = f"{reason}, but the last checkpoint could not be written ({error.strerror})"
        return self._end_interrupted(training, reason)

    def _end_interrupted(self, training: Training, reason: str) -> int:
        step = max(training.writer.step, 0)
        self.status.set(state="interrupted", step=step)
        message = f"{reason}; resume goes on from step {step:,}"
        self._say(message)
        if not self._drain(training.writer.step, INTERRUPTED_DRAIN_S):
            self._say(f"{message}, which is on this machine only: {self._copied()}")
        training.close()
        return INTERRUPTED

    def _finished(self, training: Training) -> int:
        self._freeze_progress()
        self.status.set(phase="saving")
        try:
            training.save_now()
        except OSError as error:
            self.status.set(state="stopping")
            reason = f"trained to the end, but the last checkpoint could not be written ({error.strerror})"
            return self._end_interrupted(training, reason)
        training.close()
        step, store = training.step, self.run.config.store
        self.status.set(state="finished", step=step, message=f"done: {step:,} steps")
        self.status.write()
        if (store or "").startswith("hf://"):
            self._record_video()
        if not self._drain(step, FINISHED_DRAIN_S):
            copier_ended = self._sync is not None and self._sync.is_done()
            what_next = "`kit resume` repeats the upload" if copier_ended else "the copier continues in the background"
            self._say(f"done, but step {step:,} has not arrived in {store} yet; {what_next}")
        return DONE

    def _freeze_progress(self) -> None:
        """Copy the last metrics to the status, and stop updating the status from the trainer."""
        self._progress()
        self._training = None

    def _record_video(self) -> None:
        """Record a video for the run's page on the Hub. An error is reported and does not fail the run."""
        from kit.runs.video import record

        def check_hurry(done: int, at_most: int) -> None:
            if self.requests.hurry:
                raise Interrupted("a signal came first")

        self.status.set(phase="recording a video")
        try:
            record(self.run, episodes=1, on_frame=check_hurry)
        except Exception as error:
            self._say(f"done, without a video for the run's page: {error}")
        self.status.set(phase="finished")

    def _copied(self) -> str:
        """Say how far the store's copy is, and why it is not further."""
        assert self._sync is not None
        state, store = self._sync.state(), self.run.config.store
        has = "nothing" if state["step"] is None else f"step {state['step']:,}"
        return f"{store} has {has} so far" + (f" ({state['error']})" if state.get("error") else "")

    def _drain(self, step: int, at_most_s: float) -> bool:
        """Wait until the upload process (the copier) has stored `step`; return whether it has.

        For a finished run, wait until that process ends. Stop waiting at a signal or after `at_most_s`; the process
        then continues.
        """
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

    # -- commands and progress -------------------------------------------------------------------------------------

    def _should_stop(self) -> bool:
        """Whether to stop training. The trainer asks before each env step and minibatch. Blocks during a pause."""
        if self.requests.paused:
            paused_since = time.monotonic()
            self.status.set(state="paused", steps_per_s=None, eta_s=None)
            while self.requests.paused and self.requests.reason is None:
                time.sleep(POLL_S / 4)
            self.status.set(state="running", phase="training")
            paused_s = time.monotonic() - paused_since
            if self._rate_from is not None:
                self._rate_from = self._rate_from[0] + paused_s, self._rate_from[1]
            if self._training is not None:
                self._training.trainer.start_time += paused_s * 1e9  # from which SB3 logs time_elapsed and fps
        return self.requests.reason is not None and (self._training is None or self._training.can_interrupt)

    def _on_signal(self, cause: str) -> None:
        if self.status.values["state"] == "starting":  # nothing was trained in this session, so nothing needs saving
            self.status.set(state="interrupted", message=f"{self.requests.reason or cause} while starting")
            self.status.write()
            sys.stdout.flush()
            raise SystemExit(INTERRUPTED)
        self.requests.hurry = True
        self.requests.stop(cause)

    def _on_hangup(self) -> None:
        """On SIGHUP (terminal or ssh connection closed), redirect output to worker.log and continue training."""
        with self.run.log_path.open("ab") as log:
            for terminal in self._terminals:
                os.dup2(log.fileno(), terminal)
        self._say(f"the terminal was closed; training goes on (kit stop {self.run.name} ends it)")

    def _watch(self) -> None:
        """Check commands and time limit, report progress (five times a second), write status.json (once a second)."""
        ticks, last_error = 0, ""
        while not self._over.wait(POLL_S):
            ticks += 1
            try:
                self._poll(ticks)
            except Exception as error:  # the thread must survive and poll again
                if (text := f"{type(error).__name__}: {error}") != last_error:
                    last_error = text
                    self._say(f"error in the thread that polls commands: {text}")

    def _poll(self, ticks: int) -> None:
        for command in control.take(self.run.path):
            self.requests.obey(command)
            if command == "stop" and self.status.values["state"] == "starting" and self._installed:
                signal.raise_signal(signal.SIGTERM)  # `_on_signal` ends a session that still starts
        training = self._training
        if self._clock.is_over(training.writer.longest_s if training else 0.0):
            self.requests.stop(f"session_limit={self.run.config.session_limit} is reached")
        if ticks % 5 == 0:
            self._progress()
            self.status.write()
        self._on_progress(self.status.values)

    def _write_final_status(self) -> None:
        """Write status.json, retrying for a while if the disk is full; then overwrite it."""
        self.status.write()
        end = time.monotonic() + FINAL_STATUS_S
        while not self.status.written and time.monotonic() < end:
            time.sleep(POLL_S)
            self.status.write()
        if not self.status.written:
            self.status.write(in_place=True)

    def _compiling(self, sentence: str) -> None:
        """Show `sentence` as the phase. Called once a second while kernels compile, and with "" when they are done."""
        if sentence and self._phase_before_compiling is None:
            print(sentence, flush=True)
            self._phase_before_compiling = str(self.status.values["phase"])
        self.status.set(phase=sentence or self._phase_before_compiling)
        if not sentence:
            self._phase_before_compiling = None

    def _progress(self) -> None:
        if (training := self._training) is None:
            return
        step, last = training.trainer.num_timesteps, training.metrics.last
        score = _score(last)
        if score["measured_in"] == "evaluation" and training.last_eval == 0:
            score["measured_in"] = "before training"
        self.status.set(step=step, gpu=self._monitor.summaries(), **score)
        if self._rate_from is None:
            self._rate_from = (time.monotonic(), step) if step > training.first_step else None
            return
        start_s, start_step = self._rate_from
        elapsed_s = time.monotonic() - start_s
        if not self.requests.paused and step > start_step and elapsed_s > 1:
            rate = (step - start_step) / elapsed_s
            self.status.set(steps_per_s=rate, eta_s=max(0, training.config.total_steps - step) / rate)

    def _say(self, message: str) -> None:
        """Print `message` and show it in status.json."""
        with contextlib.suppress(OSError):  # the log's disk is full, or the terminal is gone
            print(message, flush=True)
        self.status.set(message=message)


SCORES = (
    ("final test", "test/mean_return", "test/success_rate"), ("evaluation", "eval/mean_return", "eval/success_rate"),
    ("training", "rollout/ep_rew_mean", "rollout/success_rate"),
)  # fmt: skip
"""Sources of a run's score, by priority: name, metric of the return, metric of the success rate."""


def _score(last: dict[str, Any]) -> dict[str, Any]:
    """Return the status's "mean_return", "success_rate" and "measured_in" from the last value of each metric."""
    found = next((names for names in SCORES if names[1] in last), (None, "", ""))
    return {"mean_return": last.get(found[1]), "success_rate": last.get(found[2]), "measured_in": found[0]}

