"""Interruptions of a training session: signals, the session time limit, EC2 spot notices."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

IMDS = "http://169.254.169.254"
"""Amazon's instance metadata service, version 2 (EC2 User Guide, "Spot Instance interruption notices")."""
IMDS_TIMEOUT_S = 1.0
IMDS_PERIOD_S = 5.0
CAUSES = {
    signal.SIGINT: "interrupted by Ctrl-C or its notebook (SIGINT)", signal.SIGTERM: "ended from outside (SIGTERM)",
}  # fmt: skip
"""Signal -> why the run stopped, for its status."""


@contextlib.contextmanager
def handlers(on_signal: Callable[[str], None], on_hangup: Callable[[], None]) -> Iterator[bool]:
    """Context manager with signal handlers: SIGTERM and SIGINT call `on_signal(cause)`, SIGHUP calls `on_hangup()`.

    A repeated signal calls its function again and does not kill the process. SIGHUP means that a terminal or an ssh
    connection was closed. Yields whether the handlers are installed: Python allows them in the main thread only.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            on_hangup()
        else:
            on_signal(CAUSES[signal.Signals(number)])

    installed = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if installed else ()
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield installed
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def on_ec2() -> bool:
    """Whether this machine is an EC2 instance, by its firmware or an environment variable, without network requests."""
    vendors = [path for path in Path("/sys/class/dmi/id").glob("*_vendor") if os.access(path, os.R_OK)]
    is_amazon = any("amazon ec2" in path.read_text().lower() for path in vendors)
    return is_amazon or "AWS_EC2_METADATA_SERVICE_ENDPOINT" in os.environ


def spot_notice() -> str | None:
    """Return the text of EC2's spot interruption notice; None if there is no notice or the service does not answer."""
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", IMDS).rstrip("/")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answer(method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(endpoint + path, headers=headers, method=method)
        with opener.open(request, timeout=IMDS_TIMEOUT_S) as response:
            return str(response.read(1000).decode(errors="replace"))

    try:
        token = answer("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        return answer("GET", "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except (OSError, http.client.HTTPException):
        return None


@contextlib.contextmanager
def spot_watch(on_notice: Callable[[str], None]) -> Iterator[None]:
    """Context manager: on EC2, a thread polls for a spot notice (every 5 s) and calls `on_notice(reason)` once."""
    over = threading.Event()

    def watch() -> None:
        while not (notice := spot_notice()):
            if over.wait(IMDS_PERIOD_S):
                return
        on_notice(f"EC2 spot notice: {notice}")

    if on_ec2():
        threading.Thread(target=watch, name="spot-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class SessionClock:
    """Session time limit: `is_over` is true early enough to save a checkpoint before `limit_s` seconds have passed."""

    def __init__(self, limit_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if limit_s is None else clock() + limit_s
        self._reserve_s = 0.0 if limit_s is None else min(60.0, 0.1 * limit_s)

    def is_over(self, longest_save_s: float = 0.0) -> bool:
        """Whether to stop now. `longest_save_s`: duration of the longest save so far; twice that time is reserved."""
        return self._end is not None and self._clock() >= self._end - max(self._reserve_s, 2 * longest_save_s)
