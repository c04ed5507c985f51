"""Benchmark of the panel in JupyterLab and Chromium: its waits, and what a dashboard costs training. Run by hand:

    python tests/bench/panel.py                # about ten minutes on two quiet cores
    python tests/bench/panel.py --pairs 0      # the waits only, about a minute

A pair trains Reach with the same seed twice: with a dashboard in the visible page, videos included, and without.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
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
                print(f"| {options.steps:,} steps alone, with a dashboard | {alone:.1f}, {watched:.1f} |", flush=True)
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
        notebook.see(".kit-head", "training")
        page.locator(".kit-pause-button").first.click()
        pauses.append(timed(lambda: notebook.see(".kit-head", "paused")))
        page.locator(".kit-pause-button").first.click()
    row(f"from Pause to paused, median of {PAUSES}", statistics.median(pauses))
    run = Run(notebook.lab.folder / "runs" / "panel")
    run.stop()
    run.wait(60)
    notebook.command("notebook:move-cursor-down")  # a click in the panel has selected its cell


def train(notebook: Notebook, name: str) -> float:
    """Run the next cell, which launches the run `name`; return the seconds of its training, without its start."""
    step(notebook, wait=False)
    folder = notebook.lab.folder / "runs" / name
    wait_for((folder / "config.yaml").exists)
    run = Run(folder)
    run.wait(900, until=lambda now: now["state"] in ("finished", "failed"))
    return float(run.metrics()["time/time_elapsed"].max())


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
