"""One attempt at training a run, with one number of worlds: what is built for it, and what happens between iterations.

What is exact: everything happens at iteration boundaries (one rollout and its update), in the same order whether or not
the run was cut. A cut inside an iteration goes back to a copy taken at the boundary before it; the lost part is done
again, identically.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kit.config import RunConfig, byte_count, seconds
from kit.errors import Interrupted, UserError
from kit.format import checkpoint
from kit.format.checkpoint import Checkpoint, Damaged
from kit.format.segments import OffPolicy, Segment, load_replay
from kit.machine import settings
from kit.machine.gpu import OTHER, Monitor
from kit.runs.control import Requests
from kit.runs.metrics import Metrics, row_logger
from kit.runs.run import Run
from kit.runs.status import Status
from kit.runs.tracking import Tracker
from kit.runs.writer import Writer

LONG_ITERATION_S = 1.0
"""Iterations longer than this are cut inside; shorter ones are finished first, and need no copy."""
PATIENCE_S, HURRIED_PATIENCE_S = 60.0, 3.0
"""How long the last checkpoint of a session is tried on a disk that refuses; after a signal the machine may go."""
TESTED = "test/step"
"""The column that says which policy was tested at the end."""
POLICIES = 20
"""Policies kept from evaluations, to look back on how the run learnt."""


class Training:
    """Worlds, trainer, metrics and checkpoints of `run`, from its newest checkpoint that verifies, or from nothing.

    `should_stop` is asked before each env step and minibatch; `say` tells the user a sentence.
    """

    def __init__(
        self,
        run: Run,
        status: Status,
        requests: Requests,
        monitor: Monitor,
        should_stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self.run, self.config, self.status = run, run.config, status
        self._requests, self._monitor, self._should_stop, self._say = requests, monitor, should_stop, say
        self._closing: list[Callable[[], object]] = []
        self._inside = False  # an iteration
        try:
            self._build(run.config)
        except BaseException:
            self.close()
            raise

    def _build(self, config: RunConfig) -> None:
        from kit.runs.evaluation import EVAL_SEED, Evaluator
        from kit.runs.opponents import make_env
        from kit.trainers import make_trainer

        settings.apply(config.device)
        group, part_of = None, config
        if config.processes > 1:
            from kit.runs.ranks import start_group
            from kit.trainers import algorithm
            from kit.trainers.planning import config_of_rank

            self.status.set(phase="starting the other processes")
            group = start_group(config)
            self._closing.append(group.close)
            part_of = config_of_rank(algorithm.find(config.algo), config, group.rank, group.on_this_machine)
        self.status.set(phase="building the worlds")
        env = make_env(part_of, int(part_of.n_envs), part_of.seed, int(part_of.threads))
        self._closing.append(env.close)
        if not env.snapshots:
            self._say(env.snapshot_note)
        self.trainer = make_trainer(part_of, env, group)
        self._closing.append(lambda: None if self._inside else self.trainer.end())
        resumed, own = self._load()
        forgot = isinstance(self.trainer, OffPolicy) and self.trainer.replay_first == self.trainer.replay_written
        self._untrained = resumed is None or self.run.is_untrained(resumed)
        self._last_eval, self._best = int(own.get("last_eval", -1)), own.get("best")
        self.metrics = Metrics(self.run.path, int(own.get("rows", 0)))
        self._closing.append(self.metrics.close)
        if config.tracker is not None:
            tracker = Tracker(config, self.run.name, self._say)
            self.metrics.on_row = tracker.add
            self._closing.append(tracker.close)
        self.trainer.set_logger(row_logger(self.metrics, self._monitor.columns))
        self.trainer.should_stop, self.trainer.on_boundary = self._should_stop, self.boundary
        self._evaluator = Evaluator(config, seed=EVAL_SEED)
        self._closing.append(self._evaluator.close)
        budget = byte_count("disk_budget", config.disk_budget)
        self.writer = Writer(self.run.path, resumed, self._written, not forgot, budget)
        self._closing.append(self.writer.wait)
        self.step = self.first_step = self.trainer.num_timesteps
        self.longest_save_s = 0.0
        self._saved_step, self._saved_s = (self.step if resumed else -1), time.monotonic()
        self._told_of_size = self._evaluated = False
        self._copy: tuple[int, dict[str, Any]] | None = None
        self._iteration_start = float("-inf")  # nobody knows yet how long one takes: copy before the first

    def _load(self) -> tuple[Checkpoint | None, dict[str, Any]]:
        """Put the newest checkpoint that verifies into the trainer; returns it and this room's own part of its state.
        Newer ones, which are damaged, are named and set aside. One whose replay data alone is damaged will do if there
        is no better. Raises `UserError` if there are checkpoints and none can be used: a run is never begun anew."""
        there = checkpoint.committed(self.run.path / "checkpoints")[::-1]
        damages: dict[int, str] = {}
        for replay in (True, False):
            for found in there:
                try:
                    state = found.read(replay)
                except Damaged as damage:
                    damages[found.step] = str(damage)
                    continue
                for newer in there[: there.index(found)]:
                    newer.path.rename(newer.path.with_name(f".damaged-{newer.path.name}-{time.time_ns()}"))
                    self._say(f"checkpoint {newer.step} is damaged ({damages[newer.step]}); the one before it is used")
                return found, self._take(found, state, replay)
        if there:
            raise UserError(
                f"{self.run.path} has {len(there)} checkpoints and all are damaged (step {there[0].step:,}: "
                f"{damages[there[0].step]}); fetch the run from its store into another runs_dir, or train a new one."
            )
        return None, {}

    def _take(self, found: Checkpoint, state: dict[str, Any], replay: bool) -> dict[str, Any]:
        own: dict[str, Any] = state.pop("session")
        same_envs = self.trainer.load_state(state)
        lost = ""
        if isinstance(self.trainer, OffPolicy) and replay:
            load_replay(self.trainer, found)
        elif isinstance(self.trainer, OffPolicy):
            self.trainer.forget_replay()
            lost = "; its replay data is damaged and will fill again before learning goes on"
        self._say(f"resumed from step {found.step:,}{'' if same_envs else ', in new worlds'}{lost}")
        self.status.set(step=found.step, checkpoint={"step": found.step, "time": found.path.stat().st_mtime})
        return own

    def learn(self) -> None:
        """To the end. Raises `Interrupted` if it is asked to stop."""
        from kit.runs.phases import Phases

        self.boundary()
        self.trainer.learn(self.config.total_steps, Phases(self._monitor))
        self._inside = False
        self._test()

    def close(self) -> None:
        """Give everything back, also of a half built one."""
        while self._closing:
            self._closing.pop()()

    # -- at each boundary ------------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """After every iteration, and once before the first: evaluate, checkpoint, stop, copy; each if it is due."""
        iteration_s, self._inside = time.monotonic() - self._iteration_start, False
        self._monitor.phase = OTHER
        self.step, state = self.trainer.num_timesteps, None
        if self._eval_due() and self._requests.reason is None:
            self._evaluate()
        if self._checkpoint_due() and self._requests.reason is None:
            state = self._state()
            try:
                self._save(self.step, state)
            except OSError as error:
                self._say(f"step {self.step:,} cannot be saved ({error.strerror}); training goes on and tries again")
        if self._requests.reason is not None:
            raise Interrupted(self._requests.reason)
        self._copy = (self.step, state or self._state()) if iteration_s > LONG_ITERATION_S else None
        self._iteration_start, self._inside = time.monotonic(), True

    @property
    def can_be_cut(self) -> bool:
        """Whether nothing would be lost by leaving an iteration in the middle."""
        return self._copy is not None or not self._inside

    def _state(self) -> dict[str, Any]:
        session = {"rows": self.metrics.rows, "last_eval": self._last_eval, "best": self._best}
        if isinstance(self.trainer, OffPolicy):
            session["replay_capacity"] = self.trainer.replay_capacity
        if self.step == 0:
            session["untrained"] = self._untrained
        return {**self.trainer.state(), "session": session}

    def _eval_due(self) -> bool:
        """Also before the first step: what is learnt shows against the policy that training began with."""
        every = int(self.config.eval_every)
        return every > 0 and self.step // every > self._last_eval // every

    def _evaluate(self) -> None:
        self.status.set(phase="evaluating")
        result = self._evaluator(self.trainer.as_actor(), self._should_stop)
        if result is None:  # a stop came first; the resumed session evaluates again
            return
        self._last_eval, self._evaluated = self.step, True
        self.metrics.add(self.step, {f"eval/{name}": value for name, value in result.items() if value is not None})
        if self.step > 0:  # the policy that training began with is only compared with
            reached = result[self._evaluator.env.score]
            if self._best is None or reached >= self._best:  # of equals, which rates often are, the newest
                self._best = reached
                self._keep_policy("best", result, 1)
            self._keep_policy("policies", result, POLICIES)
        self.status.set(phase="training")

    def _test(self) -> None:
        """At the end of training: the best policy in episodes by which nothing was chosen, once. Raises `Interrupted`
        if a stop came first; the resumed session tests again."""
        from kit.runs.evaluation import Evaluator, one_thread

        best = self.run.best()
        if best is None or any(TESTED in row and row["step"] == self.step for row in self.run.rows()):
            return
        self.status.set(phase="testing the best policy")
        generators = self.trainer.components()["rng"]
        before, evaluator = generators.state(), Evaluator(self.config.replace(device="cpu"))
        try:
            with one_thread():
                result = evaluator(self.run.policy(best.step).as_actor(), self._should_stop)
        finally:
            evaluator.close()
            generators.load_state(before)  # a new network draws from them; the checkpoint keeps those of training
        if result is None:
            raise Interrupted(self._requests.reason or "asked to stop")
        self._evaluated = True
        figures = {f"test/{name}": value for name, value in result.items() if value is not None}
        self.metrics.add(self.step, {TESTED: best.step, **figures})

    def _keep_policy(self, kind: str, result: dict[str, Any], most: int) -> None:
        """A copy of what acting needs, with what it reached, in the folder `kind`; where there are more than `most`,
        every second goes, never the newest."""
        folder = self.run.path / kind
        try:
            checkpoint.write(folder, self.step, {**self.trainer.policy_state(), "evaluation": result})
        except OSError as error:
            self._say(f"the policy of step {self.step:,} could not be kept in {kind} ({error.strerror})")
            return
        older = [kept for kept in checkpoint.committed(folder) if kept.step != self.step]
        if len(older) >= most:
            for kept in older[::-2] if most > 1 else older:
                checkpoint.discard(kept.path)

    # -- saving ----------------------------------------------------------------------------------------------------

    def _checkpoint_due(self) -> bool:
        if self.step == self._saved_step or self.writer.busy:  # a busy writer delays the next; the loop never waits
            return False
        every = self.config.checkpoint_every
        if isinstance(every, int):
            due = self.step // every > max(self._saved_step, 0) // every
        else:
            due = time.monotonic() - self._saved_s >= seconds("checkpoint_every", every)
        return due or self._requests.checkpoint

    def _save(self, step: int, state: dict[str, Any]) -> None:
        """Hand a copy of the state at `step` to the writer."""
        self.writer.wait()
        if self.writer.error is not None:
            self._say(f"the checkpoint before step {step:,} could not be written ({self.writer.error}); trying again")
        self.metrics.sync()
        self._requests.checkpoint = self._evaluated = False
        self._saved_step, self._saved_s = step, time.monotonic()
        replay, oldest = None, 0
        if isinstance(self.trainer, OffPolicy):
            stop = int(state["trainer"]["replay_written"])
            oldest = max(int(state["trainer"].get("replay_first", 0)), stop - self.trainer.replay_capacity)
            start = max(self.writer.replay_stop, oldest)
            replay = Segment(start, self.trainer.replay_rows(start, stop))
        self.writer.submit(step, state, replay, oldest)

    def save_now(self) -> None:
        """Save the state as it is, or inside an iteration as it was before it, and wait until it is on disk. A disk
        that refuses is asked again for a while. Raises `OSError` in the end."""
        step, state = self._copy if self._inside and self._copy is not None else (self.step, None)
        begun = time.monotonic()
        self.writer.wait()
        while (step != self.writer.step or self._evaluated) and not (self._inside and state is None):
            state = state or self._state()
            try:
                self._save(step, state)
                self.writer.wait()
                if self.writer.error is not None:
                    raise self.writer.error
            except OSError as error:
                self._evaluated = True  # or not, but what is on disk is not what is here
                patience_s = HURRIED_PATIENCE_S if self._requests.hurry else PATIENCE_S
                if time.monotonic() - begun > patience_s:
                    raise
                self._say(f"step {step:,} cannot be saved yet ({error.strerror}); trying again")
                time.sleep(0.5)
        self.longest_save_s = max(self.longest_save_s, time.monotonic() - begun)

    def _written(self, written: Checkpoint) -> None:
        self.status.set(checkpoint={"step": written.step, "time": time.time()})
        size = sum(written.sizes().values())
        if size > self.writer.budget and not self._told_of_size:
            self._told_of_size = True
            taken = f"a checkpoint takes {size / 1e9:.3g} GB, more than disk_budget={self.config.disk_budget}"
            self._say(f"{taken}: only the newest is kept")
