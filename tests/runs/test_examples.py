"""Tests of the example runs that come with the package."""

from __future__ import annotations

import pytest

import kit
from kit.errors import UserError


def test_an_example_is_copied_once_and_is_a_run_like_any_other(tmp_path):
    run = kit.example("go1", tmp_path / "runs")
    assert run.path == tmp_path / "runs" / "go1" and run.best() is not None and len(run.steps()) >= 3
    assert [each.name for each in kit.runs(tmp_path / "runs")] == ["go1"]
    run.write_note("mine")
    assert kit.example("go1", tmp_path / "runs").note == "mine", "the copy is kept"


def test_an_unknown_example_is_refused(tmp_path):
    with pytest.raises(UserError, match="example='go2' is unknown; did you mean go1"):
        kit.example("go2", tmp_path)
    assert not list(tmp_path.iterdir())
