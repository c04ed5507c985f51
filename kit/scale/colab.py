"""Colab from a shell: train on a fresh Colab machine through Google's command line, `colab`, and release it afterwards.

`colab` needs Python 3.12 and its own environment: `pipx install google-colab-cli`. It signs in to Google by itself.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.scale.cloud import secret_values

GPUS = ("T4", "L4", "G4", "A100", "H100")
"""GPUs that `colab new` offers (google-colab-cli 0.7.5); which of them an account gets depends on its subscription."""
MOST_HOURS = 24.0
"""Hours of Colab's longest session."""
AROUND_S = 900.0
"""Seconds for the install before the first step and the uploads after the last one."""
SECRETS = "/content/.kit-secrets"
ENDED = "kit: the job ended with exit code"
SCRIPT = '''\
import os, pathlib, subprocess
secrets = pathlib.Path({secrets!r})
given = dict(line.split("=", 1) for line in secrets.read_text().splitlines()) if secrets.exists() else {{}}
secrets.unlink(missing_ok=True)
job = subprocess.Popen(["bash", "-ec", {script!r}], env={{**os.environ, **given}}, text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
for line in job.stdout:
    print(line, end="", flush=True)
print({ended!r}, job.wait(), flush=True)
'''
"""Script that the machine runs. `colab exec` does not return its exit code, so the script's last line prints it."""


def script(task: dict[str, Any]) -> str:
    """Return the Python script for the machine. `task`: the result of `kit.scale.cloud.task`."""
    return SCRIPT.format(secrets=SECRETS, script=task["setup"] + task["run"], ended=ENDED)


def commands(task: dict[str, Any], folder: str | Path, gpu: str | None, hours: float | None) -> list[list[str]]:
    """Return the arguments of four calls of `colab`: rent a machine, upload secrets, run the script, end the session.

    `folder` holds the files "secrets" and "job.py". Raises `UserError` for a GPU or a time that Colab lacks.
    """
    if gpu is not None and gpu not in GPUS:
        raise UserError(f"gpu={gpu!r} is not offered by Colab; choose {', '.join(GPUS)}, or leave it out for a CPU.")
    if hours is not None and not 0 < hours <= MOST_HOURS:
        raise UserError(f"hours={hours:g} must be above 0 and at most {MOST_HOURS:g}, Colab's longest session.")
    of_session = ["-s", f"kit-{task['name']}"]
    seconds = 3600 * (hours or MOST_HOURS) + AROUND_S
    return [
        ["new", *of_session, *(["--gpu", gpu] if gpu else [])],
        ["upload", *of_session, f"{folder}/secrets", SECRETS],
        ["exec", *of_session, "-f", f"{folder}/job.py", "--timeout", f"{seconds:.0f}"],
        ["stop", *of_session],
    ]


def launch(task: dict[str, Any], gpu: str | None, hours: float | None) -> int:
    """Run `task` on a new Colab machine and return its exit code.

    Shows its output. Unless the machine is refused, its session is ended whatever happens. The secrets travel as a
    file, because `colab` writes its arguments and the code it executes to a log. Raises `UserError` if `colab` or a
    secret is missing.
    """
    with tempfile.TemporaryDirectory(prefix="kit-colab-") as folder:
        arguments = commands(task, folder, gpu, hours)
        colab = shutil.which("colab")
        if colab is None:
            raise UserError("colab is not on the PATH; install Google's command line: pipx install google-colab-cli.")
        secrets = secret_values(task.get("secrets", ()))
        new, upload, execute, stop = ([colab, *words] for words in arguments)
        Path(folder, "secrets").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
        Path(folder, "job.py").write_text(script(task))
        refused = 0
        try:  # Ctrl-C while the machine is being rented ends its session too
            if refused := subprocess.run(new, check=False).returncode:
                return refused
            if secrets and (code := subprocess.run(upload, check=False).returncode):
                return code
            return _run(execute)
        finally:
            if not refused and subprocess.run(stop, check=False).returncode:
                print(f"the session may still run and cost compute units; end it: {' '.join(stop)}", flush=True)


def _run(command: Sequence[str]) -> int:
    """Run `command`, print its output as it comes, and return the exit code of the job; 1 if it did not end."""
    code = 1
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if ENDED in line:
                code = int(line.split()[-1])
            else:
                print(line, end="", flush=True)
    return code
