"""Faults and user commands that `tests.runs.nights` injects into a run, one function each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from kit.errors import UserError
from kit.runs.finding import locate
from tests.runs.crash import Forked

if TYPE_CHECKING:
    from tests.runs.nights import Night

END_S = 30.0
"""Timeout in seconds, for example for a session to end after SIGTERM or a stop command."""
JUMPS_S = (-30 * 86400.0, -3600.0, -60.0, 60.0, 3600.0, 30 * 86400.0)


class Broken(AssertionError):
    """Raised when a check of `tests.runs.nights` fails."""


def _signal(night: Night, number: int) -> None:
    if night.session is not None and not night.session.is_over():
        night.session.kill(number)


def sigterm(night: Night) -> None:
    _signal(night, signal.SIGTERM)
    _signal(night, signal.SIGCONT)
    night.end_soon()


def sigkill(night: Night) -> None:
    _signal(night, signal.SIGKILL)
    night.end_soon()


def sighup(night: Night) -> None:
    _signal(night, signal.SIGHUP)


def _copiers(night: Night) -> list[psutil.Process]:
    return [process for process, words in processes_of(night.folder).items() if "kit.stores" in words]


def copier_killed(night: Night) -> None:
    for process in _copiers(night):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def stopped(night: Night) -> None:
    if (session := night.session) is not None and not session.is_over():
        session.kill(signal.SIGSTOP)
        night.later(lambda: None if session.is_over() else session.kill(signal.SIGCONT))


def copier_stopped(night: Night) -> None:
    for process in _copiers(night):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            night.later(lambda process=process: process.resume() if process.is_running() else None)


def disk_full(night: Night) -> None:
    ballast = night.disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    night.later(lambda: ballast.unlink(missing_ok=True))


def store_away(night: Night) -> None:
    away = night.folder / "unplugged"
    if night.mount.exists():
        night.mount.rename(away)
        night.later(lambda: away.rename(night.mount))


def slow_start(night: Night) -> None:
    night.slow_s = night.draw.uniform(0.3, 2.0)
    sigkill(night)


def clock(night: Night) -> None:
    move_clock(night.draw.choice(JUMPS_S))


def pause(night: Night) -> None:
    night.run.pause()
    night.paused = True
    heard = lambda: night.run.status()["state"] not in ("starting", "running")  # noqa: E731
    if night.undo or night.draw.random() < 0.5:
        return
    if not night.wait(END_S, heard):
        raise Broken(f"asked to pause, it is {night.run.status()['state']} after {END_S:.0f} s")
    unpause(night)


def unpause(night: Night) -> None:
    night.run.unpause()
    night.paused = False


def stop(night: Night) -> None:
    night.run.stop()
    night.end_soon()


def checkpoint(night: Night) -> None:
    night.run.checkpoint()


def flip(night: Night) -> None:
    """Flip a random bit in a random file of the second newest checkpoint, shared replay files excluded."""
    for found in night.run.checkpoints()[:-1][-1:]:
        with contextlib.suppress(OSError):
            path = night.draw.choice(sorted(each for each in found.path.iterdir() if each.stat().st_size))
            with path.open("r+b") as file:
                at = night.draw.randrange(path.stat().st_size)
                file.seek(at)
                byte = file.read(1)[0] ^ (1 << night.draw.randrange(8))
                file.seek(at)
                file.write(bytes([byte]))


def knock(night: Night) -> None:
    """Resume the run from its store on a second machine while the first trains: it must be refused.

    The first session is suspended by SIGSTOP meanwhile, so that it does not finish.
    """
    if night.session is None or night.session.is_over() or (night.run.status()["store"] or {}).get("step") is None:
        return
    if night.run.status()["state"] not in ("running", "paused"):
        return
    session = night.session
    session.kill(signal.SIGSTOP)
    try:
        there, _ = locate(f"{night.store}/run", str(night.home))
        second = Forked(there)
        second.until(lambda: there.status()["state"] == "failed", END_S)
        if second.wait() == 0:
            raise Broken(f"a second machine was let in: {there.status()['message']}")
        said = there.status()["message"]
        if "belongs to" not in said and "cannot be" not in said:
            raise Broken(f"a second machine was refused without saying why: {said!r}")
    except UserError as error:  # the store is unreachable
        night.say(f"knocked: {error}")
    finally:
        session.kill(signal.SIGCONT)
        shutil.rmtree(night.home, ignore_errors=True)


MISFORTUNES: dict[str, Callable[[Night], None]] = {
    misfortune.__name__: misfortune
    for misfortune in (
        sigterm,
        sigkill,
        sighup,
        copier_killed,
        stopped,
        copier_stopped,
        disk_full,
        store_away,
        slow_start,
        clock,
        pause,
        unpause,
        stop,
        checkpoint,
        flip,
        knock,
    )
}


def processes_of(folder: Path) -> dict[psutil.Process, list[str]]:
    """Return the running processes whose command line contains `folder`, except this one, with their command lines."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if any(str(folder) in word for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = words
    return {process: words for process, words in found.items() if process.pid != os.getpid()}


def move_clock(offset_s: float) -> None:
    if "CLOCK" in os.environ:
        with Path(os.environ["CLOCK"]).open("r+b") as file:
            file.write(struct.pack("d", offset_s))
