"""Looking at a run from every side: statistics, cameras beside each other, checkpoints beside each other."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import UserError
from kit.runs.api import local_runs
from kit.runs.rollouts import evaluate, record
from kit.runs.run import Run
from kit.ui import players, style

CHECKPOINTS, CAMERAS = 4, 3
"""Shown beside each other unless asked for others."""
EPISODES = 2
SIZE = {1: 480, 2: 400, 3: 288}
"""Pixels a side, by how many stand beside each other."""


def find_run(run: str | Path | Run | None = None, runs_dir: str = "runs") -> Run:
    """A run by name or path; without one, the latest that has a policy. Raises `UserError`."""
    if isinstance(run, Run):
        return run
    if run is not None:
        inside = Path(runs_dir) / run
        return Run(inside if inside.exists() else run)
    for candidate in local_runs(runs_dir):
        if candidate.checkpoints() or candidate.best():
            return candidate
    raise UserError(f"runs_dir={runs_dir!r} holds no run with a checkpoint; train one with 01_train first.")


@dataclass(frozen=True)
class Statistics:
    """How policies of one run did in fresh episodes."""

    run_name: str
    rows: tuple[dict[str, Any], ...]
    """One per policy: "policy", and what `kit.evaluate` gives."""

    def __str__(self) -> str:
        return "\n".join([self.run_name, *("  ".join(cells) for cells in map(_cells, self.rows))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads = ("policy", "success rate", "mean return", "episode length", "episodes")
        first = "".join(f"<th>{name}</th>" for name in heads)
        lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row)) for row in self.rows)
        rest = "".join(f"<tr>{line}</tr>" for line in lines)
        return style.page(f"<table class='kit-table'><tr>{first}</tr>{rest}</table>")


def statistics(run: Run, episodes: int = 100) -> Statistics:
    """Play `episodes` with the best and with the latest policy of `run`."""
    best, latest = run.best(), run.latest()
    policies = [("best", best), ("latest", latest if latest and (not best or latest.step != best.step) else None)]
    rows = [
        {"policy": f"{name}, step {found.step:,}", **evaluate(run, episodes, found.step if name != "best" else "best")}
        for name, found in policies
        if found is not None
    ]
    return Statistics(run.name, tuple(rows))


def interval(rate: float, episodes: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a success rate seen in `episodes`."""
    z = 1.96
    middle = (rate + z * z / (2 * episodes)) / (1 + z * z / episodes)
    half = z / (1 + z * z / episodes) * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def from_cameras(run: Run, cameras: Sequence[str] = (), episodes: int = EPISODES, step: int | str | None = None) -> Any:
    """Players of one policy (default: the best), each camera its own, by default the task's first few."""
    chosen = tuple(cameras) or _cameras(run)[:CAMERAS]
    found = run.find(step)
    name = "best" if step is None and run.best() is not None else found.step
    size = _size(len(chosen))
    return players.gallery([(camera, film(run, name, camera, size, episodes)) for camera in chosen], size)


def checkpoints_side_by_side(
    run: Run, steps: Sequence[int] = (), cameras: Sequence[str] = (), episodes: int = EPISODES
) -> Any:
    """Players of the policies of `steps` playing the same episodes; by default untrained, and some in between."""
    chosen = list(steps) or spread(sorted({0, *(found.step for found in run.policies())}), CHECKPOINTS)
    camera = (cameras or _cameras(run))[0]
    size = _size(len(chosen))
    return players.gallery([(_title(run, step), film(run, step, camera, size, episodes)) for step in chosen], size)


def film(run: Run, step: int | str, camera: str, size: int, episodes: int = EPISODES) -> Path:
    """A video of one policy from one camera; what was filmed before is not filmed again."""
    number = run.find(step).step if step else 0
    path = run.path / "videos" / "views" / f"step_{number:09d}_{camera}_{size}_{episodes}.mp4"
    return path if path.exists() else record(run, step, (camera,), episodes, size, path)


def spread(items: Sequence[int], count: int) -> list[int]:
    """At most `count` of `items`, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _cells(row: dict[str, Any]) -> list[str]:
    if row["success_rate"] is None:
        success = "–"
    else:
        low, high = interval(row["success_rate"], row["episodes"])
        success = f"{100 * row['success_rate']:.1f} %  ({100 * low:.0f} to {100 * high:.0f})"
    returned = f"{row['mean_return']:.2f} ± {row['std_return']:.2f}"
    return [row["policy"], success, returned, f"{row['mean_length']:.1f} steps", str(row["episodes"])]


def _cameras(run: Run) -> tuple[str, ...]:
    from kit import envs

    env = envs.make_vec(run.config.env, 1)
    cameras = env.cameras
    env.close()
    return tuple(cameras)


def _title(run: Run, step: int) -> str:
    share = min(100, 100 * step / max(1, run.config.total_steps))
    return f"step {step:,}, {share:.0f} % of the way" if step else "before training"


def _size(count: int) -> int:
    return SIZE.get(count, 216)
