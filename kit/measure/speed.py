"""How fast this computer trains: a probe of about ten seconds that runs the real thing and looks at the clock.

Three readings bound one another: bare physics, the env with observations and rewards, and whole training. The last one,
with the time of an evaluation, answers "how long will it take". `bench` adds pictures, with a setup for comparisons.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from kit import envs
from kit.config import RunConfig
from kit.errors import Interrupted
from kit.machine import settings
from kit.machine.progress import is_interactive
from kit.measure.auto import resolve

STARTUP_S = 5.0
"""Of a training process, before its first step."""
PATIENCE_S = 60.0
"""For the first iteration of a training, however short the probe should be."""
EVALUATION_WORLDS = 20
"""One for each episode of an evaluation (`kit.runs.session`)."""
TURNS = 8
"""Physics and env are measured so many times, one after the other: the best of each says what the machine can do."""
BENCH = {"n_steps": 128, "batch_size": 64, "n_epochs": 10}
"""With 16 worlds: Stable-Baselines3's own batch and epochs, as in the README's comparison."""
PICTURE = 64
"""Pixels a side."""
DECIDES = ("env", "env_options", "algo", "encoder", "n_envs", "device", "threads", "overrides")
"""What an answer depends on."""

Tell = Callable[[str], None]  # told what is being measured, again and again
_known: dict[str, Speed] = {}


class NotMeasured(RuntimeError):
    """The probe ended without an answer; training may work all the same."""


@dataclass(frozen=True)
class Speed:
    """What one configuration reaches on one machine."""

    env: str
    algo: str
    n_envs: int
    device: str
    physics_steps_per_s: float | None
    """Physics alone in the same worlds, in env steps per second; None for an env whose physics is not kit's."""
    env_steps_per_s: float
    """With observation, reward and resets, over all worlds, random actions."""
    steps_per_s: float
    """Training as it will be, between evaluations."""
    evaluation_s: float = 0.0
    """One evaluation whose episodes last as long as they may."""
    pictures_per_s: float | None = None
    """Small ones for a network, of all worlds; None where nothing was drawn."""

    def seconds(self, config: RunConfig) -> float:
        """Estimated duration of a training, from pressing Train to the end."""
        every = config.eval_every
        evaluations = 11 if every == "auto" else 1 + config.total_steps // int(every) if every else 0
        return STARTUP_S + config.total_steps / self.steps_per_s + evaluations * self.evaluation_s

    @property
    def update_share(self) -> float:
        """Of the time of training, what is not spent in the env: policy and updates."""
        return max(0.0, 1 - self.steps_per_s / self.env_steps_per_s)

    def __str__(self) -> str:
        rates = {
            "bare physics": self.physics_steps_per_s,
            "the env, with observations and rewards": self.env_steps_per_s,
            "training, end to end": self.steps_per_s,
            f"pictures of {PICTURE}×{PICTURE}": self.pictures_per_s,
        }
        lines = [f"{self.env} with {self.algo}, {self.n_envs} worlds on {self.device}, in env steps per second:"]
        lines += [f"{rate:>10,.0f}  {what}" for what, rate in rates.items() if rate is not None]
        ratio = self.env_steps_per_s / (self.physics_steps_per_s or float("inf"))
        said = f"The env has {ratio:.2f} of bare physics. " if ratio else ""
        return "\n".join([*lines, f"{said}Networks take {self.update_share:.0%} of the time of training."])

    __repr__ = __str__


def probe(config: RunConfig, *, seconds: float = 8.0, show: bool = True) -> Speed:
    """Measure `config` for about `seconds`, with a progress bar unless `show` is False. What was measured in this
    process is not measured again. Raises `NotMeasured`."""
    config = resolve(config)
    if cached(config) is None:
        with bar(seconds, show) as tell:
            _known[_question(config)] = measure(config, seconds, tell)
    return _known[_question(config)]


def cached(config: RunConfig) -> Speed | None:
    """What a probe of this resolved config said in this process, or None."""
    return _known.get(_question(config))


def _question(config: RunConfig) -> str:
    return json.dumps([config.to_dict()[name] for name in DECIDES], sort_keys=True)


def probe_apart(config: RunConfig, seconds: float = 8.0) -> subprocess.Popen[str]:
    """Start the probe in a process of its own, so that a notebook's kernel stays free; read it with `answer`."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=settings.worker_environment(int(config.threads)) | envs.carry(config),
    )  # fmt: skip


def answer(process: subprocess.Popen[str], config: RunConfig) -> Speed:
    """Hand `config` (resolved) to the process of `probe_apart` and wait for its reading. Raises `NotMeasured`."""
    out, err = process.communicate(json.dumps(config.to_dict()))
    if process.returncode:
        last = (err.strip().splitlines() or [f"the probe ended with code {process.returncode}"])[-1]
        reason = last.partition(": ")[2] or last  # without the exception's name
        raise NotMeasured(f"The speed could not be measured: {reason}")
    speed = _known[_question(config)] = Speed(**json.loads(out.strip().splitlines()[-1]))
    return speed


# -- the readings --------------------------------------------------------------------------------------------------


def measure(config: RunConfig, seconds: float, tell: Tell) -> Speed:
    """Take all readings of a resolved `config` in about `seconds`."""
    from kit.trainers import make_trainer

    settings.apply(config.device)
    env, n_envs = _worlds(config, int(config.n_envs)), int(config.n_envs)
    try:
        trainer = make_trainer(config, env)
        actions = itertools.cycle(random_actions(env, 32))
        env.step(next(actions))  # the first step may compile and allocate
        physics, whole = [], []
        for _ in range(TURNS):
            tell("physics and env")
            whole.append(n_envs * rate(lambda: env.step(next(actions)), 0.15 * seconds / TURNS))
            if env.physics is not None:
                physics.append(_physics(env, int(config.threads), 0.15 * seconds / TURNS))
        trained = _training(trainer, 0.6 * seconds, tell)
        tell("evaluation")
        evaluation_s = _evaluation(config, trainer, 0.1 * seconds)
    finally:
        env.close()
    bare = max(physics + whole) if physics else None  # a step of the env holds one of physics
    return Speed(config.env, config.algo, n_envs, config.device, bare, max(whole), trained, evaluation_s)


def _worlds(config: RunConfig, n_envs: int) -> Any:
    options = envs.alone(config.env, config.env_options)
    return envs.make_vec(config.env, n_envs, config.device, config.seed, int(config.threads), options)


def rate(work: Callable[[], object], seconds: float) -> float:
    """How often `work` is done per second. A GPU may be a few calls behind, and is waited for at the end."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or not count:
        work()
        count += 1
        if count % 16 == 0:
            wait()
    wait()
    return count / (time.perf_counter() - start)


def random_actions(env: Any, count: int) -> list[Any]:
    """`count` batches of actions (n, act) on the env's device; one alone would push into the limits."""
    import torch
    from gymnasium.vector.utils import batch_space

    space = batch_space(env.action_space, env.num_envs)
    space.seed(0)
    return [torch.as_tensor(space.sample(), device=env.device) for _ in range(count)]


def _physics(env: Any, threads: int, seconds: float) -> float:
    """Env steps per second of physics alone. On CPUs `mj_step` on all threads, five steps at a time from where one of
    the env's worlds is, with its controls: worlds that nobody resets would be of another kind."""
    model, substeps = env.physics
    if env.device.type == "cuda":
        return float(env.num_envs * rate(lambda: env.task.sim.step(substeps), seconds))
    import mujoco

    states = itertools.cycle(env.snapshot()["sim.state"].numpy())

    def work(data: mujoco.MjData) -> float:
        def steps() -> None:
            mujoco.mj_setState(model, data, next(states), mujoco.mjtState.mjSTATE_INTEGRATION)
            for _ in range(5):
                mujoco.mj_step(model, data, substeps)

        return 5 * rate(steps, seconds)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, [mujoco.MjData(model) for _ in range(threads)]))


def _training(trainer: Any, seconds: float, tell: Tell) -> float:
    """Env steps per second of `learn()`, over the later half of its iterations, when everything is warm."""
    start = time.perf_counter()
    marks = [(start, 0)]

    def should_stop() -> bool:
        tell("training")
        return time.perf_counter() - start > (seconds if len(marks) > 1 else PATIENCE_S)

    trainer.on_boundary = lambda: marks.append((time.perf_counter(), trainer.num_timesteps))
    trainer.should_stop = should_stop
    with contextlib.suppress(Interrupted):
        trainer.learn(total_timesteps=10**9)
    if len(marks) == 1:
        raise NotMeasured(f"one iteration takes more than {PATIENCE_S:g} s here; choose a smaller network, or a GPU")
    return rate_of(marks)


def rate_of(marks: list[tuple[float, int]]) -> float:
    """Steps per second between the last mark and the latest one before half time; marks are (time_s, steps)."""
    (first, _), (last, steps) = marks[0], marks[-1]
    before = [mark for mark in marks[:-1] if mark[0] <= (first + last) / 2]
    return (steps - before[-1][1]) / (last - before[-1][0])


def _evaluation(config: RunConfig, trainer: Any, seconds: float) -> float:
    """Seconds that one evaluation takes: a part of it is played, in worlds of its own."""
    from kit.envs.play import play

    env = _worlds(config, EVALUATION_WORLDS)
    steps = play(env, trainer.as_actor(), env.reset(config.seed))
    try:
        next(steps)  # the first may compile
        return float(env.episode_steps / rate(partial(next, steps), seconds))
    finally:
        env.close()


def bench(env: str = "Ant", n_envs: int = 16, seconds: float = 40.0) -> Speed:
    """What this machine reaches with PPO on `env`, and pictures where there is physics of kit's and a camera."""
    config = resolve(RunConfig(env=env, algo="PPO", n_envs=n_envs, overrides=BENCH))
    with bar(seconds) as tell:
        found = measure(config, 0.8 * seconds, tell)
        tell("pictures")
        worlds = _worlds(config, n_envs)
        try:
            if worlds.physics is None or not worlds.cameras:
                return found
            draw = partial(worlds.task.sim.render, worlds.cameras[:1], PICTURE, PICTURE)
            draw()  # compiles once per machine, some 20 s
            return dataclasses.replace(found, pictures_per_s=n_envs * rate(draw, 0.2 * seconds))
        finally:
            worlds.close()


def duration(seconds: float) -> str:
    """Such as "45 s", "3 min", "2 h 05 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextlib.contextmanager
def bar(seconds: float, show: bool = True) -> Iterator[Tell]:
    """A progress bar over `seconds`, in a notebook or a terminal; it goes at the end."""
    from tqdm.auto import tqdm

    start, hidden = time.perf_counter(), not (show and is_interactive())
    with tqdm(total=100, leave=False, disable=hidden, bar_format="{desc} {bar} {percentage:.0f} %") as shown:

        def report(step: str) -> None:
            shown.set_description_str(f"Measuring {step}", refresh=False)
            shown.update(min(100, round(100 * (time.perf_counter() - start) / seconds)) - shown.n)

        yield report


if __name__ == "__main__":
    asked = RunConfig.from_dict(json.load(sys.stdin))
    print(json.dumps(dataclasses.asdict(probe(asked, seconds=float(sys.argv[1]), show=False))))
