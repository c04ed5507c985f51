"""Helpers for tests of notebooks in JupyterLab and Chromium: `Lab` is the server, `Notebook` an open notebook."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
QUIET = [
    "--no-browser", "--allow-root", "--ServerApp.port_retries=0", "--LabApp.news_url=",
    "--LabApp.extension_manager=readonly", "--LabApp.expose_app_in_browser=True",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
]  # fmt: skip


class Lab:
    """A JupyterLab server with `folder` as its root."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.token, self.port = folder, secrets.token_hex(8), _free_port()
        command = [sys.executable, "-m", "jupyter", "lab", *QUIET, f"--port={self.port}"]
        self._log = (folder.parent / "jupyter.log").open("ab")
        self._process = subprocess.Popen(
            [*command, f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={folder}"],
            cwd=folder, env=environment, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._wait()

    def url(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self.port}/lab/tree/{notebook}?token={self.token}&reset"

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def _wait(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self._process.poll() is None, (self.folder.parent / "jupyter.log").read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api?token={self.token}", timeout=5).close()
                return
            time.sleep(0.1)
        raise TimeoutError("JupyterLab did not answer within 60 s")


class Notebook:
    """One notebook open in the browser."""

    def __init__(self, page: Any, lab: Lab, name: str) -> None:
        self.page, self.lab, self.name = page, lab, name

    def open(self) -> Notebook:
        self.page.goto(self.lab.url(self.name))
        self.idle()
        return self

    def idle(self, timeout_s: float = 200) -> None:
        """Wait until the kernel is idle."""
        self.page.locator("#jp-main-statusbar").get_by_text("Idle").wait_for(timeout=1000 * timeout_s)

    def command(self, name: str) -> None:
        """Run one of JupyterLab's commands, as its menus do."""
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name) }", name)

    def run_all(self) -> None:
        self.command("runmenu:run-all")

    def see(self, selector: str, text: str | None = None, timeout_s: float = 120, state: Any = "visible") -> Any:
        """Wait until an element that matches is in the page, by default visible; return it."""
        found = self.page.locator(selector)
        found = found.filter(has_text=text) if text else found
        found.first.wait_for(timeout=1000 * timeout_s, state=state)
        return found.first


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
