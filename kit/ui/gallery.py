"""Statistics and videos of a run: evaluation tables, several cameras, failures, checkpoints and runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import UserError
from kit.measure.uncertainty import success_interval
from kit.runs.evaluation import evaluate
from kit.runs.finding import local_runs
from kit.runs.opponents import make_env
from kit.runs.run import Run
from kit.runs.video import COLUMNS, View, cameras_of, failures_first
from kit.ui.panel import Panel
from kit.ui.style import Page, percent
from kit.ui.videos import EPISODES, PolicyVideo, players

if TYPE_CHECKING:
    import pandas as pd

CHECKPOINTS, CAMERAS = 4, 3
"""Default number of checkpoints and of cameras side by side."""
SIZE, SMALL = {1: 480, 2: 400, 3: 288}, 216
"""Number of views side by side -> width and height of each view in pixels; `SMALL` for four or more views."""


def find_run(run: str | Path | Run | Panel | None = None, runs_dir: str = "runs") -> Run:
    """Return a run by name or path, or a panel's run; default: the latest run that has a policy.

    Raises `UserError` if there is none.
    """
    if isinstance(run, Run):
        return run
    if isinstance(run, Panel):
        return run.find_run()
    if run is not None:
        inside = Path(runs_dir) / run
        return Run(inside if inside.exists() else run)
    for candidate in local_runs(runs_dir):
        if candidate.checkpoints() or candidate.best():
            return candidate
    raise UserError(f"runs_dir={runs_dir!r} holds no run with a checkpoint; train one with 01_train first.")


def statistics(run: Run, episodes: int = 100) -> pd.DataFrame:
    """Evaluate the best and the latest policy of `run`; return a table of texts (`kit.evaluate` returns numbers)."""
    import pandas as pd

    best, latest = run.best(), run.latest()
    if best and latest and best.step == latest.step:
        latest = None
    lines = {
        f"{name}, step {checkpoint.step:,}": _cells(evaluate(run, episodes, name))
        for name, checkpoint in (("best", best), ("latest", latest))
        if checkpoint is not None
    }
    columns = ["success rate", "mean return", "episode length", "episodes"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns)


def from_cameras(
    run: Run, cameras: Sequence[str] = (), episodes: int = EPISODES, step: int | str | None = None
) -> Page:
    """Video of one policy (default: the best) from several cameras at once (default: the task's first three)."""
    cameras = cameras or _cameras(run)[:CAMERAS]
    number = _number(run, step)
    return _video([View(run, number, camera, camera) for camera in cameras], episodes)


def failures(run: Run, camera: str = "", episodes: int = EPISODES, step: int | str | None = None) -> Page:
    """Video of failed episodes of the policy of `step` (default: the best), out of up to 50 episodes.

    If fewer than `episodes` fail, episodes with the lowest returns are added. The title says how many failed.
    """
    number = _number(run, step)
    played, text = failures_first(run, number)
    return _video([View(run, number, camera, f"{_title(run, number)}: {text}")], tuple(played[:episodes]))


def checkpoints_side_by_side(
    run: Run, steps: Sequence[int] = (), cameras: Sequence[str] = (), episodes: int = EPISODES
) -> Page:
    """Video of the policies of `steps` in the same episodes (default: four steps, evenly spaced over training).

    The camera is the first of `cameras`; default: the task's first camera.
    """
    steps = steps or spread(run.steps(), CHECKPOINTS)
    camera = (cameras or _cameras(run))[0]
    return _video([View(run, step, camera, _title(run, step)) for step in steps], episodes)


def runs_side_by_side(
    runs: Sequence[Run],
    camera: str | None = None,
    episodes: int = EPISODES,
    env_options: Mapping[str, Any] | None = None,
) -> Page:
    """Video of the best policies of `runs` in the same episodes. The runs must have the same task.

    `env_options`: changes of the runs' env_options, such as {"randomize": {"friction": [0.2, 0.2]}}.
    """
    camera, changes = camera or _cameras(runs[0])[0], env_options or {}
    views = [View(run, run.find().step, camera, f"{run.config.algo}, {run.name}", changes) for run in runs]
    return _video(views, episodes)


def spread(items: Sequence[int], count: int) -> list[int]:
    """Choose at most `count` of `items`, evenly spaced, including the first and the last."""
    count = min(count, len(items))
    return [items[round(i * (len(items) - 1) / max(1, count - 1))] for i in range(count)]


def _video(views: Sequence[View], episodes: int | tuple[int, ...]) -> Page:
    """Return a player of a video with `views` side by side; record the video unless its file exists."""
    size = SIZE.get(len(views), SMALL)
    path = PolicyVideo(tuple(views), size, episodes).file()
    return players([(" · ".join(view.title for view in views), path)], size * min(len(views), COLUMNS))


def _cells(row: dict[str, Any]) -> list[str]:
    success = "–"
    if row["success_rate"] is not None:
        low, high = success_interval(row["success_rate"], row["episodes"])
        success = f"{100 * row['success_rate']:.1f} %  ({100 * low:.0f} to {100 * high:.0f})"
    returned = f"{row['mean_return']:.2f} ± {row['std_return']:.2f}"
    return [success, returned, f"{row['mean_length']:.1f} steps", str(row["episodes"])]


def _number(run: Run, step: int | str | None) -> int:
    saved = run.find_or_new(step)
    return saved.step if saved else 0


def _cameras(run: Run) -> tuple[str, ...]:
    env = make_env(run.config.replace(device="cpu"), 1, run.config.seed)
    env.close()
    return cameras_of(env, run)


def _title(run: Run, step: int) -> str:
    if run.is_untrained(run.find_or_new(step)):
        return "before training"
    return f"step {step:,}, {percent(min(1, step / run.config.total_steps))} of training"
