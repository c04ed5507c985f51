"""Recordings of diverged physics in a run: write them while training, and make videos of them.

A recording is `divergences/step_<step>_env_<env>.safetensors`: the last second of one env (`kit.envs.divergence`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import UserError
from kit.format.checkpoint import encode_tensors
from kit.format.files import write_atomic
from kit.format.layout import DIVERGENCES
from kit.machine.settings import one_thread
from kit.runs.opponents import make_env
from kit.runs.run import Run
from kit.runs.video import (
    FPS,
    HOLD_S,
    RED,
    WHITE,
    Progress,
    cameras_of,
    captioned,
    check_camera,
    check_film,
    no_progress,
    once,
    writing,
)

if TYPE_CHECKING:
    import torch

    from kit.envs.divergence import Divergence

SLOWER = 4
"""Slow motion of a video: seconds of video per simulated second."""


def write(run_path: Path, step: int, divergence: Divergence) -> str:
    """Write `divergence` of the iteration that ended at `step`; return a message. Raises `OSError`."""
    folder = run_path / DIVERGENCES
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{step:09d}_env_{divergence.env:04d}.safetensors"
    if not path.exists():  # keep the first of this env in the iteration
        write_atomic(path, encode_tensors({name: rows.contiguous() for name, rows in divergence.rows.items()}))
    return (
        f"the physics of an env diverged before step {step:,}, in step {divergence.length:,} of its episode; "
        f"`kit video {run_path.name} --divergence` shows the second before it"
    )


def recordings(run: Run) -> list[Path]:
    """Return the paths of the run's recordings, the oldest first."""
    return sorted((run.path / DIVERGENCES).glob("step_*.safetensors"))


def load(recording: Path) -> dict[str, torch.Tensor]:
    """Return the rows of a recording; see `kit.envs.divergence.Divergence`."""
    from safetensors.torch import load_file

    return load_file(recording)


def video_path(recording: Path) -> Path:
    """Return the path of the video of `recording`."""
    return recording.parent.parent / "videos" / f"divergence_{recording.stem}.mp4"


def record_divergence(
    run: Run, size: int = 320, path: Path | None = None, camera: str | None = None, on_frame: Progress = no_progress
) -> Path:
    """Record a video (mp4) of the run's newest divergence in slow motion (`SLOWER`); return its path.

    If another process records the same video, wait for it. Raises `UserError` if no divergence was recorded. Needs the
    extra `video`.
    """
    check_film(path, size)
    found = recordings(run)
    if not found:
        raise UserError(f"{run.path} has no recorded divergence: the physics has not diverged while it trained.")
    path = path or video_path(found[-1])
    return once(path, lambda: _render(run, found[-1], path, size, camera, on_frame))


@one_thread()
def _render(run: Run, recording: Path, path: Path, size: int, camera: str | None, on_frame: Progress) -> None:
    rows, number = load(recording), int(recording.stem.rpartition("_")[2])
    env = make_env(run.config.replace(device="cpu"), 1, run.config.seed, 1)
    try:
        if camera is not None:
            check_camera(camera, env, run)
        shown = (camera or cameras_of(env, run)[0],)
        steps, repeats = len(rows["qpos"]), max(1, round(FPS * SLOWER * env.control_dt_s))
        fps = repeats / (SLOWER * env.control_dt_s)
        with writing(path, (size, size), fps) as add:
            for step in range(steps):
                show(env, {name: values[step] for name, values in rows.items()})
                speed, left = rows["qvel"][step].abs().max(), (steps - step) * env.control_dt_s
                caption = f"{left:.2f} s before   fastest joint {float(speed):.2g}"
                pixels = env.render(shown, size, size)[0, 0].cpu().numpy()
                frame = captioned(pixels, None, f"env {number}", caption, WHITE if step < steps - 1 else RED)
                for _ in range(repeats):
                    add(frame)
                on_frame(step + 1, steps)
            for _ in range(round(2 * HOLD_S * fps)):
                add(frame)
    finally:
        env.close()


def show(env: Any, row: dict[str, torch.Tensor]) -> None:
    """Set `env`, a `TensorEnv` with one env, to the recorded state `row`."""
    import torch

    randomizer, sim = env.randomizer, env.task.sim
    if randomizer is not None:
        drawn = {name.removeprefix("randomize."): x[None] for name, x in row.items() if name.startswith("randomize.")}
        randomizer.apply(drawn)
    state = {name: row[name][None].to(sim.dtype) for name in ("qpos", "qvel")}
    sim.reset(torch.ones(1, dtype=torch.bool), **state)
    env.task.measure()
