"""Measure the training speed of a config on this computer, by training for about ten seconds (a probe).

Three speeds are measured: the physics alone, the env (physics, observations and rewards), and training (env, policy and
updates). Training speed and the duration of an evaluation give an estimate of a run's duration. `bench` measures image
rendering too; its settings are fixed, so that machines can be compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
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
from kit.errors import Interrupted, UserError, explain
from kit.machine import settings
from kit.machine.progress import percent, progress_bar
from kit.measure.auto import resolve

STARTUP_S = 5.0
"""Startup time of a training process, before its first step."""
PATIENCE_S = 60.0
"""Longest wait for the first iteration of training, s; it may exceed the duration of the probe."""
EVALUATION_ENVS = 20
"""Number of envs in the measured evaluation; a run uses as many for a task with physics (`kit.runs.evaluation`)."""
TURNS = 8
"""Physics and env are measured alternately, this many times each; the highest speed of each is reported."""
BENCH = {"n_steps": 128, "batch_size": 64, "n_epochs": 10}
"""PPO hyperparameters of `bench`, for 16 envs, as in the README's comparison; batch size and epochs are SB3's."""
IMAGE_SIZE = 64
"""Height and width of images in `bench`, in pixels."""
CACHE_FIELDS = ("env", "env_options", "algo", "encoder", "n_envs", "device", "threads", "overrides")
"""Fields of RunConfig that the speed depends on."""
SAME_SPEED = frozenset({
    "learning_rate", "gamma", "gae_lambda", "clip_range", "ent_coef", "vf_coef", "max_grad_norm", "tau",
    "stats_window_size", "random_share", "target_entropy", "exploration_noise",
})  # fmt: skip
"""Hyperparameters that change what is learnt, but not the speed."""

Report = Callable[[str], None]
"""Progress callback; takes the name of the quantity being measured."""
_cache: dict[str, Speed] = {}


class NotMeasured(UserError):
    """The speed could not be measured; training may still work."""


@dataclass(frozen=True)
class Speed:
    """The measured speed of one config on one machine."""

    env: str
    algo: str
    n_envs: int
    device: str
    physics_steps_per_s: float | None
    """Physics alone, in env steps per second; None for an env that does not use kit's simulator."""
    env_steps_per_s: float
    """Env steps per second, over all envs, with observations, rewards and resets, under random actions."""
    steps_per_s: float
    """Env steps per second in training, including updates but not evaluations."""
    evaluation_s: float = 0.0
    """Duration of one evaluation, s, assuming that every episode reaches its time limit."""
    pictures_per_s: float | None = None
    """Images of `IMAGE_SIZE` rendered per second, summed over all envs; None if not measured."""
    replay_bytes: float = 0.0
    """Memory of one stored env step; 0 for an algorithm without a replay buffer."""
    replay_steps: int = 0
    """Most env steps that the replay buffer holds."""

    def seconds(self, config: RunConfig) -> float:
        """Return the estimated duration of the run `config`, s, including startup and evaluations."""
        every, n_steps = config.eval_every, int(config.overrides.get("n_steps", 1))
        iterations = math.ceil(config.total_steps / (n_steps * self.n_envs))
        intervals = 10 if every == "auto" else config.total_steps // int(every) if every else 0
        # of the initial policy, at most one after each iteration, and the final test; each in as many episodes
        evaluations = 1 + min(intervals, iterations) + 1 if every else 0
        return STARTUP_S + config.total_steps / self.steps_per_s + evaluations * self.evaluation_s

    def replay_use(self, config: RunConfig) -> float:
        """Return the bytes that the replay buffer of the run `config` takes at its end."""
        return self.replay_bytes * min(config.total_steps, self.replay_steps)

    @property
    def update_share(self) -> float:
        """Fraction of the training time spent in policy and updates; the rest is the env."""
        return max(0.0, 1 - self.steps_per_s / self.env_steps_per_s)

    def __str__(self) -> str:
        rates = {
            "bare physics": self.physics_steps_per_s,
            "the env, with observations and rewards": self.env_steps_per_s,
            "training, end to end": self.steps_per_s,
            f"images of {IMAGE_SIZE}×{IMAGE_SIZE}": self.pictures_per_s,
        }
        lines = [f"{self.env} with {self.algo}, {self.n_envs} envs on {self.device}, in env steps per second:"]
        lines += [f"{rate:>10,.0f}  {name}" for name, rate in rates.items() if rate is not None]
        ratio = self.env_steps_per_s / (self.physics_steps_per_s or float("inf"))
        share = f"The env reaches {percent(ratio)} of bare physics. " if ratio else ""
        return "\n".join([*lines, f"{share}Networks take {percent(self.update_share)} of the training time."])

    __repr__ = __str__


def probe(config: RunConfig, *, seconds: float = 8.0, show: bool = True) -> Speed:
    """Return the speed of `config`, measured in about `seconds`, with a progress bar if `show`. Raises `NotMeasured`.

    The result is cached until the process ends.
    """
    config = resolve(config)
    if cached(config) is None:
        with bar(seconds, show) as report:
            _cache[_key(config)] = measure(config, seconds, report)
    return _cache[_key(config)]


def cached(config: RunConfig) -> Speed | None:
    """Return the cached speed of this resolved config; None if it was not measured."""
    return _cache.get(_key(config))


def forget(config: RunConfig) -> None:
    """Remove the cached speed of this resolved config, so that it is measured again."""
    _cache.pop(_key(config), None)


def _key(config: RunConfig) -> str:
    values = {name: config.to_dict()[name] for name in CACHE_FIELDS}
    values["overrides"] = {name: value for name, value in config.overrides.items() if name not in SAME_SPEED}
    return json.dumps(values, sort_keys=True)


def start_probe(config: RunConfig, seconds: float = 8.0) -> subprocess.Popen[str]:
    """Start `probe` in a child process, so that a notebook's kernel stays free; `wait_for_probe` returns the result."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=settings.worker_environment(int(config.threads)) | envs.child_environ(config),
    )  # fmt: skip


def wait_for_probe(process: subprocess.Popen[str], config: RunConfig) -> Speed:
    """Send the resolved `config` to a process started by `start_probe`; wait for the result. Raises `NotMeasured`."""
    out, err = process.communicate(json.dumps(config.to_dict()))
    if process.returncode:
        reason = (err.strip().splitlines() or [f"the probe ended with code {process.returncode}"])[-1]
        raise NotMeasured(f"The speed could not be measured: {reason}")
    speed = _cache[_key(config)] = Speed(**json.loads(out.strip().splitlines()[-1]))
    return speed


# -- measurements -------------------------------------------------------------------------------------------------


def measure(config: RunConfig, seconds: float, report: Report, images: bool = False) -> Speed:
    """Measure physics, env, training and evaluation of a resolved `config` in about `seconds`; more with `images`."""
    from kit.trainers import make_trainer

    settings.apply(config.device)
    env, n_envs = _make_env(config, int(config.n_envs)), int(config.n_envs)
    try:
        trainer: Any = make_trainer(config, env)
        if hasattr(trainer, "learning_starts"):  # else the probe may end in the phase without updates
            trainer.learning_starts = min(trainer.learning_starts, trainer.batch_size)
        if config.teacher is not None:
            trainer.set_teacher(RandomTeacher(env))
        if config.dataset is not None:
            trainer.set_dataset([random_episode(env)], {})
        actions = itertools.cycle(random_actions(env, 32))
        env.step(next(actions))  # the first step may compile and allocate
        physics, whole = [], []
        for _ in range(TURNS):
            report("physics and env")
            whole.append(n_envs * rate(lambda: env.step(next(actions)), 0.15 * seconds / TURNS))
            if env.physics is not None:
                physics.append(_physics(env, int(config.threads), 0.15 * seconds / TURNS))
        trained = _training(trainer, 0.6 * seconds, report)
        replay: Any = getattr(trainer, "replay_buffer", None)
        stored = replay.capacity * replay.n_envs if replay is not None else 0
        report("evaluation")
        evaluation_s = _evaluation(config, trainer, 0.1 * seconds)
        pictures = None
        if images and env.physics is not None and env.cameras:
            report("images")
            pictures = _images(env, 0.25 * seconds)
    finally:
        env.close()
    bare = max(physics + whole) if physics else None  # the env includes the physics, so physics alone cannot be slower
    return Speed(
        config.env, config.algo, n_envs, config.device, bare, max(whole), trained, evaluation_s, pictures,
        replay.nbytes / stored if stored else 0.0, stored,
    )  # fmt: skip


class RandomTeacher:
    """Stand-in for a teacher: random actions. A real teacher's network would take little of the training time."""

    def __init__(self, env: Any) -> None:
        self._actions = itertools.cycle(random_actions(env, 32))

    def act(self, obs: Any) -> Any:
        return next(self._actions)

    def restart(self, done: Any) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


def random_episode(env: Any) -> Any:
    """Return an episode of random actions, in place of a dataset."""
    import torch

    from kit.envs.obs import tree_map
    from kit.trainers.demonstrations import Episode, recorded

    actions, steps = random_actions(env, 32), [recorded(env.reset(seed=0), env)]
    for action in actions:
        steps.append(recorded(env.step(action)[0], env))
    obs = tree_map(lambda *x: torch.stack([each[0] for each in x]).cpu(), *steps)
    zeros = torch.zeros(len(actions))
    return Episode(obs, torch.stack([each[0] for each in actions]).cpu(), zeros, zeros.bool())


def _make_env(config: RunConfig, n_envs: int) -> Any:
    options = envs.without_opponents(config.env, config.env_options)
    return envs.make_vec(config.env, n_envs, config.device, config.seed, int(config.threads), options)


def rate(work: Callable[[], object], seconds: float) -> float:
    """Return the calls of `work` per second. Waits for the (asynchronous) GPU every 16 calls and at the end."""
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
    """Return `count` batches of random actions (n, act). A single repeated batch would push joints to their limits."""
    import torch
    from gymnasium.vector.utils import batch_space

    space = batch_space(env.action_space, env.num_envs)
    space.seed(0)
    return [torch.as_tensor(space.sample(), device=env.device) for _ in range(count)]


def _physics(env: Any, threads: int, seconds: float) -> float:
    """Return the env steps per second of physics alone.

    On the CPU every thread calls `mj_step` for five env steps at a time. Before each call it restores the state and
    controls of one of the envs, because states would become untypical in long runs with constant controls.
    """
    model, substeps = env.physics
    if env.device.type == "cuda":
        return float(env.num_envs * rate(lambda: env.task.sim.step(substeps), seconds))
    import mujoco

    states = itertools.cycle(env.snapshot()["sim.state"].numpy())

    def five_steps(data: mujoco.MjData) -> None:
        mujoco.mj_setState(model, data, next(states), mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_step(model, data, 5 * substeps)

    with ThreadPoolExecutor(threads) as pool:
        copies = [mujoco.MjData(model) for _ in range(threads)]
        return 5 * sum(pool.map(lambda data: rate(partial(five_steps, data), seconds), copies))


def _training(trainer: Any, seconds: float, report: Report) -> float:
    """Train for about `seconds`; return the env steps per second in the second half (the first half warms up)."""
    start = time.perf_counter()
    marks = [(start, 0)]

    def should_stop() -> bool:
        report("training")
        return time.perf_counter() - start > (seconds if len(marks) > 1 else PATIENCE_S)

    trainer.on_boundary = lambda: marks.append((time.perf_counter(), trainer.num_timesteps))
    trainer.should_stop = should_stop
    with contextlib.suppress(Interrupted):
        trainer.learn(total_timesteps=10**9)
    if len(marks) == 1:
        raise NotMeasured(f"one iteration takes more than {PATIENCE_S:g} s here; choose a smaller network, or a GPU")
    return rate_of(marks)


def rate_of(marks: list[tuple[float, int]]) -> float:
    """Return the steps per second in the second half of `marks`: (time in s, steps so far) pairs."""
    (first, _), (last, steps) = marks[0], marks[-1]
    before = [mark for mark in marks[:-1] if mark[0] <= (first + last) / 2]
    return (steps - before[-1][1]) / (last - before[-1][0])


def _evaluation(config: RunConfig, trainer: Any, seconds: float) -> float:
    """Return the estimated duration of one evaluation, s. Plays a part of it, in separate envs."""
    from kit.envs.play import play
    from kit.trainers.planning import during_training

    env = _make_env(during_training(config), EVALUATION_ENVS)
    steps = play(env, trainer.as_actor(), env.reset(config.seed))
    try:
        next(steps)  # the first step may compile
        return float(env.episode_steps / rate(partial(next, steps), seconds))
    finally:
        env.close()


def _images(env: Any, seconds: float) -> float:
    """Return the images per second, over all envs, of the env's first camera."""
    draw = partial(env.task.sim.render, env.cameras[:1], IMAGE_SIZE, IMAGE_SIZE)
    draw()  # compiles once per machine, some 20 s
    return float(env.num_envs * rate(draw, seconds))


def bench(env: str = "Ant", n_envs: int = 16, seconds: float = 40.0) -> Speed:
    """Measure PPO on `env`, and image rendering if `env` uses kit's simulator and has a camera."""
    config = resolve(RunConfig(env=env, algo="PPO", n_envs=n_envs, overrides=BENCH))
    with bar(seconds) as report:
        return measure(config, 0.8 * seconds, report, images=True)


def duration(seconds: float) -> str:
    """Format a duration, such as "45 s", "3 min" or "2 h 05 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def rough_duration(seconds: float) -> str:
    """Format a rough estimate (20 percent) of a duration, such as "45 s", "25 min" or "2 h 30 min"."""
    roundings = ((20, 1), (100, 5), (1800, 60), (6000, 300), (math.inf, 1800))  # (below, to), s
    step = next(step for limit, step in roundings if seconds < limit)
    return duration(step * round(seconds / step)).removesuffix(" 00 min")


@contextlib.contextmanager
def bar(seconds: float, show: bool = True) -> Iterator[Report]:
    """Context manager: a progress bar over `seconds`, removed at the end."""
    start = time.perf_counter()
    with progress_bar(100, leave=False, disable=not show) as shown:

        def report(step: str) -> None:
            shown.set_description_str(f"Measuring {step}", refresh=False)
            shown.update(min(100, round(100 * (time.perf_counter() - start) / seconds)) - shown.n)

        yield report
        shown.update(100 - shown.n)  # tqdm shows a bar that ends early in red


if __name__ == "__main__":
    try:
        config = RunConfig.from_dict(json.load(sys.stdin))
        print(json.dumps(dataclasses.asdict(probe(config, seconds=float(sys.argv[1]), show=False))))
    except Exception as error:
        sys.exit(explain(error))
