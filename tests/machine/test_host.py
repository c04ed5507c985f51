"""What Colab and RunPod can give, asked of stand-ins that behave as their documentation says."""

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
    """A `google.colab` that notes what it is asked."""
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
        monkeypatch.setenv(name, "before")  # so that what is set meanwhile is undone
        monkeypatch.delenv(name)
    yield asked


def test_colab_gives_what_a_store_needs(colab: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    host.connect("drive:kit")
    assert colab == ["/content/drive"]
    host.connect("hf://me/runs")
    assert os.environ["HF_TOKEN"] == "hf_secret" and capsys.readouterr().out == ""
    host.connect("hf://me/runs")
    assert colab == ["/content/drive", "HF_TOKEN"], "what is there is not asked for"
    host.connect("s3://bucket/runs")
    assert os.environ["AWS_ACCESS_KEY_ID"] == "key"
    said = capsys.readouterr().out
    assert "AWS_SECRET_ACCESS_KEY is not among this notebook's secrets" in said and "secret:" not in said
    del colab[:]
    host.connect(None)
    host.connect("/mnt/disk")
    assert colab == []


def test_a_session_is_ended_where_there_is_a_way(
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


def test_elsewhere_nothing_is_asked() -> None:
    host.connect("drive:kit")
