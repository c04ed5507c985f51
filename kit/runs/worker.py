"""The background training process, `python -m kit.runs.worker RUN_DIR LOCK_FD`. It outlives the notebook kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from kit.errors import UserError
from kit.runs import control, directory
from kit.runs.run import Run
from kit.runs.status import Status


def start(run: Run) -> None:
    """Start a training process for `run` and return at once. Its output goes to worker.log.

    The process runs in its own Unix session (setsid): Ctrl-C or the end of the caller does not stop it. It inherits the
    run's lock, so that the run counts as working at once, while the process still imports its modules.
    """
    from kit import envs
    from kit.machine import settings

    environment = settings.worker_environment(int(run.config.threads)) | envs.child_environ(run.config)
    try:
        with directory.lock(run.path) as lock, run.log_path.open("ab") as log:
            # discard commands sent to an earlier process of this run; commands sent from now on are obeyed
            control.take(run.path)
            Status.create(run.path, run.config.total_steps)
            worker = subprocess.Popen(
                [sys.executable, "-u", "-m", "kit.runs.worker", str(run.path), str(lock.fileno())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()],
                start_new_session=True, env=environment,
            )  # fmt: skip
    except OSError as error:
        raise directory.refused(run.path, error) from None
    # collects the exit code, so that no zombie process is left in a long-lived kernel
    threading.Thread(target=worker.wait, name=f"worker-{worker.pid}", daemon=True).start()


def main(arguments: list[str]) -> int:
    """Train; `arguments`: run directory, file descriptor of its lock. Return the exit code, 2 for a `UserError`."""
    from kit.runs.session import Session

    try:
        os.set_inheritable(int(arguments[1]), False)
        return Session(Path(arguments[0]), lock=int(arguments[1]))()
    except UserError as error:
        print(f"kit: {error}", flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
