"""Tests of progress bars: few lines in a log file, a bar in a terminal, rate after a resume."""

from __future__ import annotations

import io
import sys

import pytest

from kit.machine.progress import LINE_EVERY_S, ProgressLines, add_earlier, progress_bar, set_total


class Clock:
    """Fake clock: seconds, set by the test."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


def run(steps: int, total: int | None, seconds_per_step: float, by: int = 1) -> list[str]:
    """Return the lines of a bar that is updated `steps` times."""
    clock, file = Clock(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tqdm.std.time", clock)
        with ProgressLines(total, desc="training", unit="step", file=file) as bar:
            for _ in range(steps):
                clock.now += seconds_per_step
                bar.update(by)
    return file.getvalue().splitlines()


def test_at_most_one_line_per_percent() -> None:
    lines = run(5000, 5000, seconds_per_step=LINE_EVERY_S)
    assert len(lines) == 101
    assert lines[0].startswith("training:   0%|1/5000 [") and lines[-1].startswith("training: 100%|5000/5000 [")


def test_lines_are_seconds_apart_and_the_last_one_is_written() -> None:
    percent = [line[10:13] for line in run(1000, 1000, seconds_per_step=LINE_EVERY_S / 250)]
    assert percent == ["  0", " 25", " 50", " 75", "100"]
    assert len(run(10, 10, seconds_per_step=0.0)) == 2, "the first and the last line"


def test_an_unknown_total_and_no_progress() -> None:
    assert len(run(10, None, seconds_per_step=LINE_EVERY_S / 2)) == 6
    assert run(0, 10, seconds_per_step=1.0) == []
    assert len(run(10, 10, seconds_per_step=LINE_EVERY_S, by=0)) == 1, "the first update writes a line"


def test_a_pipe_gets_lines_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    with progress_bar(200, desc="training", unit="step", leave=False) as bar:
        assert isinstance(bar, ProgressLines)
        bar.set_description_str("training, success 50%", refresh=False)
        for _ in range(200):
            bar.update(1)
    err = capsys.readouterr().err
    assert err.count("\n") == 2 and "\r" not in err and "training, success 50%: 100%|200/200" in err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress_bar(2) as bar:
        assert not isinstance(bar, ProgressLines)


def test_earlier_steps_do_not_count_in_the_rate() -> None:
    """1,000 of 1,100 steps were done earlier; the rate is 100 steps in 10 s."""
    with progress_bar(1100, unit="step") as bar:
        add_earlier(bar, 1000)
        bar.update(100)
        shown = bar.format_dict | {"elapsed": 10.0, "rate": None, "bar_format": None, "unit_scale": False}
        assert "10.00step/s" in bar.format_meter(**shown)


def test_a_bar_without_a_total_gets_one_in_a_notebook_too() -> None:
    notebook = pytest.importorskip("tqdm.notebook", reason="could not import 'tqdm.notebook'")
    pytest.importorskip("ipywidgets")
    bar = notebook.tqdm(total=None, display=False)
    set_total(bar, 300)
    widget = bar.container.children[1]
    assert (bar.total, widget.max) == (300, 300), "else the widget would stay full"
