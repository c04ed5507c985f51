"""Test of leases with two machines, simulated by network namespaces: one loses its link to the store for a time."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import kit
from kit.runs.fingerprint import fingerprint
from tests.runs.crash import SMALL
from tests.scale.shared import ROOT
from tests.stores.conftest import BUCKET, waiter  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.storm, pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"),
]  # fmt: skip


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Machine:
    """A simulated machine: a network namespace and a working directory."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name, self.link, self.folder = f"kit{number}", f"kit{number}link", folder
        self.hub = f"10.77.{number}.1"
        """Address of the store's server in this machine's network."""
        folder.mkdir()
        ip("netns", "add", self.name)
        ip("link", "add", self.link, "type", "veth", "peer", "name", "up0", "netns", self.name)
        ip("addr", "add", f"{self.hub}/24", "dev", self.link)
        ip("link", "set", self.link, "up")
        ip("-n", self.name, "addr", "add", f"10.77.{number}.2/24", "dev", "up0")
        ip("-n", self.name, "link", "set", "up0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def kit(self, *words: str, port: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://{self.hub}:{port}", "KIT_LEASE_S": "6"}
        environment["PYTHONPATH"] = ROOT
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "kit", *words]
        return subprocess.Popen(command, cwd=self.folder, env=environment)

    def cut(self) -> None:
        ip("link", "set", self.link, "down")

    def mend(self) -> None:
        ip("link", "set", self.link, "up")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    made: list[Machine] = []
    try:
        for number in (1, 2):
            made.append(Machine(number, tmp_path / f"machine{number}"))
        yield made
    finally:
        for machine in made:
            pids = subprocess.run(["ip", "netns", "pids", machine.name], capture_output=True, check=False).stdout
            subprocess.run(["kill", "-9", *pids.decode().split()], stderr=subprocess.DEVNULL, check=False)
            ip("netns", "del", machine.name)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of an S3 server that all machines can reach."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = moto.ThreadedMotoServer("0.0.0.0", port=0, verbose=False)
    server.start()
    found = server.get_host_and_port()[1]
    request = urllib.request.Request(f"http://127.0.0.1:{found}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    yield found
    server.stop()


def test_machine_without_lease_cannot_overwrite_its_successor(
    machines: list[Machine],
    port: int,
    waiter: Callable[..., None],  # noqa: F811
) -> None:
    import s3fs

    first, second = machines
    job: dict[str, Any] = {
        "env": "Reach", "n_envs": 2, "threads": 1, "eval_every": 0, "checkpoint_every": 320, "total_steps": 12800,
        "overrides": SMALL["PPO"], "device": "cpu", "run_name": "run", "store": f"s3://{BUCKET}/runs",
    }  # fmt: skip
    for machine in machines:
        (machine.folder / "job.yaml").write_text(yaml.safe_dump(job))
    there = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{port}", use_listings_cache=False)

    def kept() -> dict[str, str]:
        found = there.find(f"{BUCKET}/runs", detail=True)
        return {path: f"{about['ETag']} {about['LastModified']}" for path, about in found.items() if "ETag" in about}

    trains = first.kit("train", "job.yaml", port=port)
    waiter(lambda: any(path.endswith("latest.json") for path in kept()), 60)
    first.cut()
    assert second.kit("batch", "job.yaml", port=port).wait(timeout=200) == 0
    successor = kit.Run(second.folder / "runs/run")
    assert "resumed from step" in successor.log() and successor.status()["state"] == "finished"
    before = kept()

    cut_off = kit.Run(first.folder / "runs/run")
    waiter(lambda: cut_off.status()["state"] == "finished", 60)
    first.mend()
    waiter(lambda: "belongs to" in str(json.loads((cut_off.path / ".sync.json").read_text())["error"]), 300)
    trains.terminate()  # it still waits for the store
    trains.wait()
    assert kept() == before
    assert fingerprint(cut_off) == fingerprint(successor)
