"""Tests of headless mode: detection of a user, progress lines, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.runs import control
from kit.runs.run import Run
from kit.ui import headless
from tests.ui.fabricate import make_run, set_status


@pytest.mark.parametrize(("asks", "nobody"), [(True, False), (False, True)])
def test_a_notebook_has_a_user_if_it_allows_input(asks: bool, nobody: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIT_HEADLESS", raising=False)
    shell = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=asks))
    monkeypatch.setattr(headless, "shell_of_notebook", lambda: shell)
    assert headless.nobody_there() is nobody


def test_a_script_has_no_user_and_kit_headless_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIT_HEADLESS", raising=False)
    assert headless.nobody_there()
    monkeypatch.setenv("KIT_HEADLESS", "0")
    assert not headless.nobody_there()
    monkeypatch.setenv("KIT_HEADLESS", "1")
    assert headless.nobody_there()


def test_follow_prints_each_tenth_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, steps_per_s=50.0)

    def wait(self: Run, on_progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        now = self.status()
        for step in (0, 50, 99, 100, 150, 600):
            on_progress({**now, "step": step})
        return now

    monkeypatch.setattr(Run, "wait", wait)
    headless.follow(run)
    told = capsys.readouterr().out.splitlines()
    assert [line.split(" steps")[0].split()[-1] for line in told] == ["50", "100", "600"]
    assert told[-1] == " 60 %           600 steps   success  97 %        50 steps/s"


def test_follow_raises_if_the_run_fails(tmp_path: Path) -> None:
    run = make_run(tmp_path, state="failed", message="OSError: the disk is full")
    run.log_path.write_text("Traceback\nOSError: the disk is full\n")
    with pytest.raises(headless.RunFailed, match="the disk is full") as raised:
        headless.follow(run)
    assert "Traceback" in str(raised.value)


def test_an_interrupt_stops_the_run_and_stays_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)

    def wait(self: Run, timeout: float | None = None, **_: Any) -> None:
        raise KeyboardInterrupt if timeout is None else TimeoutError

    monkeypatch.setattr(Run, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        headless.follow(run)
    assert control.take(run.path) == ["stop"]


def test_follow_prints_how_to_resume_an_interrupted_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, state="interrupted", message="stopped; resume goes on from step 600")
    headless.follow(run)
    assert "resume goes on from step 600" in capsys.readouterr().out


def test_a_line_never_passes_100_percent(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    set_status(run.path, step=1024, success_rate=None)
    line = headless.line(run.status())
    assert line.startswith("100 %")
    assert "return     4.25" in line


def test_a_user_error_in_a_notebook_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell.run_cell("import kit\nkit.train(env='Raech')")
    said = capsys.readouterr().out.strip()
    lines = said.split("\n")
    assert said.startswith("UserError: env='Raech' is unknown") and "Traceback" not in said
    assert max(map(len, lines)) <= 100 and "reach:ROBOT; did you mean Reach or" in " ".join(lines), "no word is broken"
