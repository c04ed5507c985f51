"""Tests of interruptions: signals during a save, EC2 spot notices, the session time limit."""

import http.server
import re
import shutil
import signal
import threading

import pytest

from kit.format import checkpoint
from kit.runs import session
from kit.runs.interruption import SessionClock, spot_notice
from kit.runs.session import Session
from kit.runs.status import INTERRUPTED
from tests.runs.crash import SLIDE, Forked, create


@pytest.mark.parametrize("moment", range(4))
def test_two_signals_in_the_middle_of_a_save(tmp_path, moment):
    """Checkpoints are written one after another without a gap, so that the signals arrive during a save."""
    big = {"policy_kwargs": {"net_arch": [256, 256]}}
    run = create(tmp_path, "run", total_steps=10**9, checkpoint_every=1, overrides=big)
    session = Forked(run)
    assert session.until(lambda: len(run.checkpoints()) > 0 and run.status()["step"] > 100 * moment), run.log()
    session.kill(signal.SIGTERM)
    session.until(lambda: run.status()["state"] == "stopping")
    session.kill(signal.SIGTERM)
    assert session.wait() == 75, run.log()
    assert run.latest().step == run.checkpoints()[-1].step == run.status()["step"]


def test_a_signal_as_soon_as_a_session_listens_leaves_the_run_resumable(tmp_path, monkeypatch):
    run = create(tmp_path, "run")
    monkeypatch.setattr(checkpoint, "sweep", lambda path: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        Session(run.path)()
    assert ended.value.code == 75
    assert run.status()["message"] == "ended from outside (SIGTERM) while starting"


class Imds(http.server.BaseHTTPRequestHandler):
    """Stub of EC2's instance metadata service, version 2, with spot notices only."""

    notice: str | None = None
    asked = 0

    def do_PUT(self):
        assert self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._answer(200, "a-token")

    def do_GET(self):
        assert self.path == "/latest/meta-data/spot/instance-action"
        type(self).asked += 1
        if self.headers["X-aws-ec2-metadata-token"] != "a-token":
            self._answer(401, "")
        elif self.notice is None:
            self._answer(404, "")
        else:
            self._answer(200, self.notice)

    def _answer(self, code, text):
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def imds(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Imds)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    Imds.notice, Imds.asked = None, 0
    yield Imds
    server.shutdown()


def test_a_spot_notice_ends_the_session(tmp_path, imds):
    run = create(tmp_path, "run", total_steps=10**9, checkpoint_every=10**9)
    session = Forked(run)
    assert session.until(lambda: imds.asked > 0 and run.status()["step"] > 0), run.log()
    imds.notice = '{"action": "terminate", "time": "2026-01-01T00:00:00Z"}'
    assert session.wait() == 75, run.log()
    assert "EC2 spot notice" in run.status()["message"] and run.latest().step > 0


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://127.0.0.1:9/"])
def test_no_notice_without_a_metadata_service(monkeypatch, endpoint):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
    assert spot_notice() is None


def test_a_metadata_service_that_never_answers_does_not_stall_training(tmp_path, monkeypatch):
    """The service accepts the connection and sends nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        run = create(tmp_path, "run", total_steps=640)
        assert Forked(run).wait() == 0, run.log()


def test_session_clock_leaves_room_to_save():
    now = [0.0]
    clock = SessionClock(3600.0, clock=lambda: now[0])
    now[0] = 3539.0
    assert not clock.is_over()
    assert clock.is_over(longest_save_s=40.0)  # 2 × 40 s are reserved
    now[0] = 3540.0
    assert clock.is_over()  # at least 60 s of an hour are reserved
    assert not SessionClock(None).is_over()


def test_a_store_that_vanished_is_named_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "INTERRUPTED_DRAIN_S", 1.0)
    (tmp_path / "store").mkdir()
    fields = {"total_steps": 10**7, "eval_every": 0, "session_limit": "3s", "store": str(tmp_path / "store")}
    run = create(tmp_path / "runs", "run", env=SLIDE, **fields)
    threading.Timer(1.0, shutil.rmtree, (tmp_path / "store",)).start()
    assert session.Session(run.path)() == INTERRUPTED
    assert re.search(r"which is on this machine only: .*/store has (nothing|step \d+) so far", run.status()["message"])
