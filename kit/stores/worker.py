"""The copier in a process of its own, and the watch over it. It is the only one that talks to the store.

Lines of JSON over two pipes: "pass" or "final" in; out {"watch": what, "size": bytes} before every request to the
store, then {"result": …} or {"error": …}.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kit.stores.base import StoreError
from kit.stores.redact import one_line

PATIENCE_S = 180.0
"""How long one request to a store may take, beside the time for its bytes. KIT_STORE_PATIENCE_S changes it."""
STARTING_S = 60.0
SLOWEST = 100_000
"""Bytes per second; slower than that counts as hanging."""


class Lost(StoreError):
    """The run has become another machine's."""


class Worker:
    """Starts the copying process when it is needed, kills it when it hangs. `on_wait` is called each second of waiting.
    `prefix` goes before the command."""

    interval_s = 0.0

    def __init__(
        self,
        run_dir: Path,
        url: str,
        owner: str,
        patience_s: float | None = None,
        prefix: Sequence[str] = (),
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._command = [*prefix, sys.executable, "-m", "kit.stores.worker", str(run_dir), url, owner]
        self._patience_s = patience_s or float(os.environ.get("KIT_STORE_PATIENCE_S", PATIENCE_S))
        self.on_wait = on_wait
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[bytes] = queue.Queue()

    def run_pass(self, final: bool) -> dict[str, Any]:
        """One pass of `kit.stores.copier`. Raises `StoreError` if it fails or hangs, `Lost` if the run is another's."""
        return self._ask("final" if final else "pass")

    def close(self, release: bool) -> None:
        """End the process, after letting go of the run if `release`."""
        try:
            if release and self._process:
                self._ask("close")
        finally:
            self._kill()

    def _ask(self, request: str) -> dict[str, Any]:
        process = self._running()
        assert process.stdin
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
        except OSError:
            self._kill()
            raise StoreError("the copying process ended") from None
        doing, limit_s = "starting", max(self._patience_s, STARTING_S)
        while True:
            line = self._next_line(limit_s)
            if not line:
                self._kill()
                how = "died" if line is not None else f"got no answer from the store for {limit_s:.0f} s"
                raise StoreError(f"the copying process {how} while {doing}")
            answer = json.loads(line)
            if "watch" in answer:
                doing, limit_s = answer["watch"], self._patience_s + answer["size"] / SLOWEST
            elif "error" in answer:
                kind = Lost if answer["lost"] else StoreError
                raise kind(answer["error"], retry_after_s=float(answer["retry_after_s"]))
            else:
                self.interval_s = float(answer["interval_s"])
                return dict(answer["result"])

    def _next_line(self, limit_s: float) -> bytes | None:
        """What the process says next: b"" if it ended, None if it said nothing in `limit_s` seconds."""
        end = time.monotonic() + limit_s
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=min(1.0, left))
            self.on_wait()
        return None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._stuck is not None and self._stuck.poll() is None:
            raise StoreError("the store still does not answer; the system cannot even end the request")
        self._stuck = None
        if self._process is None or self._process.poll() is not None:
            environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            self._lines = queue.Queue()
            threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True).start()
        return self._process

    def _kill(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, 9)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # stuck in the kernel, on a dead mount: it dies when the mount answers
            self._stuck = self._process
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        self._process = None


def _pump(pipe: Any, lines: queue.Queue[bytes]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in pipe:
            lines.put(line)
    lines.put(b"")


# -- the process -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] = ()) -> None:
    """python -m kit.stores.worker RUN_DIR URL OWNER, driven over standard input."""
    run_dir, url, owner = arguments or sys.argv[1:4]
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no answer
    say: Callable[[dict[str, Any]], Any] = lambda value: out.write(json.dumps(value).encode() + b"\n")  # noqa: E731
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    copier: Any = None
    while request := requests.get():
        try:
            if copier is None:
                copier = _open(Path(run_dir), url, owner, say)
            result = copier.close() if request == b"close\n" else copier.run_pass(final=request == b"final\n")
            say({"result": result or {}, "interval_s": copier.store.min_interval_s})
        except Exception as error:
            from kit.stores.lease import LeaseHeld

            say(
                {
                    "error": one_line(error),
                    "lost": isinstance(error, LeaseHeld),
                    "retry_after_s": getattr(error, "retry_after_s", 0.0),
                }
            )


def _open(run_dir: Path, url: str, owner: str, say: Callable[[dict[str, Any]], Any]) -> Any:
    from kit.stores.base import open_store
    from kit.stores.copier import Copier

    say({"watch": "opening the store", "size": 0})
    store = open_store(url, write=True)
    return Copier(run_dir, store, owner, watch=lambda what, size: say({"watch": what, "size": size}))


def _listen(requests: queue.Queue[bytes]) -> None:
    """Standard input into a queue; its end means that the watching process is gone, and then so is this one."""
    for line in iter(sys.stdin.buffer.readline, b""):
        requests.put(line)
    os._exit(0)  # safe at any instant: the pointer moves last


if __name__ == "__main__":
    main()
