"""Tests of temporary files: files of killed writers are removed, files of live writers are kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.format import checkpoint, leftovers
from kit.format.files import write_atomic
from kit.runs import api, directory
from kit.runs.run import Run
from kit.stores import open_store, pull
from kit.stores.copier import Copier
from tests.runs.crash import create
from tests.stores.fabricate import make_run

STATE: dict[str, dict[str, Any]] = {"policy": {"weight": torch.zeros(500)}}
DAY_S = 24 * 3600.0


@dataclass
class Case:
    """A writer, `work`, that is stopped in the middle, and the next owner of its files, `owner`, that cleans up.

    `work` gets a signal at the first audit event `moment` whose first path is temporary and whose last path contains
    `to`.
    """

    work: Callable[[Path], object]
    owner: Callable[[Path], object]
    to: str = ""
    moment: str = "os.rename"


def resumed(home: Path) -> None:
    with directory.lock(home / "runs/run"):
        checkpoint.sweep(home / "runs/run")


def another(home: Path) -> None:
    create(home / "runs", f"another-{len(list((home / 'runs').iterdir()))}")


def copied(home: Path) -> None:
    Copier(home / "there/reach-1", open_store(str(home / "store"), write=True), "me").run_pass(final=True)


CASES = {
    "checkpoint": Case(lambda home: checkpoint.write(home / "runs/run/checkpoints", 200, STATE), resumed),
    "best": Case(lambda home: checkpoint.write(home / "runs/run/best", 200, STATE), resumed),
    "the same step again": Case(lambda home: checkpoint.write(home / "runs/run/best", 100, STATE), resumed),
    "replay": Case(lambda home: checkpoint.write_shared(home / "runs/run", "replay/0.safetensors", b"rows"), resumed),
    "text": Case(lambda home: write_atomic(home / "runs/run/status.json", "{}"), resumed),
    "export": Case(lambda home: kit.export(home / "runs/run", "safetensors", 0), resumed, to=".safetensors"),
    "new run": Case(another, another, to="another"),
    "remove": Case(lambda home: api.remove(Run(home / "runs/run"), sure=True), another, moment="shutil.rmtree"),
    "pull": Case(lambda home: pull(open_store(str(home / "store")), "reach-1", home / "runs"), another, to="reach-1"),
    "copy": Case(copied, copied, to="policy.safetensors"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run with a checkpoint and a best policy, and a store with an incomplete copy of another run."""
    run = create(tmp_path / "runs", "run")
    for kind in ("checkpoints", "best"):
        checkpoint.write(run.path / kind, 100, STATE)
    other = make_run(tmp_path / "there", steps=(100,))
    Copier(other, open_store(str(tmp_path / "store"), write=True), "me").run_pass()
    checkpoint.write(other / "checkpoints", 200, STATE)
    return tmp_path


@contextlib.contextmanager
def cut(case: Case, home: Path, number: signal.Signals) -> Iterator[int]:
    """Fork a process that runs `case.work` and gets the signal `number` at `case.moment`; yield its process id."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == case.moment:
                paths = [str(arg) for arg in args if isinstance(arg, str | Path)]
                if ".kit-" in paths[0].rpartition("/runs/")[2] and case.to in paths[-1]:
                    os.kill(os.getpid(), number)

        sys.addaudithook(hook)
        try:
            case.work(home)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def temporary(home: Path) -> set[Path]:
    return set(home.rglob(".kit-*"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_temporary_files_of_a_killed_process_are_removed_by_the_next_owner(case: Case, home: Path) -> None:
    with cut(case, home, signal.SIGKILL) as child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert temporary(home)
    case.owner(home)
    assert not temporary(home)
    if case.owner is resumed:
        for kind in ("checkpoints", "best"):
            (kept,) = checkpoint.committed(home / "runs/run" / kind)
            kept.verify()


# Without "the same step again": the run's lock allows only one writer.
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"the same step again"}))
def test_temporary_files_of_a_live_process_are_kept(name: str, home: Path) -> None:
    case = CASES[name]
    with cut(case, home, signal.SIGSTOP) as child:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        made = temporary(home)
        case.owner(home)
        assert made and temporary(home) == made
        os.kill(child, signal.SIGCONT)
        while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
            os.kill(child, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(status) == 0
    assert not temporary(home)


def test_temporary_files_from_before_exec_are_removed_after_it(tmp_path: Path) -> None:
    sweep = "import sys, pathlib; from kit.format import leftovers; leftovers.sweep(pathlib.Path(sys.argv[1]))"
    start = (
        "import os, sys, pathlib; from kit.format import leftovers\n"
        "context = leftovers.temporary(pathlib.Path(sys.argv[1])); context.__enter__()\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[2], sys.argv[1]])"
    )
    for then, count in (("pass", 1), (sweep, 0)):
        (tmp_path / then[:4]).mkdir()
        subprocess.run([sys.executable, "-c", start, str(tmp_path / then[:4]), then], check=True)
        assert len(temporary(tmp_path / then[:4])) == count


def test_temporary_files_of_another_machine_are_kept_until_unchanged_for_a_day(home: Path) -> None:
    """Except in folders that only training writes: the caller holds the run's lock, so their writer is dead."""
    run = home / "runs/run"
    theirs = [run / place / ".kit-ffffffff-0123456789ab" for place in ("checkpoints", "replay", "videos", ".")]
    for path in theirs:
        path.mkdir(parents=True)
        (path / "half").write_bytes(b"half")
    resumed(home)
    assert temporary(home) == set(theirs[2:])
    now = (theirs[2] / "half").stat().st_mtime
    for path in theirs[2:]:
        os.utime(path, (0, now - 2 * DAY_S))
    os.utime(theirs[2] / "half", (0, now - 2 * DAY_S))
    resumed(home)
    assert temporary(home) == {theirs[3]}, "the file in this folder is new"


def test_temporary_files_at_the_top_of_a_store_are_removed_after_a_day(home: Path) -> None:
    probe = home / "store/.kit-ffffffff-0123456789ab"
    probe.touch()
    open_store(str(home / "store"), write=True)
    assert probe.exists()
    os.utime(probe, (0, probe.stat().st_mtime - 2 * DAY_S))
    open_store(str(home / "store"), write=True)
    assert not probe.exists()


def test_files_with_other_names_are_kept(tmp_path: Path) -> None:
    for name in (".kit-notes", ".kit-0123abcd", ".kit-old-thing", ".building-x"):
        (tmp_path / name).touch()
    leftovers.sweep(tmp_path, sole_writer=True)
    assert len(list(tmp_path.iterdir())) == 4
