"""Training of a run with a fixed number of envs: builds env and trainer; evaluates and checkpoints between iterations.

An iteration is one rollout and its update. Resume is exact because evaluations and checkpoints happen only between
iterations, in the same order whether or not the run was interrupted. A short iteration is completed before the session
stops. Before an iteration that may be long (`LONG_ITERATION_S`), the state is copied: an interruption inside the
iteration saves that copy, and the resumed run repeats the iteration identically.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from kit.config import RunConfig, byte_count, seconds
from kit.errors import Interrupted, UserError
from kit.format import checkpoint
from kit.format.checkpoint import Checkpoint, Damaged
from kit.format.segments import OffPolicy, Segment, load_replay
from kit.machine import settings
from kit.machine.gpu import OTHER, Monitor
from kit.runs import provenance
from kit.runs.control import Requests
from kit.runs.metrics import Metrics, row_logger
from kit.runs.run import Run, load_policy
from kit.runs.status import Status
from kit.runs.tracking import Tracker
from kit.runs.writer import Writer

if TYPE_CHECKING:
    from kit.envs.divergence import Divergence

LONG_ITERATION_S = 1.0
"""After an iteration longer than this, the state is copied, so that the next one can be interrupted. Without a copy, an
iteration is completed before the session stops."""
PATIENCE_S, HURRIED_PATIENCE_S = 60.0, 3.0
"""Seconds to retry a session's last checkpoint on a failing disk: normally, and after a signal."""
TESTED = "test/step"
"""Metrics column: the step of the policy that was tested at the end of training."""
POLICIES = 20
"""Maximum number of policies kept from evaluations, to show the progress of learning."""


class Training:
    """Env, trainer, metrics and checkpoints of `run`, loaded from its newest intact checkpoint if it has one.

    `should_stop` is called before each env step and minibatch; `notify` shows the user a message.
    """

    def __init__(
        self,
        run: Run,
        status: Status,
        requests: Requests,
        monitor: Monitor,
        should_stop: Callable[[], bool],
        notify: Callable[[str], None],
    ) -> None:
        self.run, self.config, self.status = run, run.config, status
        self._requests, self._monitor, self._should_stop, self._notify = requests, monitor, should_stop, notify
        self._closing = ExitStack()
        self._in_iteration = False
        try:
            self._build(run.config)
        except BaseException:
            self.close()
            raise

    def _build(self, config: RunConfig) -> None:
        from kit.runs.evaluation import EVAL_SEED, Evaluator
        from kit.runs.opponents import make_env
        from kit.trainers import make_trainer
        from kit.trainers.planning import during_training

        settings.apply(config.device)
        group, rank_config = None, config
        if config.processes > 1:
            from kit.runs.ranks import start_group
            from kit.trainers.planning import config_of_rank

            self.status.set(phase="starting the other processes")
            group = start_group(config)
            self._closing.callback(group.close)
            rank_config = config_of_rank(config, group.rank, group.on_this_machine)
        self.status.set(phase="building the envs")
        env = make_env(rank_config, int(rank_config.n_envs), rank_config.seed, int(rank_config.threads))
        self._closing.callback(env.close)
        if not env.snapshots:
            self._notify(env.snapshot_note)
        self.trainer = make_trainer(rank_config, env, group)
        self._env = env
        self._closing.callback(lambda: None if self._in_iteration else self.trainer.end())
        resumed, session = self._load()
        replay_lost = isinstance(self.trainer, OffPolicy) and self.trainer.replay_first == self.trainer.replay_written
        self._untrained = resumed is None or self.run.is_untrained(resumed)
        self.last_eval, self._best = int(session.get("last_eval", -1)), session.get("best")
        """Step of the last evaluation, -1 before the first one; and the best score."""
        self._unkept_best: tuple[int, dict[str, Any]] | None = None
        self.metrics = Metrics(self.run.path, int(session.get("rows", 0)))
        self._closing.callback(self.metrics.close)
        if config.tracker is not None:
            tracker = Tracker(config, self.run.name, self._notify)
            self.metrics.on_row = tracker.add
            self._closing.callback(tracker.close)
        self.trainer.set_logger(row_logger(self.metrics, self._monitor.columns))
        self.trainer.should_stop, self.trainer.on_boundary = self._should_stop, self.boundary
        self.trainer.on_divergence = self._keep_divergence
        self._evaluator = Evaluator(during_training(config), seed=EVAL_SEED)
        self._closing.callback(self._evaluator.close)
        budget = byte_count("disk_budget", config.disk_budget)
        self.writer = Writer(self.run.path, resumed, self._on_checkpoint, not replay_lost, budget)
        self._closing.callback(self.writer.wait)
        self.step = self.first_step = self.trainer.num_timesteps
        self._saved_step, self._saved_s = (self.step if resumed else -1), time.monotonic()
        self._size_reported = self._unsaved_eval = False
        self._unsaved_message = ""
        self._copy: tuple[int, dict[str, Any]] | None = None
        self._replay_written = 0
        self._iteration_start = float("-inf")  # duration unknown: copy the state before the first iteration

    def _load(self) -> tuple[Checkpoint | None, dict[str, Any]]:
        """Load the newest intact checkpoint into the trainer; return it and its `session` component.

        Damaged checkpoints that are newer are reported and renamed. If every checkpoint is damaged, use the newest one
        in which only replay data is damaged. Without checkpoints, return (None, {}). Raises `UserError` if all are
        unusable: a run with checkpoints never restarts from scratch.
        """
        saved = checkpoint.committed(self.run.path / "checkpoints")[::-1]
        damages: dict[int, str] = {}
        for replay in (True, False):
            for candidate in saved:
                try:
                    state = candidate.read(replay)
                except Damaged as damage:
                    damages[candidate.step] = str(damage)
                    continue
                for newer in saved[: saved.index(candidate)]:
                    newer.path.rename(newer.path.with_name(f".damaged-{newer.path.name}-{time.time_ns()}"))
                    reason = damages[newer.step]
                    self._notify(f"checkpoint {newer.step} is damaged ({reason}); an older one is used")
                self._prepare(state)
                return candidate, self._load_state(candidate, state, replay)
        if saved:
            raise UserError(
                f"all checkpoints of {self.run.path} are damaged (step {saved[0].step:,}: "
                f"{damages[saved[0].step]}); fetch the run from its store into another runs_dir, or train a new one."
            )
        self._prepare({})
        return None, {}

    def _prepare(self, state: dict[str, Any]) -> None:
        """Give the trainer its teacher and its dataset, from the checkpoint's `state` if it contains them."""
        trainer: Any = self.trainer  # only some algorithms have set_teacher or set_dataset
        if self.config.teacher is not None:
            from kit.runs.teacher import make_teacher

            self.status.set(phase="loading the teacher")
            trainer.set_teacher(make_teacher(self.config, self._env, state.get("teacher")))
        if self.config.dataset is not None:
            from kit.runs import demonstrations
            from kit.trainers.demonstrations import DATASET

            self.status.set(phase="loading the dataset")
            saved = bool(state) and (DATASET in state or int(state["trainer"]["replay_written"]) > 0)
            trainer.set_dataset(None if saved else demonstrations.read(self.config, self._env), state)

    def _load_state(self, loaded: Checkpoint, state: dict[str, Any], replay: bool) -> dict[str, Any]:
        session: dict[str, Any] = state.pop("session")
        same_envs = self.trainer.load_state(state)
        replay_note = ""
        if isinstance(self.trainer, OffPolicy) and replay:
            load_replay(self.trainer, loaded)
        elif isinstance(self.trainer, OffPolicy):
            self.trainer.forget_replay()
            replay_note = "; its replay data is damaged, so the replay buffer fills again before learning continues"
        if loaded.step:  # a branch starts from the checkpoint of step 0
            env_note = "" if same_envs else " with new episodes, because the saved state of the envs does not fit"
            changes = "".join(f"; {change}" for change in provenance.changes(self.run.path))
            self._notify(f"resumed from step {loaded.step:,}{env_note}{replay_note}{changes}")
        self.status.set(step=loaded.step, checkpoint={"step": loaded.step, "time": loaded.path.stat().st_mtime})
        return session

    def learn(self) -> None:
        """Train to `total_steps`, then test the best policy. Raises `Interrupted` if stopped before the end."""
        from kit.runs.phases import Phases

        self.boundary()
        self.trainer.learn(self.config.total_steps, Phases(self._monitor))
        self._in_iteration = False
        self._test()

    def close(self) -> None:
        """Free all resources, also after one that raises. Also works if the constructor failed halfway."""
        self._closing.close()

    # -- between iterations ----------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Evaluate, checkpoint, stop, copy the state: each if due. Called before the first iteration and after each."""
        iteration_s, self._in_iteration = time.monotonic() - self._iteration_start, False
        self._monitor.phase = OTHER
        self.step, state = self.trainer.num_timesteps, None
        if self._eval_due() and self._requests.reason is None:
            self._evaluate()
        if self._checkpoint_due() and self._requests.reason is None:
            state = self._state()
            try:
                self._save(self.step, state)
            except OSError as error:
                problem = f"step {self.step:,} cannot be saved ({error.strerror})"
                self._notify_unsaved(f"{problem}; training goes on and tries again")
        if self._requests.reason is not None:
            raise Interrupted(self._requests.reason)
        copy = iteration_s > LONG_ITERATION_S and self._keeps_replay()
        self._copy = (self.step, state or self._state()) if copy else None
        self._iteration_start, self._in_iteration = time.monotonic(), True

    def _keeps_replay(self) -> bool:
        """Return whether all replay rows that a checkpoint of now needs will still be there after an iteration.

        An iteration may overwrite the oldest rows before they are in a checkpoint. It is then not interrupted.
        """
        if not isinstance(self.trainer, OffPolicy):
            return True
        written, before = self.trainer.replay_written, self._replay_written
        self._replay_written = written
        return 2 * written - before - self.writer.replay_stop <= self.trainer.replay_capacity

    @property
    def can_interrupt(self) -> bool:
        """Whether training may stop now: between iterations, or in an iteration whose initial state was copied."""
        return self._copy is not None or not self._in_iteration

    def _state(self) -> dict[str, Any]:
        session = {"rows": self.metrics.rows, "last_eval": self.last_eval, "best": self._best}
        if isinstance(self.trainer, OffPolicy):
            session["replay_capacity"] = self.trainer.replay_capacity
        if self.step == 0:
            session["untrained"] = self._untrained
        return {**self.trainer.state(), "session": session}

    def _eval_due(self) -> bool:
        """Whether to evaluate now. Includes step 0: the initial policy is the baseline."""
        every = int(self.config.eval_every)
        return every > 0 and self.step // every > self.last_eval // every

    def _evaluate(self) -> None:
        self.status.set(phase="evaluating")
        result = self._evaluator(self.trainer.as_actor(), self._should_stop)
        if result is None:  # stopped during the evaluation, which the resumed session repeats
            return
        columns = {f"eval/{name}": value for name, value in result.items() if value is not None}
        if self.config.teacher is not None and self.last_eval < 0:
            trainer: Any = self.trainer  # only some algorithms have a teacher
            self.status.set(phase="evaluating the teacher")
            taught = self._evaluator(trainer.teacher.player(self._evaluator.env), self._should_stop)
            if taught is None:
                return
            columns |= {f"teacher/{name}": value for name, value in taught.items() if value is not None}
        self.last_eval, self._unsaved_eval = self.step, True
        self.metrics.add(self.step, columns)
        policy = {**self.trainer.policy_state(), "evaluation": result}
        if self.step > 0:  # the initial policy is for comparison only, never the best
            score = result[self._evaluator.env.score]
            if self._best is None or score >= self._best:  # success rates often tie: the newest wins
                self._best = score
                self._unkept_best = (self.step, policy)
                self._try(self._keep_best)
            self._try(partial(self._keep_policy, "policies", self.step, policy, POLICIES))
        self.status.set(phase="training")

    def _test(self) -> None:
        """Test the best policy once, on episodes that did not select it. Raises `Interrupted` if stopped."""
        from kit.runs.evaluation import Evaluator

        self._try(self._keep_best)
        best, unkept = self.run.best(), self._unkept_best
        step = unkept[0] if unkept is not None else best.step if best is not None else None
        if step is None or any(TESTED in row and row["step"] == self.step for row in self.run.rows()):
            return
        self.status.set(phase="testing the best policy")
        generators = self.trainer.components()["rng"]
        before, evaluator = generators.state(), Evaluator(self.config.replace(device="cpu"))
        try:
            with settings.one_thread():
                # load from best/: in checkpoints/, the writer may be deleting the same step
                tested = load_policy(self.config, best if unkept is None else None)
                if unkept is not None:  # the disk is full
                    tested.load_policy(unkept[1])
                result = evaluator(tested.as_actor(), self._should_stop)
        except UserError as error:  # damaged
            self._notify(f"the best policy was not tested: {error}")
            return
        finally:
            evaluator.close()
            generators.load_state(before)  # building a network draws random numbers; undo that
        if result is None:
            raise Interrupted(self._requests.reason or "asked to stop")
        self._unsaved_eval = True
        values = {f"test/{name}": value for name, value in result.items() if value is not None}
        self.metrics.add(self.step, {TESTED: step, **values})

    def _keep_divergence(self, divergence: Divergence) -> None:
        from kit.runs.divergence import write

        try:
            self._notify(write(self.run.path, self.trainer.num_timesteps, divergence))
        except OSError as error:
            self._notify(f"the physics of an env diverged; its recording could not be kept ({error.strerror})")

    def _try(self, keep: Callable[[], None]) -> None:
        """Call `keep`, which saves a policy; report an `OSError`."""
        try:
            keep()
        except OSError as error:
            self._notify(f"a policy could not be kept ({error.strerror}); training goes on")

    def _keep_best(self) -> None:
        """Save the best policy, unless it is saved already. Raises `OSError`, for example if the disk is full.

        Called before each checkpoint too: a checkpoint holds the best score, so the policy must be on disk first.
        """
        if self._unkept_best is not None:
            self._keep_policy("best", *self._unkept_best, 1)
            self._unkept_best = None

    def _keep_policy(self, subfolder: str, step: int, policy: dict[str, Any], max_kept: int) -> None:
        """Save a policy in `subfolder`. Raises `OSError`.

        With `max_kept` or more older policies there, delete every second of them (all, if `max_kept` is 1).
        """
        folder = self.run.path / subfolder
        checkpoint.write(folder, step, policy)
        older = [kept for kept in checkpoint.committed(folder) if kept.step != step]
        if len(older) >= max_kept:
            for kept in older[::-2] if max_kept > 1 else older:
                checkpoint.discard(kept.path)

    # -- saving ----------------------------------------------------------------------------------------------------

    def _checkpoint_due(self) -> bool:
        if self.step == self._saved_step or self.writer.busy:  # training continues while the writer is busy
            return False
        every = self.config.checkpoint_every
        if isinstance(every, int):
            due = self.step // every > max(self._saved_step, 0) // every
        else:
            due = time.monotonic() - self._saved_s >= seconds("checkpoint_every", every)
        return due or self._requests.checkpoint

    def _save(self, step: int, state: dict[str, Any]) -> None:
        """Hand `state`, a copy made at `step`, to the writer thread. Raises `OSError`."""
        self.writer.wait()
        self._keep_best()
        if self.writer.error is not None:
            reason = self.writer.error
            self._notify_unsaved(f"a checkpoint could not be written ({reason}); writing step {step:,} now")
        self.metrics.sync()
        self._requests.checkpoint = self._unsaved_eval = False
        self._saved_step, self._saved_s = step, time.monotonic()
        replay, oldest = None, 0
        if isinstance(self.trainer, OffPolicy):
            stop = int(state["trainer"]["replay_written"])
            oldest = max(int(state["trainer"].get("replay_first", 0)), stop - self.trainer.replay_capacity)
            start = max(self.writer.replay_stop, oldest)
            replay = Segment(start, self.trainer.replay_rows(start, stop))
        self.writer.submit(step, state, replay, oldest)

    def save_now(self) -> None:
        """Save the state (inside an iteration: the copy made before it) and wait until it is on disk.

        Retries for `PATIENCE_S` seconds (`HURRIED_PATIENCE_S` after a signal) on a failing disk, then raises `OSError`.
        """
        step, state = self._copy if self._in_iteration and self._copy is not None else (self.step, None)
        start = time.monotonic()
        self.writer.wait()
        while (step != self.writer.step or self._unsaved_eval) and not (self._in_iteration and state is None):
            state = state or self._state()
            try:
                self._save(step, state)
                self.writer.wait()
                if self.writer.error is not None:
                    raise self.writer.error
            except OSError as error:
                self._unsaved_eval = True  # try again even if `writer.step` equals `step`
                patience_s = HURRIED_PATIENCE_S if self._requests.hurry else PATIENCE_S
                if time.monotonic() - start > patience_s:
                    raise
                self._notify_unsaved(f"step {step:,} cannot be saved yet ({error.strerror}); trying again")
                time.sleep(0.5)

    def _notify_unsaved(self, message: str) -> None:
        """Show `message` until a checkpoint is written."""
        self._notify(message)
        self._unsaved_message = message

    def _on_checkpoint(self, written: Checkpoint) -> None:
        """Show the new checkpoint in status.json; warn once if it alone exceeds the disk budget."""
        self.status.set(checkpoint={"step": written.step, "time": time.time()})
        if self.status.values["message"] == self._unsaved_message:
            self.status.set(message="")
        size = sum(written.sizes().values())
        if size > self.writer.budget and not self._size_reported:
            self._size_reported = True
            excess = f"a checkpoint takes {size / 1e9:.3g} GB, more than disk_budget={self.config.disk_budget}"
            self._notify(f"{excess}: only the newest is kept")
