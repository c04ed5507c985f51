"""Evaluate a policy in whole episodes without exploration noise: return, success rate and the task's own metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import envs
from kit.config import RunConfig
from kit.errors import UserError, check_whole
from kit.machine.settings import one_thread
from kit.runs.opponents import make_env
from kit.runs.run import Run, opened

if TYPE_CHECKING:
    import torch

    from kit.envs.contract import BatchEnv
    from kit.envs.obs import Obs
    from kit.envs.play import HiddenState, Player

EVAL_SEED, TEST_SEED = 1_000_003, 2_000_003
"""Offsets added to the run's seed for validation and test episodes. Training never uses these seeds.

Each evaluation during training plays the same validation episodes (EVAL_SEED), which select the best policy. Reported
results come from test episodes (TEST_SEED), because the score of the best of many policies on the validation episodes
is biased upwards."""
MAX_ENVS, MAX_ENVS_NO_PHYSICS = 32, 256
"""Maximum number of envs in an evaluation, for tasks with and without physics simulation."""
EPISODES, EPISODES_NO_PHYSICS = 20, 100
"""Default number of episodes of an evaluation, for tasks with and without physics simulation.

The environment variable KIT_EVAL_EPISODES sets another number."""
RATE = "_per_minute"
"""Metrics with the prefix "reward/" or the suffix RATE are summed over each episode; others are read at its last step.

With the suffix RATE, the mean of these sums is divided by the mean episode length in simulated minutes."""


def _default_episodes(physics: bool) -> int:
    text = os.environ.get("KIT_EVAL_EPISODES", "")
    if not text:
        return EPISODES if physics else EPISODES_NO_PHYSICS
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"KIT_EVAL_EPISODES={text!r} must be a whole number of at least 1.")
    return int(text)


class Evaluator:
    """Plays whole episodes in separate envs, so that training's envs and random numbers stay unchanged."""

    def __init__(self, config: RunConfig, episodes: int | None = None, seed: int = TEST_SEED) -> None:
        self.seed, self._name = config.seed + seed, config.env
        physics = envs.describe(config.env, config.env_options).physics
        max_envs = MAX_ENVS if physics else MAX_ENVS_NO_PHYSICS
        episodes = episodes or _default_episodes(physics)
        self.episodes_per_env = -(-episodes // max_envs)
        n_envs = -(-episodes // self.episodes_per_env)
        self.env = make_env(config, n_envs, self.seed, int(config.threads))

    def __call__(self, actor: Player, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Play the episodes with `actor`. Return metrics as in `evaluate`, or None once `should_stop()` is true."""
        import torch

        from kit.envs.contract import TERM
        from kit.envs.play import ending, play

        ended_values: dict[str, list[torch.Tensor]] = {}  # of finished episodes
        sums: dict[str, torch.Tensor] = {}  # of running episodes
        steps = play(self.env, actor, self.env.reset(seed=self.seed), self.episodes_per_env)
        for step in ending(steps, self._name, self.env.episode_steps):
            if should_stop():
                return None
            any_ended = bool(step.ended.any())
            for name, value in step.info.items():
                if name == "final_obs" or value.ndim != 1:
                    continue
                value = value.double()
                if name.startswith(TERM) or name.endswith(RATE):
                    before = sums.get(name, torch.zeros_like(value))
                    value = sums[name] = value + torch.where(step.episode_starts, 0.0, before)
                if any_ended:
                    ended_values.setdefault(name, []).append(value[step.ended])
        metrics = {name: torch.cat(values) for name, values in ended_values.items()}
        returns, lengths = metrics.pop("episode_return"), metrics.pop("episode_length")
        if not bool(torch.isfinite(returns).all()):
            raise UserError(
                f"a reward of env={self._name!r} is NaN or infinite, in an evaluation; `kit check ENV` looks for "
                "the step in your own task; correct it and resume (from the last checkpoint, if there is one)."
            )
        success = metrics.pop("success", None)
        minutes = lengths.mean().item() * self.env.control_dt_s / 60
        return {
            "episodes": len(returns),
            "mean_return": returns.mean().item(),
            "std_return": returns.std(correction=0).item(),
            "success_rate": None if success is None else success.sum().item() / len(returns),
            "mean_length": lengths.mean().item(),
            **{n: values.mean().item() / (minutes if n.endswith(RATE) else 1.0) for n, values in metrics.items()},
        }

    def close(self) -> None:
        """Close the envs."""
        self.env.close()


def evaluate(
    run: Run | str | Path,
    episodes: int = 100,
    step: int | str | None = None,
    scripted: bool | str = False,
    trust: bool = False,
    env_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate the policy of `step` (default: the best) over `episodes` test episodes, with deterministic actions.

    `scripted`: evaluate the task's scripted policy instead; a string names one of `Task.scripts`. The test
    episodes differ from the training episodes and from the validation episodes, which selected the best policy.
    `env_options`: options that replace the run's own, such as {"randomize": {"friction": [0.2, 0.2]}}. `trust` as in
    `kit.resume`.

    Returns {"episodes", "mean_return", "std_return", "success_rate" (None if the task does not define success),
    "mean_length" (env steps)}, and the task's own metrics (`Task.info`), such as Reach's "within_5cm".
    """
    check_whole("episodes", episodes, 1)
    run = opened(run, trust)
    with closing(Evaluator(on_cpu(run.config, env_options), episodes)) as evaluator, one_thread():
        script = Script(evaluator.env, scripted if isinstance(scripted, str) else None) if scripted else None
        result = evaluator(script or run.policy(step).as_actor())
    assert result is not None
    return result


def on_cpu(config: RunConfig, env_options: Mapping[str, Any] | None) -> RunConfig:
    """Return `config` with device "cpu" and with `env_options` in place of its own options of the same names."""
    return config.replace(device="cpu", env_options={**config.env_options, **(env_options or {})})


class Script:
    """The task's scripted policy `name` (default: the first) as a player. Raises `UserError` if the task has none."""

    def __init__(self, env: BatchEnv, name: str | None = None) -> None:
        self._env, self._name = env, name
        if env.scripted(name) is None:
            raise UserError("this env has no scripted policy; implement `scripted` in its task.")

    def initial_state(self, n: int) -> HiddenState:
        """Return an empty hidden state."""
        return ()

    def __call__(self, obs: Obs, hidden_state: HiddenState) -> tuple[torch.Tensor, HiddenState]:
        action = self._env.scripted(self._name)
        assert action is not None
        return action, hidden_state
