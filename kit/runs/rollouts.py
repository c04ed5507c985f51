"""Use a policy without training it: success statistics, videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import envs
from kit.config import RunConfig
from kit.errors import UserError, need
from kit.runs.opponents import make_worlds
from kit.runs.policies import load_policy
from kit.runs.run import Run

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kit.envs.contract import BatchEnv
    from kit.envs.obs import Obs
    from kit.trainers.actor import Actor, Memory

EVAL_SEED = 1_000_003
"""Added to the run's seed: evaluation worlds are the same at every evaluation and never those of training."""
MAX_WORLDS, MAX_GAMES = 32, 256
"""Side by side in an evaluation: of worlds with physics, and of those without."""
EPISODES, GAMES = 20, 100
"""In an evaluation that belongs to a training, likewise."""
FILM_FPS, FILM_S = 25, 10.0
"""Frames per second, about, and seconds of an episode at most: soon drawn, and small enough to stay in a notebook."""
TERM, RATE = "reward/", "_per_minute"
"""What the names of a task's figures begin or end with, if evaluations add them up over an episode."""


class Evaluator:
    """Plays whole episodes in worlds of its own; leaves training and its random numbers alone."""

    def __init__(self, config: RunConfig, episodes: int | None = None) -> None:
        self.seed = config.seed + EVAL_SEED
        physics = envs.describe(config.env, config.env_options).physics
        most = MAX_WORLDS if physics else MAX_GAMES
        episodes = episodes or (EPISODES if physics else GAMES)
        self.per_world = -(-episodes // most)
        worlds = -(-episodes // self.per_world)
        self.env = make_worlds(config, worlds, self.seed, int(config.threads))

    def __call__(self, actor: Actor | Script, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Every world contributes the same number of episodes, so that short ones are not counted more often. Returns
        what `evaluate` does, or None if `should_stop`."""
        import torch

        obs = self.env.reset(seed=self.seed)
        n = self.env.num_envs
        memory, begun = actor.memory(n), torch.ones(n, dtype=torch.bool, device=self.env.device)
        finished = torch.zeros(n, dtype=torch.long, device=self.env.device)
        figures: dict[str, list[torch.Tensor]] = {}  # of the episodes that are over
        totals: dict[str, torch.Tensor] = {}  # of those at play
        while bool((finished < self.per_world).any()):
            if should_stop():
                return None
            actions, memory = actor(obs, memory, begun)
            obs, _, terminated, truncated, info = self.env.step(actions)
            done = terminated | truncated
            counted = done & (finished < self.per_world)
            over = bool(counted.any())
            for name, value in info.items():
                if name == "final_obs" or value.ndim != 1:
                    continue
                value = value.double()
                if name.startswith(TERM) or name.endswith(RATE):
                    value = totals[name] = value + torch.where(begun, 0.0, totals.get(name, torch.zeros_like(value)))
                if over:
                    figures.setdefault(name, []).append(value[counted])
            begun = done
            finished += counted
        found = {name: torch.cat(values) for name, values in figures.items()}
        returned, length, success = found.pop("episode_return"), found.pop("episode_length"), found.pop("success", None)
        minutes = length.mean().item() * self.env.control_dt_s / 60
        return {
            "episodes": len(returned),
            "mean_return": returned.mean().item(),
            "std_return": returned.std(correction=0).item(),
            "success_rate": None if success is None else success.mean().item(),
            "mean_length": length.mean().item(),
            **{n: values.mean().item() / (minutes if n.endswith(RATE) else 1.0) for n, values in found.items()},
        }

    def close(self) -> None:
        self.env.close()


def evaluate(
    run: Run | str | Path, episodes: int = 100, step: int | str | None = None, scripted: bool = False
) -> dict[str, Any]:
    """Play `episodes` with the policy of `step` (default: the best), actions without noise, or with `scripted` by the
    task's own plan.

    Returns {"episodes", "mean_return", "std_return", "success_rate" (None if the task has none), "mean_length"}, and
    the task's own figures as `Task.info` says, such as Reach's "within_5cm".
    """
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise UserError(f"episodes={episodes!r} must be a whole number of at least 1.")
    run = run if isinstance(run, Run) else Run(run)
    evaluator = Evaluator(run.config.replace(device="cpu"), episodes)
    with one_thread():
        result = evaluator(Script(evaluator.env) if scripted else run.policy(step).as_actor())
    evaluator.close()
    assert result is not None
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Networks that look at a few dozen rows gain nothing by more threads, and on a busy machine lose much."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Script:
    """A task's own plan, as an actor. Raises `UserError` if it has none."""

    def __init__(self, env: BatchEnv) -> None:
        self._env = env
        if env.scripted() is None:
            raise UserError("this env has no scripted plan to compare with; write its task's `scripted`.")

    def memory(self, n: int) -> Memory:
        """None is needed."""
        return ()

    def __call__(self, obs: Obs, memory: Memory, begun: torch.Tensor) -> tuple[torch.Tensor, Memory]:
        planned = self._env.scripted()
        assert planned is not None
        return planned, memory


def record(
    run: Run | str | Path,
    step: int | str | None = None,
    cameras: tuple[str, ...] | None = None,
    episodes: int = 3,
    size: int = 320,
    path: Path | None = None,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Film `episodes` with the policy of `step` (0: as training began) into an mp4, by default `videos/step_<step>.mp4`
    in the run: `size` pixels a side, cameras side by side, of each episode the first `FILM_S` seconds. Calls
    `on_frame(done, at most)`. Needs the extra `video`."""
    run = run if isinstance(run, Run) else Run(run)
    mediapy = need("mediapy", "video")
    mediapy.set_ffmpeg(need("imageio_ffmpeg", "video").get_ffmpeg_exe())
    found = run.find(step) if step != 0 else None
    model = load_policy(run.config, found)
    env = make_worlds(run.config.replace(device="cpu"), 1, run.config.seed + EVAL_SEED, 1)
    cameras = cameras or env.cameras[:1]
    for camera in cameras:
        if camera not in env.cameras:
            have = ", ".join(env.cameras) or "none"
            raise UserError(f"camera={camera!r} is not one of {run.config.env}'s; it has {have}.")
    path = path or run.path / "videos" / f"step_{found.step if found else 0:09d}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.with_name(f".{path.name}.building.mp4")
    drawn = _play(model.as_actor(), env, cameras, episodes, size, run.config.seed + EVAL_SEED, on_frame)
    try:
        with mediapy.VideoWriter(building, (size, size * len(cameras)), fps=_timing(env)[1], qp=20) as film:
            for frame in drawn:  # not write_video, which keeps them all to look at the first
                film.add_image(frame)
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)
        env.close()
    return path


def _timing(env: BatchEnv) -> tuple[int, float, int]:
    """Steps from one frame to the next, frames per second, and frames of an episode at most."""
    rate = env.film_speed / env.control_dt_s
    stride = max(1, round(rate / FILM_FPS))
    return stride, rate / stride, min(-(-env.episode_steps // stride), round(FILM_S * rate / stride))


def _play(
    actor: Actor,
    env: BatchEnv,
    cameras: tuple[str, ...],
    episodes: int,
    size: int,
    seed: int,
    on_frame: Callable[[int, int], None],
) -> Iterator[np.ndarray]:
    """The frames of `episodes` in one world as they are drawn, cameras side by side: (size, cameras * size, 3) uint8.
    None is kept, since a thousand of them take a gigabyte."""
    import torch

    stride, _, most = _timing(env)
    obs, memory, begun = env.reset(seed=seed), actor.memory(1), torch.ones(1, dtype=torch.bool)
    drawn = 0
    for _ in range(episodes):
        for step in range(env.episode_steps):
            if step % stride == 0 and step // stride < most:
                picture = env.render(cameras, size, size)[0]
                yield picture.permute(1, 0, 2, 3).reshape(size, -1, 3).cpu().numpy()
                drawn += 1
                on_frame(drawn, episodes * most)
            actions, memory = actor(obs, memory, begun)
            obs, _, terminated, truncated, _ = env.step(actions)
            begun = terminated | truncated
            if begun[0]:
                break
