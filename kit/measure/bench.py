"""`kit bench`: what this machine reaches and what bounds it, in under a minute."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from kit.config import RunConfig
from kit.machine import settings
from kit.machine.info import describe
from kit.measure import speed
from kit.measure.auto import resolve

ALGO_OVERRIDES = {"n_steps": 128, "batch_size": 64, "n_epochs": 10}
"""With 16 worlds: Stable-Baselines3's own batch and epochs, as in the README's comparison."""
PICTURE = 64
"""Pixels a side."""


@dataclass(frozen=True)
class Bench:
    """Rates of one env on this machine. Prints as a table; `to_dict()` is JSON."""

    machine: str
    env: str
    n_envs: int
    threads: int
    physics_steps_per_s: float | None
    """Bare `mj_step` on all threads, in env steps; None for an env that is not kit's own."""
    env_steps_per_s: float
    ppo_steps_per_s: float
    pictures_per_s: float | None

    @property
    def update_share(self) -> float:
        """Of PPO's time, what is not spent in the env: policy and updates."""
        return max(0.0, 1 - self.ppo_steps_per_s / self.env_steps_per_s)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "update_share": self.update_share}

    def __str__(self) -> str:
        physics = self.physics_steps_per_s
        rows = [("bare physics", physics, "steps/s"), ("env", self.env_steps_per_s, "steps/s")]
        rows += [("PPO end to end", self.ppo_steps_per_s, "steps/s")]
        rows += [(f"pictures {PICTURE}×{PICTURE}", self.pictures_per_s, "images/s")]
        lines = [f"{self.machine}", f"{self.env}, {self.n_envs} worlds on {self.threads} threads:"]
        for what, rate, unit in rows:
            if rate is not None:
                share = f"  {rate / physics:.2f} of physics" if physics and unit == "steps/s" else ""
                lines.append(f"  {what:<16} {rate:>10,.0f} {unit}{share}")
        lines.append(
            f"Physics and env take {1 - self.update_share:.0%} of PPO's time, the networks {self.update_share:.0%}."
        )
        return "\n".join(lines)


def bench(env: str = "Ant", n_envs: int = 16, seconds: float = 40.0) -> Bench:
    """Measure `env` for about `seconds`, with a progress bar."""
    config = resolve(RunConfig(env=env, algo="PPO", n_envs=n_envs, overrides=ALGO_OVERRIDES))
    settings.apply(config.device, 1)
    with speed.bar() as progress:
        measured = speed.measure(config, 0.8 * seconds, lambda done, what: progress(0.8 * done, what))
        progress(0.8, "pictures")
        pictures = _pictures(config, 0.2 * seconds)
        progress(1.0, "done")
    machine = describe()
    return Bench(
        machine.title, env, n_envs, int(config.threads), measured.physics_steps_per_s, measured.env_steps_per_s,
        measured.steps_per_s, pictures,
    )  # fmt: skip


def _pictures(config: RunConfig, seconds: float) -> float | None:
    """Images per second of the batch renderer, all worlds at once; None for an env that has no camera."""
    from kit.envs import TensorEnv, make_vec

    env = make_vec(config.env, int(config.n_envs), config.device, config.seed, threads=int(config.threads))
    try:
        if not isinstance(env, TensorEnv):
            return None
        env.sim.render(env.cameras[:1], PICTURE, PICTURE)  # compiles once per machine, some 20 s
        count, start = 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            env.sim.render(env.cameras[:1], PICTURE, PICTURE)
            count += env.num_envs
        return count / passed
    finally:
        env.close()
