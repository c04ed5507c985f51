"""When the loop copies, how long it waits and what it says, on a clock of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.stores import LeaseHeld, StoreError, lease, open_store
from kit.stores.copier import Copier
from kit.stores.loop import LONGEST_PAUSE_S, REFRESH_S, Hung, Sync, Watched
from tests.stores.fabricate import add_checkpoint, read_state


class FakeCopier:
    """Plays back `script`: a result's step, or an error, per pass; the last one again and again."""

    def __init__(self, *script: int | Exception, interval_s: float = 0.0, pending: bool = False) -> None:
        self.script, self.interval_s, self.pending = list(script), interval_s, pending
        self.passes: list[tuple[float, bool]] = []
        self.released = False
        self.clock: Callable[[], float] = lambda: 0.0

    def run_pass(self, final: bool) -> dict[str, Any]:
        self.passes.append((self.clock(), final))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Exception):
            raise answer
        return {"step": answer, "time": self.clock(), "pending": self.pending, "problem": None, "note": None}

    def close(self) -> None:
        self.released = True


class Machine:
    """A clock that moves when somebody sleeps, and training that ends at `over`. `at` runs things at given times."""

    def __init__(
        self,
        run: Path,
        copier: FakeCopier,
        over: float,
        at: dict[float, Callable[[], object]] | None = None,
        **options: Any,
    ) -> None:
        self.now, self.at = 0.0, dict(at or {})
        copier.clock = lambda: self.now
        self.states: list[str] = []
        self.run = run
        tick_s = max(0.25, over / 1000)
        self.moved = 0.0
        self.sync = Sync(run, "s3://b/p", "me", copier, lambda: self.now >= over, lambda: self.now + self.moved,
                         lambda: self.now, self.sleep, tick_s, **options)  # fmt: skip
        self.code = self.sync.run()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when in [t for t in self.at if t <= self.now]:
            moved = self.at.pop(when)()
            self.moved = moved if isinstance(moved, float) else self.moved
        state = read_state(self.run)
        if not self.states or self.states[-1] != state["state"]:
            self.states.append(state["state"])
        assert self.now < 10 * 24 * 3600, "it never ended"


def test_copies_once_per_checkpoint_and_ends_with_training(run: Path) -> None:
    copier = FakeCopier(200, 300)
    machine = Machine(run, copier, over=60, at={30: lambda: add_checkpoint(run, 300)})
    assert machine.code == 0 and copier.released
    assert [final for _, final in copier.passes] == [False, False, True]
    assert read_state(run) | {"pid": 0, "updated": 0} == {
        **{"url": "s3://b/p", "step": 300, "time": machine.now, "state": "ok", "error": None},
        **{"owner": "me", "failures": 0, "pid": 0, "updated": 0},
    }


def test_failures_are_loud_and_pauses_grow_but_never_end(run: Path) -> None:
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


def test_the_newest_wins_where_puts_are_rationed(run: Path) -> None:
    """A checkpoint a second, a put per 90 s: about forty an hour, and the last one arrives."""
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


def test_a_quiet_run_is_looked_after(run: Path) -> None:
    copier = FakeCopier(200)
    Machine(run, copier, over=4 * REFRESH_S)
    assert 4 <= len(copier.passes) <= 6


@pytest.mark.parametrize("moved_s", [-30 * 86400.0, -3600.0, 30 * 86400.0])
def test_a_clock_that_is_set_changes_nothing(run: Path, moved_s: float) -> None:
    """Set by a month just after a failure: the next try comes as soon, training is not given up, and it is seen to
    live."""
    copier, heard = FakeCopier(StoreError("it is on fire"), 200, 300), list[float]()
    at: dict[float, Callable[[], object]] = {1.0: lambda: moved_s, 30.0: lambda: add_checkpoint(run, 300)}
    machine = Machine(run, copier, over=60, at=at | {20.0: lambda: heard.append(read_state(run)["updated"])})
    assert [final for _, final in copier.passes] == [False, False, False, True]
    assert copier.passes[1][0] < 4 and copier.passes[2][0] < 32 and machine.code == 0
    assert 0 <= 20 + moved_s - heard[0] < 6


def test_a_run_that_became_anothers_is_not_copied_again(run: Path) -> None:
    copier = FakeCopier(200, LeaseHeld(run.name, lease.Lease("rival", "there", 0.0, 600.0)))
    machine = Machine(run, copier, over=3600, at={30: lambda: add_checkpoint(run, 300)})
    assert machine.code == 3 and len(copier.passes) == 2 and not copier.released
    state = read_state(run)
    assert state["state"] == "failing" and "rival" in state["error"] and machine.now - state["updated"] < 10


def test_after_a_hang_it_begins_anew_and_knows_what_was(run: Path) -> None:
    """Also that training is over: nobody else would start it again."""
    told: list[dict[str, Any]] = []

    def restart(before: dict[str, Any]) -> None:
        told.append(json.loads(json.dumps(before)))
        raise SystemExit

    copier = FakeCopier(200, StoreError("it is on fire"), Hung("no answer while listing"))
    with pytest.raises(SystemExit):
        Machine(run, copier, over=30, at={29: lambda: add_checkpoint(run, 300)}, restart=restart)
    (before,) = told
    assert before["drain_since"] == 30 and before["state"] == read_state(run)
    assert before["state"] | {"updated": 0} == {
        **{"url": "s3://b/p", "step": 200, "time": 0.0, "state": "failing", "error": "no answer while listing"},
        **{"owner": "me", "failures": before["state"]["failures"], "pid": os.getpid(), "updated": 0},
    }
    assert before["state"]["failures"] >= 2
    again = FakeCopier(300)
    machine = Machine(run, again, over=1000, before=before)
    assert machine.code == 0 and [final for _, final in again.passes] == [True]
    assert machine.states[0] == "failing" and 4 <= machine.now < 10, "the pause is kept, and the error until it is over"


def test_a_request_that_takes_too_long_is_given_up_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_STORE_PATIENCE_S", "0.3")
    silent, waited = threading.Event(), []

    class Slow(Copier):
        def run_pass(self, final: bool = False) -> dict[str, Any]:
            for _ in range(3):
                self._watch("reading back a.json", 0)  # each of them is quick enough, all together are not
                silent.wait(0.2)
            self._watch("listing", 20_000)
            silent.wait(20)
            return {}

    copier = Watched(lambda announce: Slow(run, open_store(run.parent, write=True), "me", watch=announce))
    copier.on_wait = lambda: waited.append(time.monotonic())
    begun = time.monotonic()
    with pytest.raises(Hung, match="got no answer from the store for 0 s while listing"):
        copier.run_pass(final=False)
    assert 0.6 + 0.5 < time.monotonic() - begun < 20 and waited
    silent.set()


def test_a_run_whose_folder_is_gone_is_let_go(run: Path) -> None:
    copier = FakeCopier(200)
    machine = Machine(run, copier, over=3600, at={30: lambda: shutil.rmtree(run)})
    assert machine.code == 4 and copier.released and machine.now < 40


def test_an_orphan_gives_up_in_the_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.stores.loop.ORPHAN_S", 1000.0)
    machine = Machine(run, FakeCopier(StoreError("gone")), over=1000)
    assert machine.code == 4 and 2000 < machine.now < 2100
