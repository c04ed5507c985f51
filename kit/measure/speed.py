"""How fast this computer trains: a probe of at most ten seconds that runs the real thing and looks at the clock.

Three readings bound one another: bare physics on all threads, the env with observation and reward, and the whole
training. The last one answers "how long will it take", and is kept in the user's cache folder for the next time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kit.config import RunConfig
from kit.machine import cache, settings
from kit.machine.info import Machine, describe
from kit.measure import prices
from kit.measure.auto import resolve

Progress = Callable[[float, str], None]
"""Told the fraction done, 0 to 1, and what is being measured."""


class NotMeasured(RuntimeError):
    """The probe ended without an answer; training may work all the same."""


STARTUP_S = 5.0
"""Of a training process, before its first step."""


@dataclass(frozen=True)
class Speed:
    """What one configuration reaches on one machine."""

    env: str
    algo: str
    n_envs: int
    device: str
    physics_steps_per_s: float | None
    """Bare `mj_step` calls on all threads, in env steps per second; None for an env that is not ours."""
    env_steps_per_s: float
    """With observation, reward and resets, over all worlds, random actions."""
    steps_per_s: float
    """End to end: what training will do."""

    def seconds(self, total_steps: int) -> float:
        """Estimated duration of a training, from pressing Train to the end."""
        return STARTUP_S + total_steps / self.steps_per_s

    def sentence(self, total_steps: int, machine: Machine | None = None) -> str:
        """Such as "about 2 min on this machine (1,450 steps/s), free"."""
        cost = prices.cost(machine or describe(), self.seconds(total_steps))
        spent = f", {cost}" if cost else ""
        rate = f"{self.steps_per_s:,.0f} steps/s"
        return f"about {duration(self.seconds(total_steps))} on this machine ({rate}){spent}"

    def __str__(self) -> str:
        rows = [
            ("bare physics", self.physics_steps_per_s),
            ("the env, with observations and rewards", self.env_steps_per_s),
            ("training, end to end", self.steps_per_s),
        ]
        head = f"{self.env} with {self.algo}, {self.n_envs} worlds on {self.device}, in env steps per second:"
        return "\n".join([head, *(f"{rate:>10,.0f}  {what}" for what, rate in rows if rate is not None)])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def probe(config: RunConfig | None = None, *, seconds: float = 8.0, fresh: bool = False, show: bool = True) -> Speed:
    """Measure `config` (default: Reach with PPO) for about `seconds`, with a progress bar unless `show` is False.

    An answer that this machine gave before, with the same versions, comes from the cache unless `fresh`.
    """
    config = resolve(config or RunConfig())
    known = None if fresh else cached(config)
    if known is not None:
        return known
    with bar() if show else contextlib.nullcontext(lambda fraction, what: None) as progress:
        speed = measure(config, seconds, progress)
    cache.write(_key(config), speed.to_dict())
    return speed


def probe_apart(config: RunConfig, seconds: float = 8.0) -> subprocess.Popen[str]:
    """Start the probe in a process of its own, so that a notebook's kernel stays free; read it with `answer`."""
    return subprocess.Popen(
        [sys.executable, "-c", "from kit.measure import speed; speed.main()", str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=settings.worker_environment(int(config.threads)),
    )  # fmt: skip


def answer(process: subprocess.Popen[str], config: RunConfig) -> Speed:
    """Hand `config` (resolved) to the process of `probe_apart` and wait for its reading."""
    out, err = process.communicate(json.dumps(config.to_dict()))
    if process.returncode:
        lines = err.strip().splitlines() or [f"the probe ended with code {process.returncode}"]
        raise NotMeasured(f"The speed could not be measured: {lines[-1]}")
    return Speed(**json.loads(out.strip().splitlines()[-1]))


# -- the three readings --------------------------------------------------------------------------------------------


def measure(config: RunConfig, seconds: float, progress: Progress) -> Speed:
    from kit.envs import make_vec
    from kit.trainers import make_trainer

    settings.apply(config.device, 1)
    n_envs = int(config.n_envs)
    env = make_vec(config.env, n_envs, config.device, config.seed, int(config.threads), config.env_options)
    try:
        progress(0.0, "physics")
        physics = _physics(env, int(config.threads), 0.15 * seconds)
        progress(0.15, "env")
        env_rate = _env(env, 0.2 * seconds)
        progress(0.35, "training")
        trainer = make_trainer(config, env)
        rate = _training(trainer, 0.65 * seconds, lambda done: progress(0.35 + 0.65 * done, "training"))
    finally:
        env.close()
    progress(1.0, "done")
    return Speed(config.env, config.algo, n_envs, config.device, physics, env_rate, rate)


def _physics(env: Any, threads: int, seconds: float) -> float | None:
    """Bare physics of the env's model on all threads, counted in env steps: random controls, as the env's, because a
    robot at rest costs less."""
    if env.physics is None:
        return None
    model, substeps = env.physics
    import mujoco
    import numpy as np

    low, high = model.actuator_ctrlrange.T
    ctrl = np.random.default_rng(0).uniform(low, high, (64, model.nu))

    def work(_: int) -> int:
        data, count, end = mujoco.MjData(model), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            data.ctrl[:] = ctrl[count % len(ctrl)]
            mujoco.mj_step(model, data, substeps)
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads))) / seconds


def random_actions(env: Any, count: int) -> list[Any]:
    """`count` batches of actions (n, act) on the env's device; one alone would push into the limits."""
    import numpy as np
    import torch

    space = env.action_space
    space.seed(0)
    batches = [np.stack([space.sample() for _ in range(env.num_envs)]) for _ in range(count)]
    return [torch.as_tensor(batch, device=env.device) for batch in batches]


def _env(env: Any, seconds: float) -> float:
    import torch

    actions = random_actions(env, 32)
    env.reset(seed=0)
    env.step(actions[0])  # the first step may compile and allocate
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        env.step(actions[count % len(actions)])
        count += 1
    if str(env.device).startswith("cuda"):
        torch.cuda.synchronize()
        passed = time.perf_counter() - start
    return count * env.num_envs / passed


def _training(trainer: Any, seconds: float, progress: Callable[[float], None]) -> float:
    """Env steps per second of `learn()`, over the later half of its iterations, when everything is warm.

    Where the time is too short for one iteration, the updates' share is carried on from the minibatches seen.
    """
    from kit.trainers import Interrupted

    start = time.perf_counter()
    polls, marks = [start], [(start, 0)]

    def boundary() -> None:
        marks.append((time.perf_counter(), trainer.num_timesteps))

    def should_stop() -> bool:
        polls.append(time.perf_counter())
        progress(min(1.0, (polls[-1] - start) / seconds))
        return polls[-1] - start > seconds

    trainer.on_boundary, trainer.should_stop = boundary, should_stop
    with contextlib.suppress(Interrupted):
        trainer.learn(total_timesteps=10**9)
    if len(marks) > 1:
        return rate_of(marks)
    return _from_polls(polls, trainer)


def rate_of(marks: list[tuple[float, int]]) -> float:
    """Steps per second between the last mark and the latest one before half time; marks are (time_s, steps)."""
    (first, _), (last, steps) = marks[0], marks[-1]
    before = [mark for mark in marks[:-1] if mark[0] <= (first + last) / 2]
    return (steps - before[-1][1]) / (last - before[-1][0])


def _from_polls(polls: list[float], trainer: Any) -> float:
    """From an unfinished first iteration: one poll per env step while collecting, one per minibatch after that."""
    n_steps, batch = trainer.n_steps, getattr(trainer, "batch_size", None)
    rollout = n_steps * trainer.n_envs
    collected = min(n_steps, len(polls) - 1)
    step_s = (polls[collected] - polls[0]) / max(1, collected)
    minibatches = trainer.n_epochs * rollout // batch if batch else 1
    seen = len(polls) - 1 - collected
    minibatch_s = (polls[-1] - polls[collected]) / seen if seen > 1 else 0.0
    return rollout / (n_steps * step_s + minibatches * minibatch_s)


# -- remembered from one time to the next --------------------------------------------------------------------------


def cached(config: RunConfig) -> Speed | None:
    """What a probe of this resolved config on this machine said before, or None."""
    try:
        return Speed(**cache.read(_key(config)))
    except TypeError:  # nothing, or not of this form
        return None


def _key(config: RunConfig) -> str:
    names = ("env", "algo", "encoder", "n_envs", "device", "threads", "overrides")
    return cache.key("speed", {name: getattr(config, name) for name in names})


# -- words ---------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Such as "45 s", "3 min", "2 h 05 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextlib.contextmanager
def bar() -> Iterator[Progress]:
    """A line that is redrawn in place: in the cell's output in a notebook, else in the terminal. It goes at the end."""
    write, last = _writer(), -1

    def progress(fraction: float, what: str) -> None:
        nonlocal last
        if (now := round(30 * fraction)) != last:
            last = now
            write(f"Measuring {what:<9} {'█' * now}{'░' * (30 - now)} {100 * fraction:3.0f} %")

    yield progress
    write("")


def _writer() -> Callable[[str], None]:
    if "ipykernel" in sys.modules:
        from IPython.display import display

        handle = display({"text/plain": ""}, raw=True, display_id=True)
        if handle is not None:
            return lambda text: handle.update({"text/plain": text}, raw=True)
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r{text:<60}", end="" if text else "\r", file=sys.stderr, flush=True)


def main() -> None:
    """The process of `probe_apart`: a config on standard input, a reading on standard output."""
    reading = probe(RunConfig.from_dict(json.load(sys.stdin)), seconds=float(sys.argv[1]), show=False)
    print(json.dumps(reading.to_dict()))
