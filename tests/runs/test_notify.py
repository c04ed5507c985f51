"""Tests of KIT_NOTIFY: a message when a run ends, an unknown URL, an unreachable service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import kit

pytest.importorskip("apprise")


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Messages that a local HTTP server has received; KIT_NOTIFY is its URL."""
    messages: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("KIT_NOTIFY", f"json://127.0.0.1:{server.server_port}/hook")
    yield messages
    server.shutdown()


def run(tmp_path: Path, name: str, **fields: Any) -> kit.Run:
    return kit.train(
        env="Reach", total_steps=32, n_envs=2, threads=1, device="cpu", eval_every=0, overrides={"n_steps": 16},
        run_name=name, runs_dir=str(tmp_path), **fields,
    )  # fmt: skip


def test_a_message_says_how_a_run_ended(tmp_path: Path, received: list[dict[str, Any]]) -> None:
    run(tmp_path, "arm")
    (message,) = received
    assert message["title"] == "arm: finished"
    assert message["message"].startswith("done: 32 steps")


def test_an_unknown_url_is_refused_before_a_run_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_NOTIFY", "pigeon://secret@roof")
    with pytest.raises(kit.UserError, match=r"KIT_NOTIFY .* not understand \(pigeon://…\)") as refused:
        run(tmp_path, "arm")
    assert "secret" not in str(refused.value) and not list(tmp_path.iterdir())


def test_a_message_that_cannot_be_sent_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KIT_NOTIFY", "json://127.0.0.1:9/nobody")
    assert run(tmp_path, "arm").status()["state"] == "finished"
    assert "could not be sent" in capsys.readouterr().out
