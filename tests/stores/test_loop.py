"""Tests of `Sync` on a fake clock: passes, retries, .sync.json, time limits, the end of training."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.stores import LeaseHeld, StoreError, lease
from kit.stores.copier import Watch
from kit.stores.loop import GIVE_UP, LONGEST_PAUSE_S, REFRESH_S, Sync
from tests.stores.fabricate import add_checkpoint, read_state


class FakeCopier:
    """Copier stub: each pass returns the next step of `script` or raises the next error; the last entry repeats."""

    def __init__(self, *script: int | Exception, interval_s: float = 0.0, pending: bool = False) -> None:
        self.script, self.pending = list(script), pending
        self.store = SimpleNamespace(min_interval_s=interval_s)
        self.passes: list[tuple[float, bool]] = []
        self.problem: str | None = None
        self.released = False
        self.clock: Callable[[], float] = lambda: 0.0

    def run_pass(self, final: bool) -> dict[str, Any]:
        self.passes.append((self.clock(), final))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        return {"step": answer, "time": self.clock(), "pending": self.pending, "problem": self.problem, "note": None}

    def close(self) -> None:
        self.released = True


class Machine:
    """Runs `Sync` on a fake clock that `sleep` advances; training ends at `over`.

    `at`: time in seconds -> function to call then; a float that it returns shifts the system clock by as many seconds.
    """

    def __init__(
        self,
        run: Path,
        copier: FakeCopier,
        over: float,
        at: dict[float, Callable[[], object]] | None = None,
    ) -> None:
        self.now, self.at = 0.0, dict(at or {})
        copier.clock = lambda: self.now
        self.states: list[str] = []
        self.run = run
        tick_s = max(0.25, over / 1000)
        self.moved = 0.0
        self.sync = Sync(run, "s3://b/p", "me", lambda watch: copier, lambda: self.now >= over, lambda: None,
                         False, lambda: self.now + self.moved, lambda: self.now, self.sleep, tick_s)  # fmt: skip
        self.code = self.sync.run()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when in [t for t in self.at if t <= self.now]:
            moved = self.at.pop(when)()
            self.moved = moved if isinstance(moved, float) else self.moved
        state = read_state(self.run)
        if not self.states or self.states[-1] != state["state"]:
            self.states.append(state["state"])
        assert self.now < 10 * 24 * 3600, "the loop did not end within 10 days"


def test_copies_once_per_checkpoint_and_ends_with_training(run: Path) -> None:
    copier = FakeCopier(200, 300)
    machine = Machine(run, copier, over=60, at={30: lambda: add_checkpoint(run, 300)})
    assert machine.code == 0 and copier.released
    assert [final for _, final in copier.passes] == [False, False, True]
    assert read_state(run) | {"pid": 0, "updated": 0} == {
        **{"url": "s3://b/p", "step": 300, "time": machine.now, "state": "ok", "error": None},
        **{"owner": "me", "failures": 0, "pid": 0, "updated": 0},
    }


def test_a_damaged_checkpoint_is_tried_once_and_a_newer_one_at_once(run: Path) -> None:
    copier = FakeCopier(200)
    copier.problem = "step_300 on this machine is damaged"
    at = {10.0: lambda: add_checkpoint(run, 300), 40.0: lambda: add_checkpoint(run, 400)}
    machine = Machine(run, copier, over=60, at=at)
    assert [round(when) for when, _ in copier.passes] == [0, 10, 40, 60]
    assert machine.states == ["ok"] and read_state(run)["error"] == copier.problem


def test_failures_are_reported_and_pauses_grow_to_a_limit(run: Path) -> None:
    copier = FakeCopier(*[StoreError("it is on fire")] * 12, 200)
    machine = Machine(run, copier, over=3600)
    times = [when for when, _ in copier.passes]
    gaps = [b - a for a, b in itertools.pairwise(times)][:12]
    tick = 3.6
    assert all(want <= gap <= want + tick for gap, want in zip(gaps, [2, 4, 8, 16, 32, 64, 128, 256], strict=False))
    assert max(gaps) <= LONGEST_PAUSE_S + tick
    assert machine.states == ["failing", "ok"]


def test_while_it_fails_the_error_can_be_read(run: Path) -> None:
    seen: list[dict[str, Any]] = []
    copier = FakeCopier(StoreError("it is on fire"), 200)
    Machine(run, copier, over=60, at={1: lambda: seen.append(read_state(run))})
    assert seen[0]["state"] == "failing" and seen[0]["error"] == "it is on fire" and seen[0]["failures"] == 1


def test_the_store_says_how_long_to_wait(run: Path) -> None:
    copier = FakeCopier(StoreError("slow down", retry_after_s=1800), 200)
    Machine(run, copier, over=2400)
    assert copier.passes[1][0] - copier.passes[0][0] >= 1800


def test_the_end_of_training_does_not_wait_for_the_next_try(run: Path) -> None:
    copier = FakeCopier(StoreError("slow down", retry_after_s=1800), 200)
    machine = Machine(run, copier, over=60)
    assert machine.now < 62 and machine.code == 0


def test_with_a_minimum_interval_the_newest_checkpoint_is_copied(run: Path) -> None:
    """A checkpoint every 5 s, at most one put per 90 s (40 an hour): the last checkpoint arrives."""
    copier = FakeCopier(200, interval_s=90.0)
    steps = {float(t): (lambda t=t: add_checkpoint(run, 1000 + t)) for t in range(1, 300, 5)}
    run_pass = copier.run_pass

    def follow(final: bool) -> dict[str, Any]:
        newest = sorted((run / "checkpoints").glob("step_*"))[-1].name
        return {**run_pass(final), "step": int(newest.removeprefix("step_"))}

    copier.run_pass = follow  # type: ignore[method-assign]
    Machine(run, copier, over=300, at=steps)
    assert len(copier.passes) <= 300 / 90 + 2
    assert read_state(run)["step"] == 1296


def test_passes_continue_without_new_checkpoints(run: Path) -> None:
    copier = FakeCopier(200)
    Machine(run, copier, over=4 * REFRESH_S)
    assert 4 <= len(copier.passes) <= 6


@pytest.mark.parametrize("moved_s", [-30 * 86400.0, -3600.0, 30 * 86400.0])
def test_a_change_of_the_system_clock_has_no_effect(run: Path, moved_s: float) -> None:
    """The clock changes just after a failure; the retry, the end of training and the heartbeat are unaffected."""
    copier, heard = FakeCopier(StoreError("it is on fire"), 200, 300), list[float]()
    at: dict[float, Callable[[], object]] = {1.0: lambda: moved_s, 30.0: lambda: add_checkpoint(run, 300)}
    machine = Machine(run, copier, over=60, at=at | {20.0: lambda: heard.append(read_state(run)["updated"])})
    assert [final for _, final in copier.passes] == [False, False, False, True]
    assert copier.passes[1][0] < 4 and copier.passes[2][0] < 32 and machine.code == 0
    assert 0 <= 20 + moved_s - heard[0] < 6


def test_copying_stops_when_another_machine_has_the_lease(run: Path) -> None:
    copier = FakeCopier(200, LeaseHeld(run.name, lease.Lease("rival", "there", 0.0, 600.0)))
    machine = Machine(run, copier, over=3600, at={30: lambda: add_checkpoint(run, 300)})
    assert machine.code == 3 and len(copier.passes) == 2 and not copier.released
    state = read_state(run)
    assert state["state"] == "failing" and "rival" in state["error"] and machine.now - state["updated"] < 10


def test_a_request_over_its_time_limit_restarts_the_process_with_its_state(run: Path) -> None:
    """The limit is per request and grows with its bytes; a pass of several requests may take longer."""
    now, restarts = [0.0], list[dict[str, Any]]()

    class Slow(FakeCopier):
        def run_pass(self, final: bool) -> dict[str, Any]:
            for size, lasts_s in ((0, 170), (0, 170), (20_000_000, 370), (0, 181)):
                self.watch("listing", size)
                now[0] += lasts_s
                sync.beat()
            return super().run_pass(final)

    def slow(watch: Watch) -> Any:
        copier.watch = watch
        return copier

    def restart() -> None:
        assert now[0] == 170 + 170 + 370 + 181
        after = Sync(run, "s3://b/p", "me", slow, lambda: True, lambda: None, restarted=True)
        restarts.append(after.state)

    copier = Slow(200)
    sync = Sync(run, "s3://b/p", "me", slow, lambda: True, restart, timer=lambda: now[0])
    assert sync.run() == 0
    words = "the copier got no answer from the store for 180 s while listing; if the store is a mount, it may be dead"
    (after,) = restarts
    assert (after["state"], after["error"], after["failures"]) == ("failing", words, 1)


def test_a_deleted_run_ends_the_loop_and_releases_the_lease(run: Path) -> None:
    copier = FakeCopier(200)
    machine = Machine(run, copier, over=3600, at={30: lambda: shutil.rmtree(run)})
    assert machine.code == 4 and copier.released and machine.now < 40


def test_after_training_the_loop_gives_up_after_a_day_of_failures(run: Path) -> None:
    machine = Machine(run, FakeCopier(StoreError("gone")), over=50_000)
    assert machine.code == 4 and 23 * 3600 < machine.now - 50_000 < 26 * 3600 and read_state(run)["failures"] == GIVE_UP
