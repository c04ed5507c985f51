"""Fixtures of the store tests: stores, a run, a fake clock, Hub and S3 servers for the real clients."""

from __future__ import annotations

import os

from tests.stores import live  # before the assignments below: it reads the user's HF_HUB_DISABLE_XET

os.environ["HF_HUB_DISABLE_XET"] = "1"  # read when the client is imported; the fake Hub does not implement xet
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import contextlib
import logging
import secrets
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from kit.stores import Store, SyncHandle, open_store, start_sync
from tests.stores.fabricate import make_run
from tests.stores.hub_server import WRITE_TOKEN, HubServer

BUCKET = "robots"
LIVE = tuple(pytest.param(f"live-{kind}", marks=pytest.mark.live) for kind in live.SCRATCH)
SHARED = ("directory", "hub", "s3", *LIVE)
"""Kinds of store that several machines can write to; those in LIVE are the real services (`pytest -m live`)."""
KINDS = (*SHARED, "memory")


@pytest.fixture(autouse=True)
def quick_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `os.fsync` a no-op in this process, for speed; not in live tests.

    Child processes still call fsync; `test_copier_killed` makes it fail with strace.
    """
    if not request.node.get_closest_marker("live"):
        monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Callable[[str], str]]:
    """scratch(kind): URL of a temporary Hub repository, S3 prefix or Drive folder, deleted when the session ends."""
    with contextlib.ExitStack() as places:
        yield cache(lambda kind: places.enter_context(live.SCRATCH[kind]()))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A new `HubServer` per test; HF_ENDPOINT and a write token are set, also for child processes."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.utils import _http

    with HubServer() as server:
        for name, value in {
            "HF_ENDPOINT": server.endpoint,
            "HF_TOKEN": WRITE_TOKEN,
            "HF_HOME": str(tmp_path / "hf_home"),
            "KIT_HUB_INTERVAL_S": "0.5",
        }.items():
            monkeypatch.setenv(name, value)
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "no_tokens"))
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda s: None))  # no pauses before retries
        yield server
        _http.close_session()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server with one bucket."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    request = urllib.request.Request(f"http://{host}:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A fresh s3:// URL; credentials and address are in the environment, for child processes too."""
    pytest.importorskip("s3fs")
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid))}"


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store: a directory, or the kind of a parametrisation over KINDS with `indirect=True`."""
    kind = getattr(request, "param", "directory")
    if kind.startswith("live-"):
        if kind == "live-hub":
            _as_users_have_it(request.getfixturevalue("monkeypatch"))
        return f"{request.getfixturevalue('scratch')(kind.removeprefix('live-'))}/{secrets.token_hex(4)}"
    if kind == "hub":
        request.getfixturevalue("hub")
        return "hf://me/runs"
    if kind == "s3":
        return str(request.getfixturevalue("s3"))
    if kind == "memory":
        pytest.importorskip("fsspec")
        return f"memory://{tmp_path.name}/{abs(hash(request.node.nodeid))}"
    return str(tmp_path / "store")


def _as_users_have_it(patch: pytest.MonkeyPatch) -> None:
    """Enable xet unless the user set HF_HUB_DISABLE_XET; 3 s between commits instead of the default 90 s."""
    patch.setenv("KIT_HUB_INTERVAL_S", "3")
    if live.XET is None:
        patch.delenv("HF_HUB_DISABLE_XET")
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)


@pytest.fixture
def store(store_url: str) -> Store:
    return open_store(store_url, write=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints at 100 and 200 steps."""
    return make_run(tmp_path / "runs")


@pytest.fixture
def started() -> Iterator[Callable[..., SyncHandle]]:
    """Like `start_sync`; at teardown every handle is stopped and its copier process is killed."""
    handles: list[SyncHandle] = []

    def start(*args: Any) -> SyncHandle:
        handles.append(start_sync(*args))
        return handles[-1]

    yield start
    for handle in handles:
        while not handle.is_done():  # after `stop`, a killed copier is restarted at most `LAST_TRIES` times
            handle.stop(0.0)
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if str(handle.run_dir) in child.cmdline():
                        child.kill()
            handle.stop(0.1)


@pytest.fixture
def waiter() -> Callable[..., None]:
    """wait(condition, seconds, why): check the condition every 0.02 s until it is true; fail after `seconds`."""

    def wait(condition: Callable[[], object], seconds: float = 120.0, why: str = "") -> None:
        pause = threading.Event()
        for _ in range(int(seconds / 0.02)):
            if condition():
                return
            pause.wait(0.02)
        pytest.fail(f"not within {seconds} s: {why or condition}")

    return wait


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()
