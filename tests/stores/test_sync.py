"""The background process: when it copies, what it says, and that nothing stops it but success."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.errors import UserError
from kit.stores import LeaseHeld, StoreError, SyncHandle, alone, lease, open_store, pull, start_sync
from kit.stores.copier import Copier
from kit.stores.loop import LONGEST_PAUSE_S, REFRESH_S, Hung, Sync, Watched
from tests.stores.conftest import KINDS
from tests.stores.dead_mount import DeadMount
from tests.stores.fabricate import add_checkpoint, content, make_run, set_status
from tests.stores.hub_server import Fault, HubServer

Wait = Callable[..., None]


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
        return {"step": answer, "time": self.clock(), "pending": self.pending, "problem": None}

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
        self.sync = Sync(run, "s3://b/p", "me", copier, lambda: self.now >= over, lambda: self.now, self.sleep, tick_s,
                         **options)  # fmt: skip
        self.code = self.sync.run()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for when in [t for t in self.at if t <= self.now]:
            self.at.pop(when)()
        state = read_state(self.run)
        if not self.states or self.states[-1] != state["state"]:
            self.states.append(state["state"])
        assert self.now < 10 * 24 * 3600, "it never ended"


def read_state(run: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads((run / ".sync.json").read_text()))
    return {"state": None, "step": None, "error": None, "failures": 0}


# -- the loop, on a clock of its own ---------------------------------------------------------------------------------


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
    assert 0.6 + 0.5 < time.monotonic() - begun < 5 and waited
    silent.set()


def test_a_run_whose_folder_is_gone_is_let_go(run: Path) -> None:
    copier = FakeCopier(200)
    machine = Machine(run, copier, over=3600, at={30: lambda: shutil.rmtree(run)})
    assert machine.code == 4 and copier.released and machine.now < 40


def test_an_orphan_gives_up_in_the_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.stores.loop.ORPHAN_S", 1000.0)
    machine = Machine(run, FakeCopier(StoreError("gone")), over=1000)
    assert machine.code == 4 and 2000 < machine.now < 2100


# -- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SyncHandle]]:
    """start_sync, with short pauses; whatever was started is ended."""
    handles: list[SyncHandle] = []

    def start(*args: Any) -> SyncHandle:
        handles.append(start_sync(*args))
        return handles[-1]

    yield start
    for handle in handles:
        handle._stopping.set()
        if handle._process.poll() is None:
            handle._process.kill()
            handle._process.wait(10)


@pytest.mark.parametrize("store_url", [kind for kind in KINDS if kind != "memory"], indirect=True)
def test_the_local_folder_is_deleted_and_comes_back_identical(
    store_url: str, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    run = make_run(tmp_path / "runs", steps=(100,), replay=True)
    handle = started(run, store_url)
    waiter(lambda: handle.state()["step"] == 100, 30)
    add_checkpoint(run, 200, replay=True)
    waiter(lambda: handle.state()["step"] == 200, 30)
    state = handle.stop(30)
    assert state["state"] == "ok" and state["error"] is None and handle._process.poll() == 0
    before = content(run)
    shutil.rmtree(run)
    back = pull(open_store(store_url), None, tmp_path / "runs")
    assert back == run and content(back) == before
    lease.acquire(open_store(store_url, write=True), run.name, "another machine")


def test_it_ends_when_training_dies_and_everything_has_arrived(run: Path, tmp_path: Path, waiter: Wait) -> None:
    """Training is killed outright, with a checkpoint not yet copied."""
    store = tmp_path / "store"
    program = f"from kit.stores import start_sync; h = start_sync({str(run)!r}, {str(store)!r}); print(h._process.pid, flush=True); import time; time.sleep(60)"  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as training:
        assert training.stdout
        pid = int(training.stdout.readline())
        add_checkpoint(run, 300)
        training.kill()
    waiter(lambda: not _alive(pid), 30, "the copier outlives its work")
    assert read_state(run)["state"] == "ok" and read_state(run)["step"] == 300
    assert content(pull(open_store(str(store)), None, tmp_path / "back")) == content(run)


def test_a_signal_makes_it_finish_not_flee(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    handle = started(run, str(tmp_path / "store"))
    handle._stopping.set()
    waiter(lambda: handle.state().get("pid") == handle._process.pid, 20)
    add_checkpoint(run, 300)
    handle._process.send_signal(signal.SIGTERM)
    assert handle._process.wait(20) == 0
    assert read_state(run)["step"] == 300


def test_a_killed_copier_is_started_again(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    handle = started(run, str(tmp_path / "store"))
    waiter(lambda: handle.state()["step"] == 200)
    first = handle._process.pid
    handle._process.kill()
    waiter(lambda: handle.state()["state"] == "failing", why="nobody said so")
    add_checkpoint(run, 300)
    waiter(lambda: handle.state()["step"] == 300)
    assert handle._process.pid != first


def test_the_hub_falls_silent_and_comes_back(
    run: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    """A request hangs: the user is told, the process begins anew and the copy catches up; also when training is over.
    Somebody who asked it to end is heard."""
    monkeypatch.setenv("KIT_STORE_PATIENCE_S", "3")
    handle = started(run, "hf://me/runs")
    process = handle._process
    waiter(lambda: handle.state()["step"] == 200)
    for step in (300, 400):
        hub.fault("commit", Fault(stall=True, times=1))
        add_checkpoint(run, step)
        if step == 400:
            handle.stop(0.0)
        waiter(lambda: handle.state()["state"] == "failing")
        assert "no answer from the store" in handle.state()["error"] and handle.state()["failures"] == 1
        waiter(lambda step=step: handle.state()["step"] == step)
    assert process.wait(20) == 0 and handle._process is process
    assert handle.state()["state"] == "ok" and handle.state()["pid"] == process.pid
    lease.acquire(open_store("hf://me/runs", write=True), run.name, "another machine")


STRACE = shutil.which("strace")


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize(
    ("inject", "words"),
    [
        ("fsync:error=ENOTCONN:when=4+", "Transport endpoint is not connected"),
        ("fsync:error=EIO:when=4+", "Input/output error"),
        ("fsync:error=ENOSPC:when=4+", "No space left on device"),
    ],
    ids=["vanishes", "breaks", "full"],
)
def test_a_real_folder_fails_in_the_middle(run: Path, tmp_path: Path, waiter: Wait, inject: str, words: str) -> None:
    """The system itself refuses, from the fourth fsync on."""
    url = str(tmp_path / "store")
    probe = subprocess.run([str(STRACE), "-f", "-o", "/dev/null", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("strace may not trace here")
    with copying(run, url, "-e", f"inject={inject}", stdin=subprocess.PIPE):
        waiter(lambda: read_state(run)["state"] == "failing")
        state = read_state(run)
    assert words in state["error"]
    assert not list((tmp_path / "store").rglob("latest.json"))
    with copying(run, url) as healthy:
        assert healthy.wait(30) == 0
    assert content(pull(open_store(url), None, tmp_path / "back")) == content(run)


@contextlib.contextmanager
def copying(run: Path, url: str, *inject: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """The process, which ends when it has copied all if nobody is there to tell it that more will come."""
    prefix = [str(STRACE), "-f", "-o", "/dev/null", *inject] if inject else []
    command = [*prefix, sys.executable, "-m", "kit.stores", str(run), url, "me"]
    with subprocess.Popen(command, stdin=stdin, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_mount_that_is_dead_is_named_and_outlived(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiter: Wait
) -> None:
    """As Google Drive at its worst: whoever asks it waits in the kernel, and cannot even be killed."""
    monkeypatch.setenv("KIT_STORE_PATIENCE_S", "1")
    (tmp_path / "mnt").mkdir()
    url = str(tmp_path / "mnt/store")
    with contextlib.ExitStack() as stack:
        try:
            mount = stack.enter_context(DeadMount(tmp_path / "mnt"))
        except OSError:
            pytest.skip("mounting a file system needs root")
        first = stack.enter_context(copying(run, url, stdin=subprocess.PIPE))
        stack.callback(mount.revive)
        waiter(lambda: read_state(run)["failures"] == 1)
        assert "stuck in the kernel, as on a dead mount" in read_state(run)["error"] and mount.waited_for
        second = stack.enter_context(copying(run, url, stdin=subprocess.PIPE))
        waiter(lambda: read_state(run)["pid"] == second.pid and read_state(run)["state"] == "failing")
        words = f"the copier of an earlier session (process {first.pid}) hangs, and the system cannot end it"
        assert read_state(run)["error"] == words
        mount.revive()
        waiter(lambda: "Function not implemented" in (read_state(run)["error"] or ""), why="it does not go on")
        assert first.wait(10) == -signal.SIGKILL


def killed_at(call: str, number: int, run: Path, url: str) -> bool:
    """The process killed at its `number`-th system call `call`, counted in each thread; False if it made fewer."""
    with copying(run, url, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}") as process:
        code = process.wait(60)
    assert code in (0, -signal.SIGKILL, 128 + signal.SIGKILL), code
    return code != 0


def survives_kills_at(call: str, numbers: Iterable[int], folder: Path) -> int:
    """For each number: a store with step 100 gets step 200, and the copier is killed. What is there then is whole, no
    older than the pointer says, and the next copier finishes. Returns how many kills there were."""
    kills = 0
    for number in numbers:
        place = folder / f"{call}-{number}"
        run, url = make_run(place, steps=(100,), replay=True), str(place / "store")
        Copier(run, open_store(url, write=True), "me").run_pass(final=True)
        add_checkpoint(run, 200, replay=True)
        killed = killed_at(call, number, run, url)
        back = pull(open_store(url), None, place / "after")
        newest = int(sorted((back / "checkpoints").iterdir())[-1].name.removeprefix("step_"))
        pointer = json.loads((place / "store/reach-1/latest.json").read_text())["step"]
        assert newest >= pointer and newest in (100, 200)
        texts = {"metrics.jsonl": b""}  # it may be ahead of the checkpoint
        assert {**content(back, newest), **texts} == {**content(run, newest), **texts}
        Copier(run, open_store(url, write=True), "me").run_pass(final=True)
        assert content(pull(open_store(url), None, place / "last")) == content(run)
        shutil.rmtree(place)
        if not killed:
            break
        kills += 1
    return kills


@pytest.mark.skipif(not STRACE, reason="strace is not installed")
def test_a_copier_killed_in_the_middle(tmp_path: Path) -> None:
    assert survives_kills_at("rename", (4, 9), tmp_path) == 2


@pytest.mark.storm
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("call", ["rename", "fsync", "unlink", "mkdir", "write"])
def test_a_copier_killed_at_every_call(tmp_path: Path, call: str) -> None:
    kills = survives_kills_at(call, range(1, 200), tmp_path)
    print(f"{call}: killed {kills} times")
    assert kills > 0


def test_starting_on_anothers_run_says_who(run: Path, store_url: str) -> None:
    store = open_store(store_url, write=True)
    lease.acquire(store, run.name, "rival")
    with pytest.raises(UserError, match=r"belongs to rival on .* since 20.* until 20"):
        start_sync(run, store_url)


def test_starting_from_nothing_over_a_run_in_the_store_is_refused(
    run: Path, store_url: str, tmp_path: Path, started: Callable[..., SyncHandle]
) -> None:
    started(run, store_url).stop(20)
    fresh = make_run(tmp_path / "elsewhere", steps=())
    with pytest.raises(UserError, match=r"holds step 200 of run 'reach-1', and this machine nothing; run `kit resume"):
        start_sync(fresh, store_url)
    older = make_run(tmp_path / "older", steps=(100,))
    with pytest.raises(UserError, match="this machine step 100"):
        start_sync(older, store_url)


@pytest.mark.parametrize("how", ["flip", "missing"])
def test_after_a_damaged_checkpoint_in_the_store_the_run_goes_on(
    run: Path, store_url: str, tmp_path: Path, started: Callable[..., SyncHandle], how: str
) -> None:
    """What was passed over when fetching is no newer state; it is overwritten when its step comes again."""
    started(run, store_url).stop(20)
    policy = Path(store_url) / "reach-1/checkpoints/step_000000200/policy.safetensors"
    policy.unlink() if how == "missing" else policy.write_bytes(policy.read_bytes()[:-1] + b"!")
    make_run(tmp_path / "x", steps=(100,)).joinpath("checkpoints/step_000000100").rename(
        policy.parent.parent / "step_000000100"
    )
    back = pull(open_store(store_url), None, tmp_path / "there", tell=lambda text: None)
    add_checkpoint(back, 150)
    assert started(back, store_url).stop(20)["step"] == 150
    add_checkpoint(back, 200)
    assert started(back, store_url).stop(20)["step"] == 200
    assert content(pull(open_store(store_url), None, tmp_path / "last")) == content(back)


def test_a_store_that_cannot_be_used_is_said_at_once(run: Path) -> None:
    with pytest.raises(UserError, match="cannot be reached"):
        start_sync(run, "/nowhere/at/all")
    assert not (run / ".sync.json").exists()


def test_by_hand(run: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    set_status(run, state="finished")
    command = [sys.executable, "-m", "kit.stores", str(run), str(tmp_path / "store")]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    assert (tmp_path / "store/reach-1/latest.json").exists()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    except FileNotFoundError:
        return False


def test_two_copiers_of_one_run_become_one(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    """A session that follows another at once replaces the copier the other left behind."""
    first = started(run, str(tmp_path / "store"))
    waiter(lambda: first.state().get("pid") == first._process.pid)
    first._stopping.set()
    second = started(run, str(tmp_path / "store"))
    waiter(lambda: second.state().get("pid") == second._process.pid)
    assert first._process.wait(10) == -signal.SIGKILL
    assert second.stop(20)["state"] == "ok"


COPIER_LIKE = ["-m", "kit.stores"]


@pytest.mark.parametrize(
    ("change", "words", "ended"),
    [
        ({}, COPIER_LIKE, True),
        ({}, [], False),
        ({"host": "elsewhere"}, COPIER_LIKE, False),
        ({"boot": "another"}, COPIER_LIKE, False),
        ({"started": 1.0}, COPIER_LIKE, False),
        ({"pid": 2**22}, COPIER_LIKE, False),
        (None, COPIER_LIKE, False),
    ],
    ids=["ours", "no copier", "host", "boot", "start", "gone", "bare number"],
)
def test_only_a_copier_of_this_very_machine_is_ended(
    tmp_path: Path, change: dict[str, Any] | None, words: list[str], ended: bool
) -> None:
    """On a folder shared between hosts or containers, the number in the lock may be a stranger's here."""
    lock = tmp_path / ".sync.lock"
    program = "print(flush=True); import time; time.sleep(60)"
    with (
        subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE) as stranger,
        lock.open("a+") as theirs,
        lock.open("a+") as mine,
    ):
        assert stranger.stdout and stranger.stdout.readline()
        alone.take(theirs)
        holder = str(stranger.pid) if change is None else json.dumps({**alone.identity(stranger.pid), **change})
        lock.write_text(holder)
        try:
            words = "an earlier session" if ended else "another machine's copier has the run"
            with pytest.raises(StoreError, match=words):  # not even a dead one's lock is taken while it is held
                alone.take(mine)
            if ended:
                assert stranger.wait(10) == -signal.SIGKILL
            else:
                assert stranger.poll() is None
            theirs.close()
            alone.take(mine)
            assert json.loads(lock.read_text()) == alone.identity(os.getpid())
        finally:
            stranger.kill()


def test_another_machines_copier_is_named_and_waited_for(
    run: Path, tmp_path: Path, started: Callable[..., SyncHandle], waiter: Wait
) -> None:
    with (run / ".sync.lock").open("a+") as theirs:
        alone.take(theirs)
        (run / ".sync.lock").write_text(json.dumps({**alone.identity(os.getpid()), "host": "elsewhere"}))
        handle = started(run, str(tmp_path / "store"))
        waiter(lambda: handle.state()["state"] == "failing")
        said = f"another machine's copier has the run (process {os.getpid()} on elsewhere)"
        assert handle.state()["error"].startswith(said) and not (tmp_path / "store/reach-1/latest.json").exists()
    waiter(lambda: handle.state()["state"] == "ok")
    assert handle.stop(20) | {"step": 200, "error": None, "failures": 0} == handle.state()
