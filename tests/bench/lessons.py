"""Two lessons, the second a branch of the first: trained if they are not there yet, for three seeds, and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kit
from kit import Run, RunConfig

SEEDS = range(3)


def taught(folder: Path, config: RunConfig, then: dict[str, Any]) -> Iterator[tuple[Run, Run]]:
    """Runs of `config`, and of what follows with `then` changed, in `folder`; one seed after the other."""
    for seed in SEEDS:
        first, second = folder / f"first{seed}", folder / f"second{seed}"
        if not first.exists():
            kit.launch(config, seed=seed, runs_dir=str(folder), run_name=first.name)
        run = _finished(first)
        if not second.exists():
            kit.branch(first, "latest", run_name=second.name, **then)
        yield run, _finished(second)


def draw(runs: list[tuple[Run, Run]], figure: str, says: str, title: str, picture: Path) -> None:
    """The evaluations' `figure`, a rate, over both lessons."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    drawn, axis = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    length = runs[0][0].config.total_steps
    for seed, lessons in zip(SEEDS, runs, strict=True):
        points = [
            ((row["step"] + length * lesson) / 1e6, 100 * row[f"eval/{figure}"])
            for lesson, run in enumerate(lessons) for row in run.rows() if f"eval/{figure}" in row
        ]  # fmt: skip
        axis.plot(*zip(*points, strict=True), "-o", markersize=3, linewidth=1.5, label=f"seed {seed}")
    axis.axvline(length / 1e6, color="black", linestyle="--", linewidth=1)
    axis.set(xlabel="million steps", ylabel=says, title=title)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    drawn.savefig(picture, dpi=110, facecolor="white")
    print(f"Drawn to {picture}.")


def _finished(path: Path) -> Run:
    """The run at `path`, trained to its end."""
    run = Run(path)
    while run.status()["state"] != "finished":
        if not run.is_working():
            kit.resume(path, background=True)
        run.wait()
    return run
