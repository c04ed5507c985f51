"""How long until something happens: from a command's exec to the first env step, the first finished update, and the
first evaluation of at least 95 % success. By hand:

    python tests/bench/start.py              # five starts, some two minutes

Every start is a process of its own. `kit train` is timed from outside, by lines that the process prints; once while
`auto` knows nothing of this machine and has to probe it, and then with its answer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

STARTS = 5
TRAIN = """
import sys
from kit.runs.session import Session
said = set()
def also(name, what, when=lambda session: True):
    method = getattr(Session, name)
    def wrapped(self, *args):
        answer = method(self, *args)
        if what not in said and when(self):
            said.add(what)
            print(what, flush=True)
        return answer
    setattr(Session, name, wrapped)
also("_should_stop", "first env step")
also("_boundary_work", "first update finished", lambda session: session.trainer.num_timesteps > 0)
also("_evaluate", "95 % success", lambda session: session.metrics.last.get("eval/success_rate", 0) >= 0.95)
from kit import cli
cli.main(["train", "--env", "Reach", "--run-name", "run", *sys.argv[1:]])
"""


def main() -> None:
    python = sys.executable
    lines: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for start in range(STARTS):
            for what, code in (
                ("import kit", "import kit"),
                ("kit --help", "from kit import cli; cli.main(['--help'])"),
            ):
                lines.setdefault(what, []).append(seconds([python, "-c", code], folder)["end"])
            cache = f"{folder}/cache{start}"
            for probed in ("with the probe", "probed before"):
                command = [python, "-c", TRAIN, "--runs-dir", f"{folder}/{start} {probed}", "--session-limit", "8s"]
                for event, at in seconds(command, folder, KIT_CACHE=cache).items():
                    if event != "end":
                        lines.setdefault(f"kit train, {probed}: {event}", []).append(at)
    print(f"| seconds after exec, {STARTS} starts | median | lowest – highest |\n|---|---:|---:|")
    for what, values in lines.items():
        print(f"| {what} | {statistics.median(values):.2f} | {min(values):.2f} – {max(values):.2f} |")


def seconds(command: list[str], folder: str, clock: Callable[[], float] = time.perf_counter, **extra: str) -> dict:
    """What `command` prints, line by line, and its "end" -> seconds since it was started."""
    begun, seen = clock(), {}
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **extra}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(("first", "95 %")):
                seen[line.strip()] = clock() - begun
    return {**seen, "end": clock() - begun}


if __name__ == "__main__":
    main()
