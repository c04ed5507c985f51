"""Random fault injection: train small runs under random faults, and check that each ends like an undisturbed run.

    python -m tests.runs.nights --count 500 --seed 0        # one line per trial; a failed trial also prints its events

A trial is called a night. The algorithm, the store (or none), the faults and their times are drawn from its seed.
Sessions are forked from this process, which has imported everything, so that a night takes a few seconds. Faults
overlap: a run may be killed while its disk is full and its store unreachable. Checks:

    - the run finishes with the fingerprint and the metrics of the same run without faults; a different result is
      accepted only if the log reports a damaged checkpoint
    - a checkpoint that the status reports as saved, on this machine or in the store, exists there
    - the status agrees with the process, running or not, except for at most ten seconds
    - the step in the store's latest.json never decreases, and a run fetched from the store has the same fingerprint
    - a second machine is refused while the first trains
    - no process and no temporary file is left

Clock jumps affect sessions and copiers alike: `tests/runs/moved_clock/sitecustomize.py` shifts `time.time` in each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.format import checkpoint
from kit.runs import control, directory
from kit.runs.finding import locate
from kit.runs.fingerprint import fingerprint
from kit.runs.run import Run
from kit.runs.session import Session
from kit.runs.status import WORKING, Status
from tests.runs.crash import Forked, complete, create
from tests.runs.misfortunes import END_S, MISFORTUNES, Broken, move_clock, processes_of

VARIANTS: dict[str, dict[str, Any]] = {
    "PPO": {"total_steps": 1200, "checkpoint_every": 64},
    "SAC": {"total_steps": 320, "checkpoint_every": 20},
    "A2C": {"total_steps": 960, "checkpoint_every": 48},
}
"""Configs that train for about one second."""
ENV = "tests.envs.slide:Slide"
EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"eval_every": 400},
    {"overrides": {"learning_rate": "lin_0.001"}},
)
DISK_KB = 12_000
LIE_S = 10.0
"""Maximum seconds for which the status may disagree with the process."""
MAX_SESSIONS = 40


class Born(Forked):
    """A session started as by `kit.launch`: the parent takes the lock and writes the status before the child starts.

    The run counts as running at once, however long imports take, here `slow_s`.
    """

    def __init__(self, run: Run, slow_s: float) -> None:
        self.slow_s = slow_s
        with directory.lock(run.path) as self._lock:
            control.take(run.path)
            Status.create(run.path, run.config.total_steps)
            super().__init__(run)

    def _session(self) -> Session:
        time.sleep(self.slow_s)
        return Session(self.run.path, lock=os.dup(self._lock.fileno()))


class Night:
    """One trial; call it to run the faults and the checks. Raises `Broken` if a check fails."""

    def __init__(self, seed: int, folder: Path, quiet: Callable[..., tuple[str, str]], mount: bool = True) -> None:
        self.seed, self.folder, self.draw = seed, folder, random.Random(seed)
        self.disk, self.mount, self.home = folder / "disk", folder / "mnt", folder / "elsewhere"
        for place in (self.disk, self.mount):
            place.mkdir(parents=True)
        if mount:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_KB}k", "tmpfs", str(self.disk)], check=True)
        algo, extra = self.draw.choice([*VARIANTS]), self.draw.randrange(len(EXTRAS))
        self.fields = {"algo": algo, "env": ENV, **VARIANTS[algo], **EXTRAS[extra]}
        self.expected = quiet(algo, extra)
        self.store = str(self.mount / "store") if self.draw.random() < 0.7 else None
        self.run = create(self.disk, "run", store=self.store, **self.fields)
        self.events: list[str] = []
        self.met: Counter[str] = Counter()
        self.session: Forked | None = None
        self.begun = time.monotonic()
        self.undo: list[tuple[float, Callable[[], object]]] = []  # (time, function that ends a fault)
        self._lie: tuple[str, float] | None = None
        self._pointer = self._sessions = 0
        self.slow_s = 0.0
        self.paused = False
        self._mounted = mount
        self._killed = False

    # -- the night -------------------------------------------------------------------------------------------------

    def __call__(self) -> Counter[str]:
        try:
            kinds = [kind for kind in MISFORTUNES if self._possible(kind)]
            for share in sorted(self.draw.random() for _ in range(self.draw.randint(2, 6))):
                self._start()
                if self.draw.random() < 0.7:
                    self.wait(END_S, lambda share=share: self._is_at(share))
                self.wait(self.draw.uniform(0.0, 0.3))
                kind = self.draw.choice(kinds)
                self.say(kind)
                self.met[kind] += 1
                MISFORTUNES[kind](self)
                if self.run.status()["state"] == "finished":
                    break
            self._to_the_end()
            self._check()
            return self.met
        finally:
            self._clean()

    def _is_at(self, share: float) -> bool:
        """Whether the newest checkpoint has reached `share` of the steps, or the session is paused or over."""
        newest = max((found.step for found in self.run.checkpoints()), default=0)
        over = self.session is None or self.session.is_over()
        return over or self.paused or newest >= share * self.fields["total_steps"]

    def _possible(self, kind: str) -> bool:
        """Whether this night can have the fault `kind`.

        Clock jumps and a second machine exclude each other, because the store's lease depends on the clock.
        """
        if kind in ("store_away", "copier_killed", "copier_stopped", "knock") and self.store is None:
            return False
        if kind == "disk_full" and not self._mounted:
            return False
        return kind != ("clock" if self.seed % 2 else "knock")

    def _start(self) -> None:
        """Start a session, unless one is running or the run is finished."""
        while self.session is None or self.session.is_over():
            if self.session is not None:
                self._ended()
            if self.run.status()["state"] == "finished":
                return
            self._sessions += 1
            if self._sessions > MAX_SESSIONS:
                raise Broken("the run does not come to an end")
            slow_s, self.slow_s = self.slow_s, 0.0
            try:
                self.session, self.paused = Born(self.run, slow_s), False
                self.say("session")
            except OSError as error:  # the disk is full
                self.say(f"no session: {error}")
                self.wait(0.3)

    def _ended(self) -> None:
        assert self.session is not None
        code, now = self.session.wait(), self.run.status()
        self.session, self._killed = None, code == -signal.SIGKILL
        self.say(f"ended {code}: {now['state']}, {now['message']}")
        if now["state"] in WORKING:
            raise Broken(f"the process is gone, and the status says {now['state']}")
        if code == -signal.SIGKILL and now["state"] != "finished" and "the process was killed" not in now["message"]:
            raise Broken(f"killed, it says: {now['message']}")
        if code == 0 and now["state"] != "finished":
            raise Broken(f"exit code 0 and {now['state']}")
        if now["state"] == "failed":
            words = ("No space left", "cannot be reached", "cannot be used", "has disappeared", "did not answer")
            if not any(word in now["message"] for word in words):
                raise Broken(f"failed: {now['message']}\n{self.run.log(30)}")
            self.wait(0.3)

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait up to `seconds` and check the run meanwhile; return whether `until()` became true."""
        end = time.monotonic() + seconds
        while not (came := until()) and time.monotonic() < end:
            self._look()
            time.sleep(0.05)
        return came

    def end_soon(self) -> None:
        """Wait for the session to end. Raises `Broken` after `END_S`."""
        session = self.session
        if session is not None and not self.wait(END_S, session.is_over):
            raise Broken(f"asked to end, it is still {self.run.status()['state']} after {END_S:.0f} s")

    def _to_the_end(self) -> None:
        for _ in range(MAX_SESSIONS):
            self._start()
            if self.session is None:
                return
            if self.paused:
                self.run.unpause()
                self.paused = False
            if not self.wait(60.0, self.session.is_over):
                raise Broken(f"it does not come to an end: {self.run.status()}\n{self.run.log(20)}")
        raise Broken("the run does not come to an end")

    # -- checks meanwhile ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """End the faults that are due; compare the status with processes, checkpoints and store."""
        for moment, undo in list(self.undo):
            if time.monotonic() >= moment:
                self.undo.remove((moment, undo))
                undo()
        now, over = self.run.status(), self.session is None or self.session.is_over()
        said, lie = now["checkpoint"], ""
        if over and now["state"] in WORKING:
            lie = f"it says {now['state']}, and no process is at work"
        if not over and now["state"] not in WORKING and now["phase"] != "copying to the store":
            lie = f"it says {now['state']} ({now['phase']}), and a process is at work"
        if self._lie is None or not lie:
            self._lie = (lie, time.monotonic()) if lie else None
        elif time.monotonic() - self._lie[1] > LIE_S:
            raise Broken(f"for {LIE_S:.0f} s: {lie}")
        steps = [found.step for found in self.run.checkpoints()]
        if said is not None and (not steps or steps[-1] < said["step"]):
            raise Broken(f"step {said['step']} was said to be safe; there is {steps}")
        if self.store is not None and (kept := Path(self.store)).is_dir():
            self._look_at(kept, now["store"])

    def _look_at(self, kept: Path, said: dict[str, Any] | None) -> None:
        with contextlib.suppress(FileNotFoundError):  # the store became unreachable meanwhile
            there = [int(path.parent.name[5:]) for path in kept.glob("run/checkpoints/step_*/manifest.json")]
            if said and said["step"] is not None and max(there, default=-1) < said["step"] and kept.is_dir():
                raise Broken(f"step {said['step']} was said to be in the store; there is {there}")
            if (pointer := kept / "run/latest.json").exists():
                step = json.loads(pointer.read_text())["step"]
                if step < self._pointer:
                    raise Broken(f"the store's pointer went back from {self._pointer} to {step}")
                self._pointer = step

    def later(self, undo: Callable[[], object]) -> None:
        self.undo.append((time.monotonic() + self.draw.uniform(0.2, 1.5), undo))

    # -- at the end ------------------------------------------------------------------------------------------------

    def _set_right(self) -> None:
        for _, undo in self.undo:
            undo()
        self.undo.clear()
        move_clock(0.0)

    def _check(self) -> None:
        self._set_right()
        now = self.run.status()
        if now["state"] != "finished":
            raise Broken(f"it ended {now['state']}: {now['message']}")
        if result_of(self.run) != self.expected:
            lost = [line for line in self.run.log(1000).splitlines() if "damaged" in line]
            if not lost:
                raise Broken("it ended otherwise than on a quiet night")
            self.say(f"lost, and said so: {lost}")
        if not self.wait(END_S, lambda: not processes_of(self.folder)):
            raise Broken(f"left over: {[*processes_of(self.folder).values()]}, {now['store']}")
        checkpoint.sweep(self.run.path)
        left = [path.name for path in self.run.path.rglob(".kit-*")]
        if left:
            raise Broken(f"half-made: {left}")
        if self.store is not None:
            if self._killed and (now["store"] or {}).get("step") != self.run.checkpoints()[-1].step:
                self.say("trainer and copier were killed at the end: a resume copies the rest")
                complete(self.run)
            back, _ = locate(f"{self.store}/run", str(self.home))
            if fingerprint(back) != fingerprint(self.run):
                raise Broken("what is in the store is another run")

    def _clean(self) -> None:
        if self.session is not None and not self.session.is_over():
            self.session.kill(signal.SIGKILL)
            self.session.wait()
        self._set_right()
        for process in processes_of(self.folder):
            process.kill()
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.disk)], check=True)

    def say(self, event: str) -> None:
        with contextlib.suppress(Exception):
            now = self.run.status()
            event = f"{event}  [{now['state']} {now['step']}, saved {(now['checkpoint'] or {}).get('step')}]"
        self.events.append(f"{time.monotonic() - self.begun:6.2f}  {event}")


def result_of(run: Run) -> tuple[str, str]:
    """Return the fingerprint, and the metrics without the columns `time/...`, which differ between equal runs."""
    rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.rows()]
    return fingerprint(run), json.dumps(rows)


def spend(seeds: range, folder: Path, events: bool = False) -> tuple[int, Counter[str]]:
    """Run the nights of `seeds`; return how many passed, and the count of each fault. Keeps failed nights' folders."""

    def tell(line: str, night: Night) -> None:
        took = f"{time.monotonic() - night.begun:.1f} s, {night.fields['algo']}: {dict(night.met)}"
        print(
            "\n  ".join([f"night {night.seed} {line}; {took}", *(night.events if events or "FAILED" in line else ())]),
            flush=True,
        )

    results: dict[tuple[str, int], tuple[str, str]] = {}

    def quiet(algo: str, extra: int) -> tuple[str, str]:
        if (algo, extra) not in results:
            run = create(folder, f"quiet-{algo}-{extra}", algo=algo, env=ENV, **{**VARIANTS[algo], **EXTRAS[extra]})
            assert complete(run) == 0, run.log()
            results[algo, extra] = result_of(run)
        return results[algo, extra]

    passed, met = 0, Counter[str]()
    for seed in seeds:
        place = folder / f"night{seed}"
        night = Night(seed, place, quiet, mount=os.getuid() == 0)
        try:
            met += night()
        except Exception as error:
            tell(f"FAILED ({type(error).__name__}): {error}", night)
        else:
            passed += 1
            shutil.rmtree(place)
            tell("passed", night)
    return passed, met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--events", action="store_true", help="also of nights that pass")
    parser.add_argument("--seed", type=int, default=0, help="of the first night")
    options = parser.parse_args()
    os.environ["KIT_EVAL_EPISODES"] = "4"
    folder = Path(tempfile.mkdtemp(prefix="nights-"))
    passed, met = spend(range(options.seed, options.seed + options.count), folder, options.events)
    print(f"{passed} of {options.count} nights passed; met: {dict(met.most_common())}")
    if passed == options.count:
        shutil.rmtree(folder)
    return passed < options.count


def with_a_clock() -> None:
    """Restart this program in an interpreter whose clock `move_clock` can shift."""
    handle, name = tempfile.mkstemp(prefix="clock-")
    os.write(handle, struct.pack("d", 0.0))
    path = os.pathsep.join([str(Path(__file__).parent / "moved_clock"), os.environ.get("PYTHONPATH", "")])
    caps = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    environment = {**os.environ, **caps, "CLOCK": name, "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, "-m", "tests.runs.nights", *sys.argv[1:]], environment)


if __name__ == "__main__":
    if "CLOCK" not in os.environ:
        with_a_clock()
    sys.exit(main())
