"""Tests of notebook hosts with fakes of Colab's and RunPod's documented APIs: Drive, secrets, end of the session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.errors import UserError
from kit.machine import host

SECRETS = {"HF_TOKEN": "hf_secret", "AWS_ACCESS_KEY_ID": "key"}


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Fake `google.colab`; yields the list of its calls."""
    asked: list[Any] = []

    def secret(name: str) -> str:
        asked.append(name)
        if name not in SECRETS:
            raise KeyError(name)
        return SECRETS[name]

    given = {"drive": {"mount": asked.append}, "userdata": {"get": secret}}
    given["runtime"] = {"unassign": lambda: asked.append("unassigned")}
    for name, functions in {
        "google": {},
        "google.colab": {},
        **{f"google.colab.{k}": v for k, v in given.items()},
    }.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "before")  # so that monkeypatch undoes what the test sets
        monkeypatch.delenv(name)
    yield asked


def test_connect_mounts_drive_and_loads_secrets_on_colab(colab: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    host.connect("drive:kit")
    assert colab == ["/content/drive"]
    host.connect("hf://me/runs")
    assert os.environ["HF_TOKEN"] == "hf_secret" and capsys.readouterr().out == ""
    host.connect("hf://me/runs")
    assert colab == ["/content/drive", "HF_TOKEN"], "a variable that is set is not requested again"
    host.connect("s3://bucket/runs")
    assert os.environ["AWS_ACCESS_KEY_ID"] == "key"
    said = capsys.readouterr().out
    assert "AWS_SECRET_ACCESS_KEY is not among this notebook's secrets" in said and "secret:" not in said
    del colab[:]
    host.connect(None)
    host.connect("/mnt/disk")
    assert colab == []


def test_session_ender_on_colab_on_runpod_and_elsewhere(
    colab: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.session_ender()()
    assert colab == ["unassigned"]
    monkeypatch.delitem(sys.modules, "google.colab")
    with pytest.raises(UserError, match="works on Colab and in RunPod's pods"):
        host.session_ender()
    command = tmp_path / "runpodctl"
    command.write_text(f"#!/bin/sh\necho $@ > {tmp_path}/said\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("RUNPOD_POD_ID", "pod1")
    host.session_ender()()
    assert (tmp_path / "said").read_text() == "stop pod pod1\n"


def test_connect_does_nothing_outside_of_colab() -> None:
    host.connect("drive:kit")
    assert not Path("/content/drive").exists()


def test_the_notebook_is_known_in_jupyter_and_in_vs_code(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("Shell", (), {"user_ns": {}})()
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert host.notebook() is None
    shell.user_ns["__vsc_ipynb_file__"] = "/home/me/code.ipynb"
    assert host.notebook() == "/home/me/code.ipynb"
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/lab.ipynb")
    assert host.notebook() == "/home/me/lab.ipynb"
