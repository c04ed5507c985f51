"""The training process: `python -m kit.runs.worker RUN_DIR`. It outlives the notebook kernel that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kit.errors import UserError
from kit.runs.run import Run


def start(run: Run) -> int:
    """Start a worker for `run`, its output in worker.log, and return at once with its process id.

    It gets its own session, so that neither an interrupt nor the end of the calling process reaches it.
    """
    from kit import envs
    from kit.machine import settings

    environment = settings.worker_environment(int(run.config.threads)) | envs.carry(run.config.env)
    with run.log_path.open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-u", "-m", "kit.runs.worker", str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    _reap_later(worker)
    return worker.pid


def _reap_later(worker: subprocess.Popen[bytes]) -> None:
    """Collect the exit code when it comes, so that no zombie is left in a long-lived kernel."""
    import threading

    threading.Thread(target=worker.wait, name=f"worker-{worker.pid}", daemon=True).start()


def main(arguments: list[str]) -> int:
    from kit.runs.session import Session

    try:
        return Session(Path(arguments[0]))()
    except UserError as error:
        print(f"kit: {error}", flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
