"""One process's turn at a run: from its latest checkpoint, or from nothing, to the end, a stop or a failure.

What is exact: everything happens at iteration boundaries (one rollout and its update), in the same order whether or not
the run was cut. A cut inside an iteration goes back to a copy taken at the boundary before it; the lost part is done
again, identically.

Running out of memory is no end: training goes on from the last checkpoint with half the worlds, down to 64. Policy,
optimizer, normaliser, counters, random numbers and history are the checkpoint's; the worlds begin new episodes (as they
do after a move between CPU and GPU, whose simulators hold other state). config.yaml says the new number from then on.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.config import seconds
from kit.errors import UserError
from kit.format import checkpoint
from kit.format.checkpoint import Checkpoint, Damaged
from kit.format.files import write_atomic
from kit.format.segments import OffPolicy, Segment, load_replay
from kit.machine import memory
from kit.runs import control, load, provenance
from kit.runs.directory import lock
from kit.runs.interruption import SessionClock, Signals, SpotWatch
from kit.runs.metrics import Metrics, row_logger
from kit.runs.run import Run
from kit.runs.status import Status
from kit.runs.writer import Writer
from kit.sim.compiling import listening

if TYPE_CHECKING:
    from kit.stores.sync import SyncHandle
    from kit.trainers import Trainer

DONE, FAILED, INTERRUPTED = 0, 1, 75
POLL_S = 0.2
LONG_ITERATION_S = 1.0
"""Iterations longer than this are cut inside; shorter ones are finished first, and need no copy."""
PATIENCE_S = 2.0
"""After a request to stop, how long an iteration of which there is no copy may take to finish."""
EVAL_EPISODES = 20
POLICIES = 20
"""Policies kept from evaluations, to look back on how the run learnt."""
LEAST_WORLDS = 64
"""Out of memory with fewer than twice as many is the end: the networks are what is too large."""
FINISHED_DRAIN_S, INTERRUPTED_DRAIN_S = 600.0, 60.0
"""How long a session waits for its last copy to arrive in the store before it says so and leaves."""


class Session:
    """Trains the run at `path` until it is done. `on_progress(status)` is called about five times a second."""

    def __init__(self, path: Path, on_progress: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.run = Run(path)
        self.config = self.run.config
        self._on_progress = on_progress or (lambda status: None)
        self._paused = False
        self._checkpoint_wanted = False
        self._stop_reason: str | None = None
        self._stop_time = 0.0
        self._over = threading.Event()
        self._building = True
        self._figures_final = False
        limit = self.config.session_limit
        self._clock = SessionClock(seconds("session_limit", limit) if limit else None)
        self._copy: tuple[int, dict[str, Any]] | None = None
        self._inside = False
        self._signalled = False
        self._longest_save_s = 0.0
        self._sync: SyncHandle | None = None
        self._shrunk = ""
        self._before_compiling: str | None = None
        self._monitor = load.monitor(self.config.device)

    # -- the whole turn --------------------------------------------------------------------------------------------

    def __call__(self) -> int:
        """Exit code: 0 done, 75 interrupted but resumable, 1 failed. Raises `UserError` if the run is in use."""
        with lock(self.run.path), Signals(self._on_signal):
            self.status = Status(self.run.path, total_steps=self.config.total_steps, state="starting")
            if self.status.values["plan"] and self.status.values["checkpoint"] is None:
                print(self.status.values["plan"], flush=True)
            for stale in control.take(self.run.path):
                print(f"a request from before this session is ignored: {stale}")
            watch = threading.Thread(target=self._watch, name="watch", daemon=True)
            watch.start()
            spot, code = SpotWatch(self.stop), INTERRUPTED
            try:
                with self._monitor, listening(self._compiling):
                    code = self._train_in_memory()
            except UserError as error:
                self.status.set(state="failed", phase="failed", message=str(error))
                raise
            except Exception as error:
                traceback.print_exc()
                where = "the traceback is in worker.log" if self.run.log_path.exists() else "see the traceback"
                self.status.set(state="failed", phase="failed", message=f"{type(error).__name__}: {error}; {where}")
                code = FAILED
            finally:
                spot.close()
                self._over.set()
                watch.join()
                self.status.set(steps_per_s=None, eta_s=None, gpu=None)
                self.status.write()
                self._on_progress(self.status.values)
            return code

    def stop(self, reason: str) -> None:
        """Ask for a checkpoint and the end, from any thread."""
        if self._stop_reason is None:
            self._stop_time = time.monotonic()
            self._stop_reason = reason

    def _train_in_memory(self) -> int:
        """Train, with half the worlds each time memory runs out."""
        while True:
            try:
                return self._train()
            except Exception as error:
                short_of = memory.shortage(error)
                if short_of is None:
                    raise
                traceback.print_exc()
            self._halve(short_of)  # here, where no traceback holds on to tensors any more

    def _train(self) -> int:
        from kit.trainers import Interrupted

        provenance.write(self.run.path)
        trainer = self._build()
        self._first_step, self._training_start, self._building = trainer.num_timesteps, time.monotonic(), False
        self._iteration_start = float("-inf")  # nobody knows yet how long one takes: copy before the first
        self.status.set(state="running", phase="training")
        if self._shrunk:
            self._say(self._shrunk)
            self.metrics.add(self._step, {"run/n_envs": int(self.config.n_envs)})
        try:
            self._boundary_work()
            trainer.learn(self.config.total_steps, load.phases(self._monitor))
            return self._finished()
        except Interrupted:
            return self._interrupted()

    def _build(self) -> Trainer:
        from kit import envs
        from kit.machine import settings
        from kit.runs.rollouts import Evaluator
        from kit.trainers import make_trainer

        config = self.config
        settings.apply(config.device)
        self.status.set(phase="building the worlds")
        env = envs.make_vec(
            config.env, int(config.n_envs), config.device, config.seed, int(config.threads), config.env_options
        )
        if not env.snapshots:
            self._say(env.snapshot_note)
        self.trainer = trainer = make_trainer(config, env)
        resumed, state = self._load(trainer)
        self._last_eval = int(state.get("last_eval", 0))
        self._best: float | None = state.get("best")
        self.metrics = Metrics(self.run.path, int(state.get("rows", 0)))
        trainer.set_logger(row_logger(self.metrics, lambda: load.columns(self._monitor)))
        trainer.should_stop = self._should_stop
        trainer.on_boundary = self._boundary_work
        self._step = trainer.num_timesteps
        self._evaluator = Evaluator(config, EVAL_EPISODES)
        self.writer = Writer(self.run.path, resumed, self._written)
        self._last_checkpoint = (self._step if resumed else -1, time.monotonic())
        if config.store and self._sync is None:
            from kit.stores.sync import start_sync

            self.status.set(phase="opening the store")
            self._sync = start_sync(self.run.path, config.store)
        return trainer

    def _load(self, trainer: Trainer) -> tuple[Checkpoint | None, dict[str, Any]]:
        """Put the newest checkpoint that verifies into `trainer`; name each damaged one and set it aside. Returns the
        checkpoint and this session's own part of its state."""
        for found in reversed(checkpoint.committed(self.run.path / "checkpoints")):
            try:
                state = found.read()
            except Damaged as damage:
                aside = found.path.with_name(f".damaged-{found.path.name}-{time.time_ns()}")
                found.path.rename(aside)
                self._say(f"checkpoint {found.step} is damaged ({damage}); the one before it is used")
                continue
            own = state.pop("session")
            same_worlds = trainer.load_state(state)
            if isinstance(trainer, OffPolicy):
                load_replay(trainer, found)
            self._say(f"resumed from step {found.step:,}{'' if same_worlds else ', in new worlds'}")
            self.status.set(step=found.step, checkpoint={"step": found.step, "time": found.path.stat().st_mtime})
            return found, own
        return None, {}

    def _halve(self, short_of: str) -> None:
        """Let go of everything and put half the worlds into config.yaml. Raises `UserError` if that would not do."""
        from kit.trainers import algorithm

        config, worlds = self.config, int(self.config.n_envs) // 2
        found = algorithm.find(config.algo)
        if not found.fewer_worlds or worlds < LEAST_WORLDS:
            remedy = found.memory_remedy
            raise UserError(f"n_envs={config.n_envs}: memory ran out ({short_of}); choose a smaller {remedy}.")
        self._building = True  # for the thread that watches
        self.status.set(phase="out of memory, making room", steps_per_s=None, eta_s=None)
        self._release()
        self.config = algorithm.with_worlds(config, worlds)
        write_atomic(self.run.path / "config.yaml", self.config.to_yaml())
        self._shrunk = f"memory ran out with {config.n_envs:,} worlds ({short_of}); going on with {worlds:,}"
        self._say(self._shrunk)

    def _release(self) -> None:
        """Forget the trainer and its worlds, as far as they were made."""
        held = vars(self)
        if "writer" in held:
            held.pop("writer").wait()
            held.pop("metrics").close()
            held.pop("_evaluator").close()
        if "trainer" in held:
            held.pop("trainer").tensor_env.close()
        self._copy, self._inside = None, False
        memory.give_back()

    # -- at each boundary ------------------------------------------------------------------------------------------

    def _boundary_work(self) -> None:
        """After every iteration, and once before the first: evaluate, checkpoint, stop, copy; each if it is due."""
        from kit.trainers import Interrupted

        iteration_s, self._inside = time.monotonic() - self._iteration_start, False
        self._monitor.phase = load.OTHER
        self._step, state = self.trainer.num_timesteps, None
        if self._eval_due() and self._stop_reason is None:
            self._evaluate()
        if self._checkpoint_due() and self._stop_reason is None:
            state = self._state()
            self._save(self._step, state)
        if self._stop_reason is not None:
            raise Interrupted(self._stop_reason)
        # Off-policy iterations are short, and their data is not in the copy.
        long = iteration_s > LONG_ITERATION_S and not isinstance(self.trainer, OffPolicy)
        self._copy = (self._step, state or self._state()) if long else None
        self._iteration_start, self._inside = time.monotonic(), True

    def _state(self) -> dict[str, Any]:
        session = {"rows": self.metrics.rows, "last_eval": self._last_eval, "best": self._best}
        if isinstance(self.trainer, OffPolicy):
            session["replay_capacity"] = self.trainer.replay_capacity
        return {**self.trainer.state(), "session": session}

    def _eval_due(self) -> bool:
        every = int(self.config.eval_every)
        return every > 0 and self._step // every > self._last_eval // every

    def _evaluate(self) -> None:
        self.status.set(phase="evaluating")
        result = self._evaluator(self.trainer.as_actor(), self._should_stop)
        if result is None:  # a stop came first; the resumed session evaluates again
            return
        self._last_eval = self._step
        self.metrics.add(self._step, {f"eval/{name}": value for name, value in result.items() if value is not None})
        if self._best is None or result["mean_return"] > self._best:
            self._best = result["mean_return"]
            self._keep_policy("best", result, 1)
        self._keep_policy("policies", result, POLICIES)
        self.status.set(phase="training")

    def _keep_policy(self, kind: str, result: dict[str, Any], most: int) -> None:
        """A copy of what acting needs, with what it reached, in the folder `kind`; where there are more than `most`,
        every second goes, never the newest."""
        folder = self.run.path / kind
        checkpoint.write(folder, self._step, {**self.trainer.policy_state(), "evaluation": result})
        older = [kept for kept in checkpoint.committed(folder) if kept.step != self._step]
        if len(older) >= most:
            for kept in older[::-2] if most > 1 else older:
                checkpoint.discard(kept.path)

    def _checkpoint_due(self) -> bool:
        step, moment = self._last_checkpoint
        if self._step == step or self.writer.busy:  # a busy writer delays the next one; the loop never waits for it
            return False
        every = self.config.checkpoint_every
        if isinstance(every, int):
            due = self._step // every > max(step, 0) // every
        else:
            due = time.monotonic() - moment >= seconds("checkpoint_every", every)
        return due or self._checkpoint_wanted

    def _save(self, step: int, state: dict[str, Any]) -> None:
        """Hand a copy of the state at `step` to the writer."""
        self._checkpoint_wanted = False
        self._last_checkpoint = (step, time.monotonic())
        self.writer.wait()
        if self.writer.error is not None:
            self._say(f"the checkpoint before step {step:,} could not be written ({self.writer.error}); trying again")
        self.metrics.sync()
        replay, oldest = None, 0
        if isinstance(self.trainer, OffPolicy):
            stop = self.trainer.replay_written
            oldest = max(0, stop - self.trainer.replay_capacity)
            start = max(self.writer.replay_stop, oldest)
            replay = Segment(start, self.trainer.replay_rows(start, stop))
        self.writer.submit(step, state, replay, oldest)

    def _save_now(self, step: int, state: dict[str, Any]) -> None:
        """As `_save`, and wait until it is on disk. Raises `OSError` if the disk refuses."""
        begun = time.monotonic()
        self.writer.wait()
        if step != self.writer.step:
            self._save(step, state)
            self.writer.wait()
            if self.writer.error is not None:
                raise self.writer.error
        self._longest_save_s = max(self._longest_save_s, time.monotonic() - begun)

    def _written(self, written: Checkpoint) -> None:
        self.status.set(checkpoint={"step": written.step, "time": time.time()})

    # -- the two ends ----------------------------------------------------------------------------------------------

    def _last_figures(self) -> None:
        """What the last update and evaluation came to; from here on the step told is the one that is saved."""
        self._progress()
        self._figures_final = True

    def _interrupted(self) -> int:
        self._last_figures()
        reason = self._stop_reason or "stopped"
        self.status.set(state="stopping", phase="saving", message=reason)
        self.status.write()
        if not self._inside:
            self._save_now(self._step, self._state())
        elif self._copy is not None:
            self._save_now(*self._copy)
        self.writer.wait()
        message = f"{reason}; resume goes on from step {max(self.writer.step, 0):,}"
        self.status.set(state="interrupted", phase="interrupted", step=max(self.writer.step, 0))
        self._say(message)
        self._drain(INTERRUPTED_DRAIN_S)
        return INTERRUPTED

    def _finished(self) -> int:
        self._last_figures()
        self.status.set(phase="saving")
        self._save_now(self._step, self._state())
        self.metrics.close()
        done = f"done: {self._step:,} steps"
        self.status.set(state="finished", phase="finished", step=self._step, message=done)
        self.status.write()
        if (self.config.store or "").startswith("hf://"):
            self._film()
        if not self._drain(FINISHED_DRAIN_S):
            self._say(
                f"done, but step {self._step:,} has not arrived in {self.config.store} yet; it is still being tried"
            )
        return DONE

    def _film(self) -> None:
        """The run's page on the Hub shows the robot. Whatever goes wrong here is said; the run is done all the same."""
        from kit.runs.rollouts import record
        from kit.trainers import Interrupted

        def hurry(done: int, at_most: int) -> None:
            if self._signalled:
                raise Interrupted("a signal came first")

        self.status.set(phase="filming")
        try:
            record(self.run, episodes=1, on_frame=hurry)
        except Exception as error:
            self._say(f"done, without a video for the run's page: {error}")
        self.status.set(phase="finished")

    def _drain(self, at_most_s: float) -> bool:
        """Wait until the last checkpoint has arrived in the store; less long if a signal says to hurry. The copier goes
        on by itself afterwards, for as long as the machine lives."""
        if self._sync is None:
            return True
        phase, end = self.status.values["phase"], time.monotonic() + at_most_s
        self.status.set(phase="copying to the store")
        state = self._sync.stop(drain_s=0.0)
        finished = self.status.values["state"] == "finished"
        while time.monotonic() < end and not self._signalled:
            if self._sync.is_done() or (state["step"] == self.writer.step and not finished):
                break
            state = self._sync.stop(drain_s=POLL_S)
        self.status.set(phase=phase)
        return bool(state["step"] == self.writer.step)

    # -- other threads ---------------------------------------------------------------------------------------------

    def _should_stop(self) -> bool:
        """Asked by the trainer before each env step and minibatch; waits here while the run is paused."""
        if self._paused:
            begun = time.monotonic()
            self.status.set(state="paused", phase="paused", steps_per_s=None, eta_s=None)
            while self._paused and self._stop_reason is None:
                time.sleep(POLL_S / 4)
            self.status.set(state="running", phase="training")
            self._training_start += time.monotonic() - begun
        if self._stop_reason is None:
            return False
        return self._copy is not None or not self._inside or time.monotonic() - self._stop_time > PATIENCE_S

    def _on_signal(self, name: str) -> None:
        if self._building:  # nothing was done yet that the last checkpoint does not hold
            self.status.set(state="interrupted", phase="interrupted", message=f"{name} while starting")
            self.status.write()
            sys.stdout.flush()
            raise SystemExit(INTERRUPTED)
        self._signalled = True
        self.stop(name)

    def _watch(self) -> None:
        """Five times a second: requests, the session clock, progress; once a second status.json."""
        ticks = 0
        while not self._over.wait(POLL_S):
            for command in control.take(self.run.path):
                if command == "stop":
                    self.stop("stopped on request")
                self._checkpoint_wanted |= command == "checkpoint"
                self._paused = command == "pause" or (self._paused and command != "unpause")
            if self._clock.is_over(self._longest_save_s):
                self.stop(f"session_limit={self.config.session_limit} is reached")
            ticks += 1
            if ticks % 5 == 0:
                self._progress()
                self.status.write()
            self._on_progress(self.status.values)

    def _compiling(self, sentence: str) -> None:
        """Told once a second while kernels compile, then the empty sentence."""
        if sentence and self._before_compiling is None:
            print(sentence, flush=True)
            self._before_compiling = str(self.status.values["phase"])
        self.status.set(phase=sentence or self._before_compiling)
        if not sentence:
            self._before_compiling = None

    def _progress(self) -> None:
        if self._building or self._figures_final:
            return
        step, last = self.trainer.num_timesteps, self.metrics.last
        self.status.set(
            step=step,
            gpu=load.figures(self._monitor),
            mean_return=last.get("eval/mean_return", last.get("rollout/ep_rew_mean")),
            success_rate=last.get("eval/success_rate", last.get("rollout/success_rate")),
        )
        elapsed_s = time.monotonic() - self._training_start
        if not self._paused and step > self._first_step and elapsed_s > 1:
            rate = (step - self._first_step) / elapsed_s
            self.status.set(steps_per_s=rate, eta_s=max(0, self.config.total_steps - step) / rate)

    def _say(self, sentence: str) -> None:
        print(sentence, flush=True)
        self.status.set(message=sentence)
