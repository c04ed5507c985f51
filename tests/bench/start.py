"""Benchmark of start-up: seconds until the first env step, the first update, and 95 % success. Run by hand:

    python tests/bench/start.py              # five starts, about two minutes

Every start is a new process, timed from its exec. `kit train` is timed from outside, by lines that the process prints;
`import kit` and `kit --help` until they end.
"""

from __future__ import annotations

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
from kit.runs.training import Training
said = set()
def also(kind, name, what, when=lambda training: True):
    method = getattr(kind, name)
    def wrapped(self, *args):
        answer = method(self, *args)
        if what not in said and when(self):
            said.add(what)
            print(what, flush=True)
        return answer
    setattr(kind, name, wrapped)
also(Session, "_should_stop", "first env step")
also(Training, "boundary", "first update finished", lambda training: training.trainer.num_timesteps > 0)
also(Training, "_evaluate", "95 % success", lambda training: training.metrics.last.get("eval/success_rate", 0) >= 0.95)
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
            command = [python, "-c", TRAIN, "--runs-dir", f"{folder}/{start}", "--session-limit", "20s"]
            for event, at in seconds(command, folder).items():
                if event != "end":
                    lines.setdefault(f"kit train: {event}", []).append(at)
    print(f"| seconds after exec, {STARTS} starts | median | lowest – highest |\n|---|---:|---:|")
    for what, values in lines.items():
        print(f"| {what} | {statistics.median(values):.2f} | {min(values):.2f} – {max(values):.2f} |")


def seconds(command: list[str], folder: str, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Run `command`; return each event that it prints, and "end" -> seconds since its start."""
    begun, seen = clock(), {}
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(("first", "95 %")):
                seen[line.strip()] = clock() - begun
    return {**seen, "end": clock() - begun}


if __name__ == "__main__":
    main()
