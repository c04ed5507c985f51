"""Benchmark of the first minutes on a rented machine: install, first point of a curve, first image. Run by hand:

    python tests/bench/first_minute.py                     # every place, about ten minutes
    python tests/bench/first_minute.py --only "RunPod, PyTorch 2.8"

For each place a new virtual environment gets what its machines have installed (not timed; the lists of
tests/installs/test_installs.py). Then the notebooks' install command and three steps are timed, with empty caches.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.installs.test_installs import FIRST_CELL, MACHINES  # noqa: E402

STEPS = {
    "from Train to the first point": """
import kit, time
run = kit.launch(env="Reach", total_steps=20_000)
while not len(run.metrics()):
    time.sleep(0.1)
print(time.time(), flush=True)
run.stop()""",
    "first image of three cameras": """
import kit
kit.make_vec("ReachVision", 1).reset(seed=0)""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MACHINES, help="one place")
    only = parser.parse_args().only
    print(f"| place | install, s | {', s | '.join(STEPS)}, s |\n|---|{'---:|' * (1 + len(STEPS))}")
    for place, (_, packages) in MACHINES.items():
        if only in (None, place):
            seconds = [f"{x:.1f}" for x in measure(packages.split())]
            print(f"| {place} | {' | '.join(seconds)} |", flush=True)


def measure(packages: list[str]) -> list[float]:
    """Return the seconds of the install and of each of `STEPS` on a machine that has `packages`."""
    with tempfile.TemporaryDirectory() as folder:
        home = {"HOME": folder, "XDG_CACHE_HOME": f"{folder}/cache", "PIP_NO_CACHE_DIR": "1"}
        env = {name: x for name, x in os.environ.items() if not name.startswith(("PYTHON", "WARP_"))} | home
        python = f"{folder}/venv/bin/python"

        def timed(command: list[str]) -> float:
            begun = time.time()
            output = subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
            return (float(output.split()[-1]) if output.strip() else time.time()) - begun

        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        if packages:
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], env=env, check=True)
        install = timed([python, "-m", "pip", "install", "-q", f"{FIRST_CELL} @ {ROOT.as_uri()}"])
        check = subprocess.run([python, "-m", "pip", "check"], env=env, stdout=subprocess.PIPE, text=True, check=False)
        if check.returncode:
            print(check.stdout, file=sys.stderr)
        return [install, *(timed([python, "-c", code]) for code in STEPS.values())]


if __name__ == "__main__":
    main()
