"""Benchmark of the panel in JupyterLab and Chromium: its waits, and what a dashboard costs training. Run by hand:

    python tests/bench/panel.py                # about ten minutes on two quiet cores
    python tests/bench/panel.py --pairs 0      # the waits only, about a minute

A pair trains Reach with the same seed twice: with a dashboard in the visible page, videos included, and without.
Two trainings scatter by more than a dashboard costs, so its processor time is counted too: that of the kernel, which
reads metrics and draws, of the niced processes that render videos, and of the browser (on the user's own machine if
the training machine is rented), as a share of all cores while it trains.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import psutil
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from kit.runs.run import Run  # noqa: E402
from tests.ui.fabricate import wait_for  # noqa: E402
from tests.ui.lab import CHROMIUM, FLAGS, Lab, Notebook  # noqa: E402

PANEL = [
    "import kit\nkit.ui",
    "panel = kit.ui.TrainPanel(kit.RunConfig(total_steps=1_000_000, run_name='panel')).show()",
]
PAIR = [
    "run = kit.launch(total_steps={steps}, run_name='alone-{i}')",
    "run = kit.launch(total_steps={steps}, run_name='watched-{i}')\nkit.ui.Dashboard(run).show();",
]
PAUSES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    pairs = [cell.format(i=i, steps=options.steps) for i in range(options.pairs) for cell in PAIR]
    home = Path(tempfile.mkdtemp())
    (home / "lab").mkdir()
    cells = [nbformat.v4.new_code_cell(source) for source in PANEL + pairs]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), home / "lab" / "panel.ipynb")
    lab = Lab(home / "lab", {**os.environ, "JUPYTER_CONFIG_DIR": str(home / "config"), "XDG_CACHE_HOME": str(home)})
    try:
        with sync_playwright() as playwright:
            page = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS).new_page()
            notebook = Notebook(page, lab, "panel.ipynb").open()
            print("| | seconds |\n|---|---:|")
            waits(notebook)
            for i in range(options.pairs):
                alone, watched = (train(notebook, f"{kind}-{i}") for kind in ("alone", "watched"))
                print(f"| {options.steps:,} steps alone, with a dashboard | {alone[0]:.1f}, {watched[0]:.1f} |")
                print("| share of all cores: kernel alone, kernel with a dashboard, videos, browser alone, with it | "
                      f"{alone[1]:.1%}, {watched[1]:.1%}, {watched[2]:.1%}, {alone[3]:.1%}, {watched[3]:.1%} |",
                      flush=True)  # fmt: skip
    finally:
        lab.close()
        shutil.rmtree(home, ignore_errors=True)


def waits(notebook: Notebook) -> None:
    """Print the seconds until the panel stands, the first point of the curve is drawn, and a run is paused."""
    page = notebook.page
    row("the first cell: import kit", timed(lambda: step(notebook)))
    row("the panel", timed(lambda: (step(notebook, wait=False), notebook.see(".kit-train-button"))))
    notebook.see(".kit-label", "on this machine")
    page.locator(".kit-train-button").first.click()
    row("from Train to the first point", timed(lambda: notebook.see(".kit-curves svg circle")))
    pauses = []
    for _ in range(PAUSES):
        notebook.see(".kit-pause-button:not([disabled])", "Pause")
        page.locator(".kit-pause-button").first.click()
        pauses.append(timed(lambda: notebook.see(".kit-head", "paused")))
        page.locator(".kit-pause-button").first.click()  # Continue
    row(f"from Pause to paused, median of {PAUSES}", statistics.median(pauses))
    run = Run(notebook.lab.folder / "runs" / "panel")
    run.stop()
    run.wait(60)
    notebook.command("notebook:move-cursor-down")  # a click in the panel has selected its cell


def train(notebook: Notebook, name: str) -> tuple[float, float, float, float]:
    """Run the next cell, which launches the run `name`.

    Returns:
        seconds of its training, without its start; shares of all cores that kernel, videos and browser took meanwhile.
    """
    step(notebook, wait=False)
    folder = notebook.lab.folder / "runs" / name
    wait_for((folder / "config.yaml").exists)
    run, used = Run(folder), Processors()
    run.wait(900, until=lambda now: bool(used.sample()) and now["state"] in ("finished", "failed"))
    seconds = float(run.metrics()["time/time_elapsed"].max())
    return seconds, used.share("ipykernel"), used.share(" video "), used.share("chromium")


class Processors:
    """Processor time of this process's descendants, by word in their command line, since this was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._last: dict[tuple[int, str], float] = {}
        self._first = self.sample()

    def sample(self) -> dict[tuple[int, str], float]:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._last[process.pid, " ".join(process.cmdline())] = times.user + times.system
        return dict(self._last)

    def share(self, word: str) -> float:
        """Return the share of all cores that processes with `word` in their command line took."""
        seconds = sum(at - self._first.get(key, 0) for key, at in self._last.items() if word in key[1])
        return seconds / (time.perf_counter() - self._started) / (os.cpu_count() or 1)


def step(notebook: Notebook, wait: bool = True) -> None:
    notebook.command("notebook:run-cell-and-select-next")
    if wait:
        time.sleep(0.3)  # until the kernel is busy
        notebook.idle()


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def row(what: str, seconds: float) -> None:
    print(f"| {what} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
